"""Single cases for the rules, written by hand and never used to change them.

The templates of `curation_corpora` were looked at while the rules were made, so what is measured on
them is what the rules were made for. On these cases they are measured as they stand: defects, and
sound texts that are near them. A case that a rule is changed for moves to the tests, and a new one
takes its place here.
"""

from typing import NamedTuple


class Cases(NamedTuple):
    key: str  # the field that holds the text
    defects: tuple[str, ...]
    sound: tuple[str, ...]


_SOLVED = (
    "Call the price of a pen p and that of a book q. Three pens and two books cost 16, while one "
    "pen and four books cost 22, so ten books minus... no, five pens cost 10 and p = 2. "
)

CASES: dict[str, Cases] = {
    "incomplete": Cases(
        "prompt",
        (
            "Let ABCD be a parallelogram. The diagonals meet at",
            "How long is the side marked x in the diagram?",
            "The ages of three siblings add up to 40.",
            "Use the formula from the previous question to find the interest.",
            "If $f(x) = \\sqrt{x + 2",
            "With the values given in Table 2, what is the variance?",
            "Solve the equation",
            "A train leaves at 9:00 and travels at 80 km/h until it",
            "What is the tension in the string shown?",
            "Exercise 12.",
        ),
        (
            "Find the median of 2, 9, 4, 7, 7.",
            "How many edges are in the graph K_5?",
            "Draw 3 cards from a deck of 52. In how many ways can all be hearts?",
            "Round 3.14159 to two places.",
            "The previous day was a Tuesday. Which day is it in 100 days?",
            "Wie viele Primzahlen liegen zwischen 10 und 30?",
            "A photographer takes 5 pictures a minute. How many in 2 hours?",
            "$x^2 - 5x + 6 = 0$; find the greater root",
            "What remains of 17 after 5 is taken from it?",
            "Reduce the fraction 84/126.",
        ),
    ),
    "multi_part": Cases(
        "prompt",
        (
            "Find (i) the amplitude, (ii) the period of y = 3 sin 2x.",
            "A ball is thrown up at 20 m/s. When does it land? What is its greatest height?",
            "Compute the mean of 4, 8 and 9. Compute also the variance.",
            "Calculate the area of the circle of radius 3 and its circumference.",
            "1) Factor x^2 - 9. 2) Solve x^2 - 9 = 0. 3) Sketch the parabola.",
            "How many apples has Ann, and how many has Ben, if together they have 12?",
            "Give the domain of sqrt(x - 1). Explain your answer and give the range.",
            "Task A: simplify 6/8. Task B: simplify 9/12.",
        ),
        (
            "Ann and Ben have 12 apples and 8 pears. How many pieces of fruit is that?",
            "What is the product of the roots of x^2 - 9 = 0 and of x^2 - 4 = 0?",
            "Find the point at which the lines y = x and y = 2x - 3 meet.",
            "Given that (i) n is even and (ii) n is a square below 50, find the greatest n.",
            "If a car goes 60 km in the first hour and 80 km in the second, what is its mean "
            "speed?",
            "She asked: 'Is it 5?' He said it was twice as much. What was it?",
            "Calculate 3! + 4!.",
            "Two dice are rolled. What is the chance that the first shows 2 and the second shows "
            "5?",
        ),
    ),
    "multiple_choice": Cases(
        "prompt",
        (
            "Which gas do plants take in?\n(1) oxygen\n(2) nitrogen\n(3) carbon dioxide",
            "7 x 8 equals A) 54; B) 56; C) 58",
            "Choose the right word: The cat (sit / sits / sitting) on the mat.",
            "The SI unit of force is\na. joule\nb. newton\nc. watt\nd. pascal",
            "Which one of these is irrational: sqrt 4, sqrt 5 or sqrt 9?",
            "Pick the largest: (A) 0.3 (B) 1/3 (C) 33% (D) 3/10",
            "Choices: red, blue, green. Which has the longest wavelength?",
            "Which statement is correct? I. 0 is even. II. 1 is prime. III. 2 is odd.",
        ),
        (
            "Blood groups A, B and O occur in 40, 11 and 45 of 100 people. How many have another?",
            "In how many ways can you choose 2 of the letters a, b, c, d?",
            "Line (a) is parallel to line (b). The angle at (a) is 40 degrees. What is it at (b)?",
            "How many choices has a menu with 4 starters and 5 desserts?",
            "A multiple choice test has 20 questions with 4 options each. What score do random "
            "answers give on average?",
            "Which number between 24 and 28 is prime or a cube?",
            "Rule 1. Red cards count 2. Rule 2. Black cards count 3. What do 4 red and 2 black "
            "cards "
            "count together?",
            "Select 3 points of a circle of 8. How many triangles are there?",
        ),
    ),
    "true_false": Cases(
        "prompt",
        (
            "Answer with true or false. A square is a rectangle.",
            "Every prime is odd. True?",
            "Is 1001 divisible by 7? Yes or no?",
            "Indicate whether the sentence is right or wrong: 5 is a factor of 52.",
            "Are these two triangles congruent? Answer YES or NO.",
            "Statement: all squares are rhombi. Is this statement correct?",
            "Verify the claim 17 * 3 = 51 (true / false).",
            "Does f(x) = 1/x have a limit at 0? yes/no",
        ),
        (
            "How many of 12 true statements remain true when negated twice?",
            "What is the correct sum of 17 and 26?",
            "A liar says 'no' to 3 questions. How many times would he say 'yes' to the opposite "
            "ones?",
            "For how many primes p below 30 does p + 2 hold the digit 3?",
            "What share of yes votes is needed to pass with two thirds of 90 votes?",
            "Find the truest approximation of pi among fractions with denominator 7.",
            "The statement shows a balance of 40 and fees of 3. What is left?",
            "A right angle and a straight angle add to how many degrees?",
        ),
    ),
    "external": Cases(
        "prompt",
        (
            "Go to https://maths.example/p/12 and solve the problem there.",
            "What is 3 + 4? (from brilliantproblems.com)",
            "<strong>Find x:</strong> 2x = 8",
            "<question>What is 5 squared?</question>",
            "| Item | Price |\n|------|-------|\n| pen | 2 |\nWhat does a pen cost?",
            "Year\tRain\n2001\t40\n2002\t55\nBy how much did it rise?",
            "See the sketch: ![](a1.png). What is the angle?",
            "Compute 3 &times; 4 &nbsp; exactly.",
        ),
        (
            "How many pairs have a<b and b<c with all below 5?",
            "What is |3 - 8| + |-2|?",
            "The table has 4 legs and each leg 2 screws. How many screws are there?",
            "An http server answers 200 requests in 8 s. How many is that a second?",
            "In base 16, what is ff.8 in decimal notation?",
            "Is there an i<n with n=3? Give the greatest such i.",
            "John v. Smith cost 3 mill. How much is half of it?",
            "What does <x> = (1 + 2 + 6)/3 amount to?",
        ),
    ),
    "conceptual": Cases(
        "prompt",
        (
            "What is democracy?",
            "Please explain the Krebs cycle.",
            "Discuss the causes of the First World War.",
            "Prove that the product of two odd integers is odd.",
            "What are the main ideas of Stoicism?",
            "Outline the steps of photosynthesis.",
            "Why do leaves change colour in autumn?",
            "What is the importance of biodiversity?",
        ),
        (
            "What is the charge of an electron in coulombs?",
            "Explain-o-matic machines cost 40 each. What do 12 cost?",
            "How many steps are needed to climb 3 floors of 14 steps?",
            "What is the atomic number of carbon?",
            "Which year did the First World War end?",
            "How does 3/4 compare with 5/8? Give the ratio.",
            "Define x = 4. What is 3x?",
            "What is the difference between 4^2 and 2^3?",
        ),
    ),
    "repetition": Cases(
        "response",
        (
            _SOLVED + "I think it is 2. " * 12,
            _SOLVED + "Next. " * 40,
            (_SOLVED + "Let me start again. ") * 5,
            _SOLVED + "!" * 300,
            _SOLVED + "2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3",
            "\n".join(
                f"Attempt {i}: we try the same method as in the attempt before." for i in range(9)
            ),
        ),
        (
            _SOLVED + "So one pen costs 2 and one book costs 5. Indeed 3 * 2 + 2 * 5 = 16.",
            "2 + 2 + 2 + 2 + 2 = 10. " + _SOLVED,
            "\n".join(f"| {i} | {i * i} | {i**3} |" for i in range(20)),
            "Yes, yes. It is so. It is so because it is so. " + _SOLVED,
            "1/3 = 0.333333333333333333333333. " + _SOLVED,
            "First equation: p + 4q = 22. Second equation: 3p + 2q = 16. " + _SOLVED,
        ),
    ),
    "truncation": Cases(
        "response",
        (
            _SOLVED * 2 + "If we now consider the case in which the number of books is greater",
            _SOLVED * 2 + "Therefore $q = (22 - p",
            _SOLVED * 2 + "We get\n\\begin{align}\nq &= 5",
            "<longcat_think>" + _SOLVED * 2,
            _SOLVED * 2 + "Here is the code:\n```\nfor i in range(",
            _SOLVED * 2 + "\\boxed{5",
            _SOLVED * 2 + "There are two cases:",
        ),
        (
            _SOLVED * 2 + "Final answer: 5",
            _SOLVED * 2 + "\\boxed{5}",
            _SOLVED * 2 + "Thus q = 5!",
            _SOLVED * 2 + "\n| p | q |\n|---|---|\n| 2 | 5 |",
            _SOLVED * 2 + "Is that all? Yes.",
            _SOLVED * 2 + "So q is 5 dollars\n\nCheers, A.",
            _SOLVED * 2 + "- p: 2\n- q: 5",
        ),
    ),
    "language_mixing": Cases(
        "response",
        (
            "First we solve for p, \u5176\u6b21 for q.",
            "So p = 2 \u0438 q = 5 \u043a\u0430\u043a \u043c\u044b \u0432\u0438\u0434\u0438\u043c.",
            "The price is \u4e8c yen each, \u3067\u3059.",
            "Alors nous avons une solution pour cette question, donc p = 2.",
            "\u0939\u092e p = 2 \u092a\u093e\u0924\u0947 \u0939\u0948\u0902, so q = 5.",
        ),
        (
            "The caf\u00e9 in M\u00fcnchen sells 5 cr\u00eapes.",
            "Let \u03b8 = 30\u00b0 and \u03c3 = 2.",
            "A quid pro quo, a priori.",
            "Erd\u0151s and R\u00e9nyi proved it; so did \u0141o\u015b.",
            "\u2200x \u2203y: x < y \u2227 y > 0 \u21d2 done.",
        ),
    ),
}
