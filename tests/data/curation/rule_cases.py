"""Single cases that the rules were changed for, written by hand: defects and near misses."""

from typing import NamedTuple


class Cases(NamedTuple):
    key: str  # the field that holds the text
    defects: tuple[str, ...]
    sound: tuple[str, ...]


_SOLVED = (
    "Write the two numbers as a and b. Their sum is 31 and their difference is 7, so adding the "
    "two equations gives 2a = 38 and therefore a = 19. "
)

CASES: dict[str, Cases] = {
    "incomplete": Cases(
        "prompt",
        (
            "A rectangle has length 12 and",
            "Given that f is continuous on the interval, determine the value of",
            "The shaded region in the picture is a semicircle. What is its area?",
            "As you saw in Exercise 4, the series converges. To what?",
            "If 3x + 5 = 20, then",
            "Using the graph, estimate the slope at x = 2.",
            "How many students are in the class described above?",
            "A box contains 5 red balls. The balls are drawn one after another.",
            "Evaluate $\\int_0^1 x^2",
            "Find the volume of the solid obtained by rotating the reg",
            "12",
            "Refer to Table 3 and compute the mean income.",
        ),
        (
            "Evaluate $\\int_0^1 x^2 \\, dx$.",
            "Let S be a set of n points in general position. How many triangles do they span?",
            "What figure has exactly three sides of equal length?",
            "Sketching is not allowed. How many lines pass through 4 points, no three on a line?",
            "Solve for t: 5t - 3 = 2(t + 6)",
            "A company draws 3 of its 10 images at random. In how many ways can it do so?",
            "Quelle est la somme des 20 premiers entiers positifs ?",
            "What is the previous term of the sequence that goes on with 8, 16, 32?",
            "If $A=\\{1,2,3\\}$ and $B=[0,2)$, how many elements has $A \\cap B$?",
            "Which number comes next: 2, 3, 5, 7, 11, ...?",
            "State the degree of the polynomial (x+1)(x+2)^2.",
            "Simplify (a - b)(a + b) + b^2",
            "Solve 2x - 7 = 11.",
        ),
    ),
    "multi_part": Cases(
        "prompt",
        (
            "a) Find the mean of 3, 5 and 10.  b) Find their median.",
            "What is the slope of y = 3x + 1, and what is its intercept?",
            "Determine f'(2) and f''(2) for f(x) = x^4.",
            "How fast does it fall? How long does it take?",
            "Question 1: What is 12% of 50? Question 2: What is 50% of 12?",
            "Solve x + y = 4. Then use the result to compute x^2 + y^2, also giving x - y.",
            "I. State Ohm's law. II. Compute the current for 12 V and 4 ohms.",
            "Calculate the perimeter of the square of side 3. In addition, calculate its area.",
            "Answer the following questions: How many vertices has a cube; how many edges?",
            "First find the roots of x^2 = 9. Next, find the vertex of the parabola.",
        ),
        (
            "What is the sum of the mean and the median of 3, 5 and 10?",
            "Find the ordered pair (x, y) with x + y = 4 and x - y = 2.",
            "Find the largest prime p such that p divides both 84 and 126.",
            "Given (a) a fair coin and (b) a biased coin that lands heads twice as often, what is "
            "the probability that both show heads?",
            "'How many?' asked Tom. 'Twice as many as yesterday', said Ann, who had picked 14 "
            "pears. "
            "How many pears were there?",
            "Let a1 = 1. Let a2 = 3. Then a3 is their sum. Find a10 if this goes on.",
            "Find x so that the mean of x, 4 and 9 is 7.",
            "Step 1 doubles a number, step 2 adds 5. What number gives 31 after both steps?",
            "Compute the determinant of the matrix with rows (1, 2) and (3, 4).",
            "Find all real solutions and determine how many of them are positive integers: x^2 = "
            "4.",
        ),
    ),
    "multiple_choice": Cases(
        "prompt",
        (
            "The capital of France is: A) Paris B) Rome C) Bonn D) Madrid",
            "2 + 3 * 4 = ?  (a) 14 (b) 20 (c) 24 (d) 9",
            "What colour absorbs most light?\nA: white\nB: black\nC: red\nD: yellow",
            "Select the correct alternative: the derivative of sin x is {cos x, -cos x, tan x}.",
            "Which of the following statements about entropy is correct?",
            "The value of log 100 is [A] 1 [B] 2 [C] 10 [D] 100",
            "Choose the best answer. Water boils at sea level at 90, 100 or 110 degrees.",
            "Which option gives the least cost? Option 1: 5 per day. Option 2: 30 per week.",
            "Is the limit 0, 1/2, 1 or does it not exist? Mark one.",
            "1. 3/4  2. 4/5  3. 5/6  4. 6/7. The largest fraction is number",
        ),
        (
            "Triangle ABC has a right angle at C. If a = 3 and b = 4, find c.",
            "Vitamins A, B, C and D are sold in boxes of 6. How many boxes hold 30 of each?",
            "How many of the following 5 numbers are odd: 3, 8, 11, 14, 27?",
            "The options expire in 30 days and cost 5 each. What is the cost of 12 options?",
            "Consider these facts. 1. Ann is older than Bob. 2. Bob is older than Cy. 3. Dee is "
            "younger than Cy. Who is the oldest?",
            "How many ways are there to choose a committee of 3 from 9 people?",
            "In a contest with 5 choices per question, what is the chance of guessing 2 right?",
            "Grade A. eggs cost 3 and grade B. eggs 2. How much are 6 of each?",
            "Let (A, B, C) be the angles of a triangle with A = 2B and B = 2C. Find C in degrees.",
            "What is the correct value of 7 choose 3?",
        ),
    ),
    "true_false": Cases(
        "prompt",
        (
            "True/False: every continuous function is differentiable.",
            "Is the following argument valid? All cats are animals. Tom is an animal. So Tom is "
            "a cat.",
            "Is 91 prime? Reply with Yes or No.",
            "The sum of two odd numbers is odd. T or F?",
            "Decide if the statement is correct: the empty set is a subset of every set.",
            "Can a triangle have two right angles? (yes/no)",
            "Say whether it is true that 2^10 > 1000.",
            "Evaluate the claim as TRUE or FALSE: 0.999... = 1.",
        ),
        (
            "How many true statements can a list of 5 statements contain, if statement k says that "
            "exactly k of them are false?",
            "Find the smallest n for which it is false that n! < 2^n... and n > 3.",
            "What is the probability that a fair coin gives yes three times?",
            "For which real c is the function f(x) = |x - c| + c continuous everywhere and f(0) "
            "= 4?",
            "Out of 40 votes, the yes votes outnumber the no votes by 6. How many voted yes?",
            "The correct time is 3:15. What angle do the hands make?",
            "Determine whether 2^30 or 3^20 is larger, and by how much.",
            "If the claim P(n) holds for all even n up to 50, how many n is that?",
        ),
    ),
    "external": Cases(
        "prompt",
        (
            "Download the data at http://data.example/x.csv and report the mean.",
            "Watch youtube.com/watch?v=abc and answer: what is the final velocity?",
            "<table><tr><td>1</td></tr></table> What is the entry?",
            "Name | Age\n-----|----\nAnn | 5\nBob | 7\nWho is older, and by how many years?",
            "What is <i>x</i> if <i>x</i> + 2 = 5?",
            "Find the area. [img]pic12.jpg[/img]",
            "x &lt; 5 and x &gt; 2. How many integers?",
            "\\begin{tabular}{c|c} n & 1 \\\\ f & 2 \\end{tabular} Find f(1).",
            "According to en.wikipedia.org/wiki/Pi, what is the 5th digit?",
            "Day  Sales\nMon  14\nTue  15\nWed  17\nWhat is the mean of the sales?",
        ),
        (
            "How many n satisfy 3 < n < 10 and n > 4?",
            "Let x|y mean that x divides y. How many x with x|12 are even?",
            "An email address has the form a@b.c with one letter each. How many are there?",
            "A .com company pays 5 a share. What do 12 shares pay?",
            "If |x| + |y| <= 2, how many integer points (x, y) are there?",
            "Solve x<3 && x>-2 over the integers; how many solutions?",
            "At 3 p.m. Net profit is 12 and costs are 5. What is the income?",
            "The vectors <1, 2> and <3, 4> have which dot product?",
            "Compute 3.org if org stands for 7 and the point for times.",
            "What is the image of 3 under f(x) = x^2?",
        ),
    ),
    "conceptual": Cases(
        "prompt",
        (
            "What is inertia?",
            "Explain how vaccines work.",
            "Compare the French and the American revolution.",
            "Tell me about the theory of relativity.",
            "Why is the sky blue?",
            "Show that the square root of 2 is irrational.",
            "Give an example of a group and justify that it is one.",
            "Summarize the plot of Hamlet.",
            "Define momentum.",
            "How does a transistor work?",
        ),
        (
            "What is the momentum of a 2 kg ball at 3 m/s?",
            "How does the value of x^2 change when x goes from 3 to 5? Give the difference.",
            "Which element has atomic number 26?",
            "Define a_n = 2 a_{n-1} + 1 with a_1 = 1. What is a_6?",
            "It is easy to show that 7 is prime. What is the next prime?",
            "Name the planet nearest to the sun.",
            "Describe the number 84 as a product of primes, in increasing order.",
            "Compare 2/3 and 3/5 by giving their difference.",
        ),
    ),
    "repetition": Cases(
        "response",
        (
            _SOLVED + "Hmm. Hmm. Hmm. Hmm. Hmm. Hmm. Hmm. Hmm. Hmm. Hmm. Hmm. Hmm. Hmm.",
            (_SOLVED + "\n\n") * 4,
            _SOLVED + "But wait, is a an integer? Yes, it is. " * 7 + "So a = 19.",
            _SOLVED + "0" * 400,
            _SOLVED + "the the the the the the the the the the the the the the",
            "Let me restate the problem in other words.\n" * 6 + _SOLVED,
        ),
        (
            _SOLVED + "Check: 19 + 12 = 31 and 19 - 12 = 7.",
            "1 + 1 = 2, 2 + 2 = 4, 4 + 4 = 8, 8 + 8 = 16, 16 + 16 = 32, 32 + 32 = 64.",
            "\n".join(f"f({i}) = {i} * {i} = {i * i}" for i in range(1, 15)),
            "Row, row, row your boat, gently down the stream. " + _SOLVED,
            "The period of 1/7 is 142857142857142857142857142857. " + _SOLVED,
            "Case n = 1: no. Case n = 2: no. Case n = 3: yes. " + _SOLVED,
        ),
    ),
    "truncation": Cases(
        "response",
        (
            _SOLVED * 2 + "Now we turn to the second condition, which says that the",
            _SOLVED * 2 + "Substituting this into the first equation we obtain b = 31 -",
            _SOLVED * 2 + "$$b = 31 - 19",
            "<think>" + _SOLVED * 2 + "So a is 19.",
            "```python\ndef f(n):\n    return n *",
            _SOLVED * 2 + "The possible values are 1, 2,",
            _SOLVED * 2 + "Therefo",
        ),
        (
            _SOLVED * 2 + "So a = 19 and b = 12",
            _SOLVED * 2 + "Hope this helps :)",
            _SOLVED * 2 + "**b = 12**",
            _SOLVED * 2 + "\\[ b = 12 \\]",
            _SOLVED * 2 + "Q.E.D",
            _SOLVED * 2 + "\n\n1. a = 19\n2. b = 12",
            "```python\nprint(12)\n```",
        ),
    ),
    "language_mixing": Cases(
        "response",
        (
            "We add the numbers, \u7136\u540e divide by two.",
            "The result is \u0442\u0440\u0438 apples.",
            "So a = 19. \u7b54\u6848\u662f 19.",
            "Let us check. Wir haben also eine Summe, die nicht mit der ersten ist.",
            "Entonces tenemos que sumar los dos numeros para luego dividir con dos. So it is 4.",
            "The number \u0633\u062a\u0629 is even.",
        ),
        (
            "The word d\u00e9j\u00e0 vu and the na\u00efve Schr\u00f6dinger equation are fine.",
            "Use \u0394x = 3 \u03bcm and \u03a9 = 5.",
            "`print('\u4f60\u597d')` prints a greeting in Chinese.",
            "The answer is 5 \u20ac, that is \u00a34.",
            "In $\\text{\u65e5\u672c}$ notation it is 3.",
            "Et al. and i.e. are Latin; de facto, this is a must.",
        ),
    ),
}
