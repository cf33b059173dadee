"""Corpora with planted defects, made without the filters' rules, and clean records that look alike.

Clean records are word problems, formulas and short solutions from templates with drawn names,
things and numbers. Each defect is planted in several ways, hard ones included, and beside it stand
*decoys*: sound records with the same surface (a list inside one question, a bracketed number, the
word "true"). Precision on decoys is what a filter is worth; clean records alone would flatter it.
"""

import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

Record = dict[str, Any]

_NAMES, _THINGS, _PLACES = (
    re.findall(r"\w+", words)
    for words in (
        "Ada Bo Chen Dina Emeka Farid Grace Hana Ivo Juno Kofi Lena Mira Nils Oya Priya",
        "apples coins marbles books tickets stamps bricks shells candles boxes ropes tiles",
        "market harbour school garden station library bakery workshop museum farm",
    )
)
_SYLLABLES = tuple(re.findall(r"..", "bacedifoguhakelimonuparesitovuwayezo"))


def prompt(rng: random.Random) -> str:
    """A sound question with one answer, of 20 to 60 words.

    Invented words stand among them, so that two questions of a template share as
    little as two of a varied corpus do.
    """
    a, b, c = (rng.randint(2, 97) for _ in range(3))
    name, other = rng.sample(_NAMES, 2)
    thing, place = rng.choice(_THINGS), rng.choice(_PLACES)
    word = "".join(rng.choices(_SYLLABLES, k=3))
    text = rng.choice(
        (
            f"{name} carries {a} {thing} to the {place} near {word} and meets {other}, who has {b} "
            f"more. After they give {c % 9 + 1} away, how many {thing} do the two have together?",
            f"Let f(x) = {a}x^2 - {b}x + {c} on the reals. Determine the sum of the squares of the "
            f"roots of the equation f(x) = {rng.randint(1, 9)}, counted with multiplicity.",
            f"A {word} machine in the {place} makes {a} {thing} an hour, and a second one {b}. If "
            f"both start at noon, at what time have they made {a * c} {thing}? Give hours and "
            "minutes.",
            f"The sequence starts with {a} and {b}, and each later term is the sum of the two "
            f"before it plus {c}. What is the {rng.randint(5, 15)}th term of this {word} sequence?",
            f"In triangle {word.upper()[:3]} the sides are {a + 60}, {b + 60} and {c + 60}. Find "
            "the radius of its inscribed circle, as a fraction in lowest terms or a surd.",
            f"How many integers n with {a} <= n <= {a * 100 + b} leave the remainder {c % 7} when "
            f"they are divided by {c % 7 + 4}, but are no multiple of {b}? ({word} contest)",
        )
    )  # fmt: skip
    return _varied(text, rng)


def _varied(text: str, rng: random.Random) -> str:
    found = []
    for word in text.split(" "):
        plain = word.rstrip(".,?")
        if len(plain) >= 4 and plain.isalpha() and plain.islower() and rng.random() < 0.7:
            found.append("".join(rng.choices(_SYLLABLES, k=rng.randint(2, 3))))
        found.append(word)
    return " ".join(found)


def response(rng: random.Random, *, sentences: int = 6) -> str:
    """A short solution in prose and formulas, which ends."""
    word = "".join(rng.choices(_SYLLABLES, k=2))
    parts = [
        f"We write {word} = {rng.randint(2, 99)} and look for the total.",
        f"Since {rng.randint(2, 9)} * {rng.randint(2, 99)} is even, the case n = 1 is excluded.",
        f"Substituting gives $x^2 - {rng.randint(2, 40)}x + {rng.randint(2, 40)} = 0$.",
        f"The {rng.choice(_THINGS)} of {rng.choice(_NAMES)} are therefore {rng.randint(3, 400)}.",
        f"Wait, let me check the bound {rng.randint(2, 99)} once more before going on.",
        f"Each of the {rng.randint(2, 30)} pairs counts once, by the symmetry of the {word}.",
        f"Dividing both sides by {rng.randint(2, 30)} leaves the claim about the {word}.",
        f"An example is {rng.randint(2, 99)}, for which both conditions hold.",
    ]
    rng.shuffle(parts)
    return " ".join(parts[:sentences]) + f" The answer is \\boxed{{{rng.randint(1, 999)}}}."


class Planted(NamedTuple):
    """Ways to plant a defect, and sound records that resemble it: templates, or of a drawn text.

    In templates `{text}` and `{other}` are drawn texts, `{a}`, `{b}` numbers, `{word}` is invented.
    """

    defects: tuple[Any, ...]
    decoys: tuple[Any, ...]
    key: str = "prompt"

    def draw(self, rng: random.Random, *, is_sound: bool) -> Record:
        drawn = prompt if self.key == "prompt" else response
        made = rng.choice(self.decoys if is_sound else self.defects)
        a, b = rng.randint(2, 50), rng.randint(2, 50)
        if callable(made):
            made = made(drawn(rng), rng)
        else:
            word = "".join(rng.choices(_SYLLABLES, k=3))
            made = made.format(text=drawn(rng), other=drawn(rng), a=a, b=b, word=word)
        made = made if isinstance(made, dict) else {self.key: made}
        return {"prompt": prompt(rng)} | made


def _head(text: str, rng: random.Random) -> str:
    """Cut in the middle, wherever that is."""
    words = text.split()
    return " ".join(words[: rng.randint(len(words) // 2, len(words) - 2)])


def _with(text: str, rng: random.Random) -> str:
    """Words of another script or language at one place."""
    words = text.split()
    foreign = rng.choice(
        (
            "\u6240\u4ee5\u7b54\u6848\u662f", "\u043f\u043e\u044d\u0442\u043e\u043c\u0443",
            "\uadf8\ub798\uc11c", "\u0644\u0630\u0644\u0643", "\u3057\u305f\u304c\u3063\u3066",
            "donc la r\u00e9ponse est bien celle que nous cherchons",
        )
    )  # fmt: skip
    words.insert(rng.randrange(3, len(words)), foreign)
    return " ".join(words)


def _judged(text: str, *golds: str) -> Callable[[str, random.Random], Record]:
    return lambda _, rng: {
        "prompt": text.format(a=rng.randint(2, 50), b=rng.randint(2, 50)), "gold": rng.choice(golds)
    }  # fmt: skip


PLANTED: dict[str, Planted] = {
    "incomplete": Planted(
        (
            _head, _head,
            "In the diagram, AB = {a} and CD is a chord as shown. {text}",
            lambda text, _: f"Using your result from question 3, {text[0].lower()}{text[1:]}",
            lambda text, _: text.replace("the", "t\ufffd\ufffd", 3),
            lambda text, rng: f"{text[: text.rfind(' ')]} $\\frac{{{rng.randint(2, 9)}",
            lambda _, rng: rng.choice(("Solve.", "x = ?", "See attached.", "Problem 7")),
        ),
        (
            "Find the next term of the sequence {a}, {a}2, {a}4, ...",
            "Express the area of a square of diagonal {a}d in terms of d",
            "A map is drawn at 1:{a}000. How long is a road of {a} km on it?",
            "For which x is [x, {a}) a subset of (0, {a}5]? Give the least such integer.",
            "A picture frame is {a} cm wide and twice as high. What is its area?",
            "A ticket costs $ {a}. How much do {b} tickets cost in dollars?",
        ),
    ),
    "multi_part": Planted(
        (
            "(a) {text}\n(b) {other}",
            "{text} (i) Give the value. (ii) State for which inputs it changes.",
            "{text} Also find the least value for which this fails.",
            "1. {text}\n2. {other}\n3. {text}",
            "{text} {other}",
            "{text} What would it be for twice the amount?",
            "Part A: {text} Part B: {other}",
            "{text} Justify each step, and then compute the same for n + 1.",
        ),
        (
            "A set S satisfies: (1) {a} is in S; (2) if n is in S then n + {b} is in S. How many "
            "elements of S lie below {a}00?",
            "Find all pairs (a) of reals with a^2 = {a}, and give their sum.",
            "The machine obeys these rules: (i) it halts on {a}; (ii) it doubles every odd input; "
            "(iii) it halves even ones. How many steps does it take from {b}?",
            "What is the least n such that both n > {a} and n divides {b}0?",
            "Ivo asks himself 'why {a}?' and adds {b}. What number does he get?",
            "Compute f({a}) + f({b}), where f(x) = x^2 if x is even and f(x) = x otherwise.",
        ),
    ),
    "multiple_choice": Planted(
        (
            "{text}\n(A) {a}\n(B) {b}\n(C) 1{a}\n(D) 1{b}\n(E) 7",
            "{text} A. {a} B. {b} C. 1{a} D. 1{b}",
            "{text}\na) {a}\nb) {b}\nc) 1{a}\nd) 1{b}",
            "{text} Which of these is right: {a}, {b} or 1{a}?",
            "Which of the following numbers is prime? [{a}, {b}, 1{a}]",
            "{text}\nOptions:\n- {a}\n- {b}\n- 1{a}",
            "{text} $\\textbf{{(A)}}\\ 3 \\qquad \\textbf{{(B)}}\\ 4 \\qquad \\textbf{{(C)}}\\ 5$",
        ),
        (
            "Points A. and B. lie {a} cm apart. How far is the midpoint from B?",
            "Committee (A) has {a} members and committee (B) has {b}. In how many ways can one "
            "choose a pair with one member of each?",
            "Pick {a} cards from a deck of 1{b}. How many outcomes are there?",
            "In quadrilateral ABCD, angle A is {a} degrees and the others are equal. Find B.",
            "How many of the numbers {a}, {b}, 1{a} and 1{b} are even?",
            "A student may choose an answer at random among {a}. What is the chance that it is "
            "right?",
        ),
    ),
    "true_false": Planted(
        (
            _judged("True or false: {a} divides {b}.", "True", "False"),
            _judged("Is {a}1 a prime number?", "Yes", "No"),
            _judged("Does the series of 1/n^{a} converge?", "yes", "no"),
            _judged("State whether the claim '{a} is odd' holds. (T/F)", "T", "F"),
            _judged("The graph K_{a} is planar. Correct or incorrect?", "Incorrect"),
            _judged("Determine if every group of order {a} is abelian.", "\\text{No}"),
            "Decide whether x^2 + {a} has a real root. Answer yes or no.",
        ),
        (
            _judged("For how many n below {a} is it true that n^2 + n + 41 is prime?", "9"),
            _judged("A test has {a} true/false questions. How many answer sheets are there?", "8"),
            _judged("Of {a} knights who tell the truth and {b} liars, how many say 'yes'?", "7"),
            _judged("Determine whether {a} or {b} is nearer to {a}0; give that number.", "12"),
            _judged("Find the least n for which the inequality n^2 > {a} holds.", "8"),
        ),
    ),
    "external": Planted(
        (
            "{text} (source: https://{word}.org/q?id={a})",
            "{text} See www.{word}.edu/notes for the definitions.",
            "{text} More at {word}.com/problems.",
            "<p>{text}</p><br/>",
            lambda text, _: f"{text.replace(' and ', ' <b>and</b> ', 1)}<span style='x'>!</span>",
            "| x | f(x) |\n|---|---|\n| {a} | {b} |\n{text}",
            "\\begin{{tabular}}{{cc}} {a} & {b} \\\\ \\end{{tabular}} {text}",
            "{text} ![figure](img_{a}.png)",
            "{text}&nbsp;&nbsp;",
            "Year\tSales\n2001\t{a}\n2002\t{b}\n{text}",
        ),
        (
            "How many integers satisfy {a}<x and x<1{b}, where x>{a}0?",
            "Find P(A|B) if P(A) = 1/{a}, P(B) = 1/{b} and the events are independent.",
            "Evaluate |x - {a}| + |x + {b}| at x = {a}.|",
            "A table seats {a} people and {b} tables are set. How many people can sit?",
            "Ada v. Bo: Ada runs {a} m/s, i.e. faster by {b} percent. How fast is Bo?",
            "Let <G> be generated by {a} in Z_{a}{b}. What is the order of <G>?",
            "A web page loads in {a} ms over HTTP and {b} ms from a cache. What is the ratio?",
        ),
    ),
    "conceptual": Planted(
        (
            "Explain in your own words what {word} is and why it matters.",
            "What is meant by {word}?",
            "Discuss the role of {word} in modern science.",
            "Prove that n^{a} - n is even for every integer n.",
            "Show that the sum of {a} consecutive odd numbers is a square.",
            "Describe the difference between {word} and its opposite.",
            "Write a short essay on {word}.",
            "Why do we need {word}?",
        ),
        (
            "It can be proved that n^2 + n is even. What is the parity of {a}^2 + {a} + 1?",
            "The show starts at 7 pm and lasts {a} minutes. When does it end?",
            "Define f(n) = n + {a}. What is f(f({a}))?",
            "A describing function has gain {a} at 1 Hz and half of it at 2 Hz. Find the sum of "
            "both.",
        ),
    ),
    "repetition": Planted(
        (
            lambda text, rng: text + " So it must be seen again." * rng.randint(6, 20),
            lambda text, rng: f"{text} {(' '.join(text.split()[-3:]) + ' ') * rng.randint(8, 30)}",
            lambda text, rng: f"{text}\n" * rng.randint(3, 6),
            lambda text, _: text + " 1" * 200,
            lambda text, rng: "".join(
                f"Step: So it must be. {response(rng, sentences=1)}\n{text}\n" for _ in range(4)
            ),
            lambda text, _: text + "".join(f" Case {i}: this holds as before." for i in range(25)),
        ),
        (
            "{text} {other}",
            lambda text, rng: "We list the values: "
            + "".join(f"f({i}) = {rng.randint(2, 999)}, " for i in range(20))
            + f"and add them. {text}",
            "First case. {text}\n\nSecond case. {other}",
            "No, no, no. {text}",
            "0.33333333 and 1 1 1 1 are the two codes. {text}",
        ),
        "response",
    ),
    "truncation": Planted(
        (
            lambda text, rng: _head(response(rng, sentences=8), rng),
            lambda text, _: {"response": text, "finish_reason": "length"},
            "<think>{text}",
            "{text}\n```python\nprint(1)\n",
            lambda text, _: text[: text.rfind("}")],
        ),
        (
            *("{text}\n\nAnswer: 42", "{text}\n\n$$x = 3$$", "{text}\n```python\nprint(1)\n```"),
            *("{text}\n\n- one\n- two\n- three", "{text}\n\nHence the claim \u25a0"),
            *("{text}\n\n**Final answer: 7**", "{text}\n\nThe final answer is 12 cm"),
        ),
        "response",
    ),
    "language_mixing": Planted(
        (_with,),
        (
            "{text} With \u03b1 + \u03b2 = \u03c0 it holds.",
            "{text} Poincar\u00e9 and G\u00f6del knew it.",
            lambda *_: {
                "prompt": "\u4e00\u52a0\u4e00\u7b49\u4e8e\u591a\u5c11\uff1f",
                "response": "\u56e0\u4e3a 1 + 1 = 2\uff0c\u6240\u4ee5\u7b54\u6848\u662f 2\u3002",
            },
            lambda *_: {
                "prompt": "How does one write 'cat' in Chinese, \u732b or \u72d7?",
                "response": "One writes \u732b. The other sign means dog.",
            },
            "{text} For x \u2208 \u211d, x^2 \u2265 0.",
        ),
        "response",
    ),
    "form": Planted(
        (
            *("{text}</think> {text}", "<think>{text}</think>{text}", "[THINKING] {text}"),
            *("<longcat_think>x</longcat_think>{text}", "{text} <answer>3</answer>"),
            '{text} <tool_call>{{"name": "f"}}</tool_call>',
        ),
        (
            *("{text} For x < y > z.", "{text} I think so.", "{text} <x, y> = 0."),
            "{text} The answer: 3.",
        ),
        "response",
    ),
}  # fmt: skip


def edited(text: str, num: int, rng: random.Random) -> str:
    """The text with `num` words replaced, inserted or removed, at places that differ."""
    words = text.split()
    for place in sorted(rng.sample(range(len(words)), min(num, len(words))), reverse=True):
        kind = rng.randrange(3)
        word = "".join(rng.choices(_SYLLABLES, k=3))
        if kind == 0:
            words[place] = word
        elif kind == 1:
            words.insert(place, word)
        else:
            del words[place]
    return " ".join(words)
