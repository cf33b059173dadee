"""Corpora with planted defects, made without the filters' rules, and clean records that look alike.

Clean records are word problems, formulas and short solutions from templates with drawn names,
things and numbers. Each defect is planted in several ways, hard ones included, and beside it stand
*decoys*: sound records with the same surface (a list inside one question, a bracketed number, the
word "true"). Precision on decoys is what a filter is worth; clean records alone would flatter it.
"""

import random
import re
from collections.abc import Callable, Mapping
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
    """A defect, how it is planted, and sound records that resemble it."""

    filter: str  # the stage that is to find it
    defect: Callable[[random.Random], Record]
    decoy: Callable[[random.Random], Record]


def planted() -> Mapping[str, Planted]:
    """All defects by name."""
    return {
        "incomplete": Planted("incomplete", _incomplete, _looks_incomplete),
        "multi_part": Planted("multi_part", _multi_part, _looks_multi_part),
        "multiple_choice": Planted("multiple_choice", _choice, _looks_like_choice),
        "true_false": Planted("true_false", _true_false, _looks_true_false),
        "external": Planted("external", _external, _looks_external),
        "conceptual": Planted("conceptual", _conceptual, _looks_conceptual),
        "repetition": Planted("repetition", _repetition, _looks_repetitive),
        "truncation": Planted("truncation", _truncation, _looks_truncated),
        "language_mixing": Planted("language_mixing", _mixed, _looks_mixed),
        "form": Planted("form", _form, _looks_formed),
        "balanced_outcomes": Planted("balanced_outcomes", _unbalanced, _balanced),
        "pass_rate": Planted("pass_rate", _too_easy, _solved_often),
        "majority_vote": Planted("majority_vote", _wrong_gold, _right_gold),
    }


# ---- prompts


def _asked(rng: random.Random, *texts: str) -> Record:
    return {"prompt": rng.choice(texts)}


def _incomplete(rng: random.Random) -> Record:
    text = prompt(rng)
    words = text.split()
    kind = rng.randrange(6)
    if kind == 0:  # cut in the middle, wherever that is
        return {"prompt": " ".join(words[: len(words) // 2])}
    if kind == 1:
        return {
            "prompt": f"In the diagram, AB = {rng.randint(2, 9)} and CD is a chord as shown. "
            + text
        }
    if kind == 2:
        return {"prompt": "Using your result from question 3, " + text[0].lower() + text[1:]}
    if kind == 3:
        return {"prompt": text.replace("the", "t\ufffd\ufffd", 3)}
    if kind == 4:
        return {"prompt": text[: text.rfind(" ")] + " $\\frac{" + str(rng.randint(2, 9))}
    return {"prompt": rng.choice(("Solve.", "x = ?", "See attached.", "Problem 7"))}


def _looks_incomplete(rng: random.Random) -> Record:
    a = rng.randint(2, 50)
    return _asked(
        rng,
        f"Find the next term of the sequence {a}, {a * 2}, {a * 4}, ...",
        f"Express the area of a square of diagonal {a}d in terms of d",
        f"A map is drawn at 1:{a}000. How long is a road of {a} km on it?",
        f"For which x is [x, {a}) a subset of (0, {a + 5}]? Give the least such integer.",
        f"A picture frame is {a} cm wide and twice as high. What is its area?",
        f"A ticket costs $ {a}. How much do {a + 3} tickets cost in dollars?",
    )


def _multi_part(rng: random.Random) -> Record:
    first, second = prompt(rng), prompt(rng)
    return _asked(
        rng,
        f"(a) {first}\n(b) {second}",
        f"{first} (i) Give the value. (ii) State for which inputs it changes.",
        f"{first} Also find the least value for which this fails.",
        f"1. {first}\n2. {second}\n3. {prompt(rng)}",
        f"{first} {second}",
        f"{first} What would it be for twice the amount?",
        f"Part A: {first} Part B: {second}",
        f"{first} Justify each step, and then compute the same for n + 1.",
    )


def _looks_multi_part(rng: random.Random) -> Record:
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    return _asked(
        rng,
        f"A set S satisfies: (1) {a} is in S; (2) if n is in S then n + {b} is in S. How "
        f"many elements of S lie below {a * b}?",
        f"Find all pairs (a) of reals with a^2 = {a}, and give their sum.",
        f"The machine obeys these rules: (i) it halts on {a}; (ii) it doubles every odd "
        f"input; (iii) it halves even ones. How many steps does it take from {b}?",
        f"What is the least n such that both n > {a} and n divides {a * b}?",
        f"Ivo asks himself 'why {a}?' and adds {b}. What number does he get?",
        f"Compute f({a}) + f({b}), where f(x) = x^2 if x is even and f(x) = x otherwise.",
    )


def _choice(rng: random.Random) -> Record:
    text, options = prompt(rng), rng.sample(range(2, 300), 5)
    return _asked(
        rng,
        text + "".join(f"\n({letter}) {n}" for letter, n in zip("ABCDE", options, strict=True)),
        text + "".join(f" {letter}. {n}" for letter, n in zip("ABCD", options, strict=False)),
        text + "".join(f"\n{letter}) {n}" for letter, n in zip("abcd", options, strict=False)),
        text + f" Which of these is right: {options[0]}, {options[1]} or {options[2]}?",
        f"Which of the following numbers is prime? {options}",
        text + "\nOptions:\n- " + "\n- ".join(map(str, options[:4])),
        text + " $\\textbf{(A)}\\ 3 \\qquad \\textbf{(B)}\\ 4 \\qquad \\textbf{(C)}\\ 5$",
    )


def _looks_like_choice(rng: random.Random) -> Record:
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    return _asked(
        rng,
        f"Points A. and B. lie {a} cm apart. How far is the midpoint from B?",
        f"Committee (A) has {a} members and committee (B) has {b}. In how many ways can "
        "one choose a pair with one member of each?",
        f"Pick {a} cards from a deck of {a + b}. How many outcomes are there?",
        f"In quadrilateral ABCD, angle A is {a} degrees and the others are equal. Find B.",
        f"How many of the numbers {a}, {b}, {a + b} and {a * b} are even?",
        f"A student may choose an answer at random among {a}. What is the chance that it is right?",
    )


def _true_false(rng: random.Random) -> Record:
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    yes = rng.choice(("True", "False"))
    return rng.choice(
        (
            {"prompt": f"True or false: {a} divides {a * b}.", "gold": yes},
            {"prompt": f"Is {a * b + 1} a prime number?", "gold": rng.choice(("Yes", "No"))},
            {"prompt": f"Does the series of 1/n^{a} converge?", "gold": rng.choice(("yes", "no"))},
            {"prompt": f"State whether the claim '{a} is odd' holds. (T/F)", "gold": yes[0]},
            {"prompt": f"The graph K_{a} is planar. Correct or incorrect?", "gold": "Incorrect"},
            {"prompt": f"Determine if every group of order {a} is abelian.", "gold": "\\text{No}"},
            {"prompt": f"Decide whether x^2 + {a} has a real root. Answer yes or no."},
        )
    )


def _looks_true_false(rng: random.Random) -> Record:
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    return rng.choice(
        (
            {"prompt": f"For how many n below {a} is it true that n^2 + n + 41 is prime?",
             "gold": str(a)},
            {"prompt": f"A test has {a} true/false questions. How many answer sheets are there?",
             "gold": str(2**a)},
            {"prompt": f"Of {a} knights who tell the truth and {b} liars, how many say 'yes'?",
             "gold": str(a)},
            {"prompt": f"Determine whether {a} or {b} is nearer to {a + b}; give that number.",
             "gold": str(max(a, b))},
            {"prompt": f"Find the least n for which the inequality n^2 > {a} holds.", "gold": "8"},
        )
    )  # fmt: skip


def _external(rng: random.Random) -> Record:
    text = prompt(rng)
    word = "".join(rng.choices(_SYLLABLES, k=3))
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    return _asked(
        rng,
        f"{text} (source: https://{word}.org/q?id={a})",
        f"{text} See www.{word}.edu/notes for the definitions.",
        f"{text} More at {word}.com/problems.",
        f"<p>{text}</p><br/>",
        text.replace(" and ", " <b>and</b> ", 1) + "<span style='x'>!</span>",
        f"| x | f(x) |\n|---|---|\n| {a} | {b} |\n{text}",
        f"\\begin{{tabular}}{{cc}} {a} & {b} \\\\ \\end{{tabular}} {text}",
        f"{text} ![figure](img_{a}.png)",
        f"{text}&nbsp;&nbsp;",
        f"Year\tSales\n2001\t{a}\n2002\t{b}\n{text}",
    )


def _looks_external(rng: random.Random) -> Record:
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    return _asked(
        rng,
        f"How many integers satisfy {a}<x and x<{a + b}, where x>{a + 1}?",
        f"Find P(A|B) if P(A) = 1/{a}, P(B) = 1/{b} and the events are independent.",
        f"Evaluate |x - {a}| + |x + {b}| at x = {a}.|",
        f"A table seats {a} people and {b} tables are set. How many people can sit?",
        f"Ada v. Bo: Ada runs {a} m/s, i.e. faster by {b} percent. How fast is Bo?",
        f"Let <G> be generated by {a} in Z_{a * b}. What is the order of <G>?",
        f"A web page loads in {a} ms over HTTP and {b} ms from a cache. What is the ratio?",
    )


def _conceptual(rng: random.Random) -> Record:
    word = rng.choice(("entropy", "a group", "photosynthesis", "inflation", "recursion", "a limit"))
    a = rng.randint(2, 50)
    return _asked(
        rng,
        f"Explain in your own words what {word} is and why it matters.",
        f"What is meant by {word}?",
        f"Discuss the role of {word} in modern science.",
        f"Prove that n^{a} - n is even for every integer n.",
        f"Show that the sum of {a} consecutive odd numbers is a square.",
        f"Describe the difference between {word} and its opposite.",
        f"Write a short essay on {word}.",
        f"Why do we need {word}?",
    )


def _looks_conceptual(rng: random.Random) -> Record:
    a = rng.randint(2, 50)
    return _asked(
        rng,
        f"It can be proved that n^2 + n is even. What is the parity of {a}^2 + {a} + 1?",
        f"The show starts at {a % 12 + 1} pm and lasts {a} minutes. When does it end?",
        f"Define f(n) = n + {a}. What is f(f({a}))?",
        f"A describing function has gain {a} at 1 Hz and half of it at 2 Hz. Find the sum of both.",
    )


# ---- responses


def _repetition(rng: random.Random) -> Record:
    text = response(rng)
    sentence = f"So the value {rng.randint(2, 99)} must be checked again. "
    words = text.split()
    stutter = " ".join(words[-3:])
    body = rng.choice(
        (
            text + " " + sentence * rng.randint(5, 20),
            text + " " + (stutter + " ") * rng.randint(8, 30),
            (text + "\n") * rng.randint(3, 6),
            text + " 1" * 200,
            "".join(f"Step: {sentence}{response(rng, sentences=1)}\n{text}\n" for _ in range(4)),
            text + " " + "".join(f"Case {i}: the same holds as before. " for i in range(25)),
        )
    )
    return {"prompt": prompt(rng), "response": body}


def _looks_repetitive(rng: random.Random) -> Record:
    table = "".join(f"f({i}) = {rng.randint(2, 999)}, " for i in range(20))
    body = rng.choice(
        (
            response(rng, sentences=8) + " " + response(rng, sentences=8),
            f"We list the values: {table} and add them. " + response(rng),
            "First case. " + response(rng) + "\n\nSecond case. " + response(rng),
            "No, no, no. " + response(rng),
            "0.33333333 and 1 1 1 1 are the two codes. " + response(rng),
        )
    )
    return {"prompt": prompt(rng), "response": body}


def _truncation(rng: random.Random) -> Record:
    text = response(rng, sentences=8)
    words = text.split()
    cut = rng.randint(len(words) // 2, len(words) - 2)
    kind = rng.randrange(5)
    if kind == 0:
        return {"prompt": prompt(rng), "response": " ".join(words[:cut])}
    if kind == 1:
        return {"prompt": prompt(rng), "response": text, "finish_reason": "length"}
    if kind == 2:
        return {"prompt": prompt(rng), "response": "<think>" + text}
    if kind == 3:
        return {"prompt": prompt(rng), "response": text + "\n```python\nprint(1)\n"}
    return {"prompt": prompt(rng), "response": text[: text.rfind("}")]}


def _looks_truncated(rng: random.Random) -> Record:
    text = response(rng, sentences=8)
    tail = rng.choice(
        (
            "\n\nAnswer: 42",
            "\n\n$$x = 3$$",
            "\n```python\nprint(1)\n```",
            "\n\n- one\n- two\n- three",
            "\n\nHence the claim \u25a0",
            "\n\n**Final answer: 7**",
            "\n\nThe final answer is 12 cm",
        )
    )
    return {"prompt": prompt(rng), "response": text + tail}


def _mixed(rng: random.Random) -> Record:
    words = response(rng).split()
    foreign = rng.choice(
        (
            "\u6240\u4ee5\u7b54\u6848\u662f",
            "\u043f\u043e\u044d\u0442\u043e\u043c\u0443",
            "\uadf8\ub798\uc11c",
            "\u0644\u0630\u0644\u0643",
            "\u3057\u305f\u304c\u3063\u3066",
            "donc la r\u00e9ponse est bien celle que nous cherchons",
        )
    )
    words.insert(rng.randrange(3, len(words)), foreign)
    return {"prompt": prompt(rng), "response": " ".join(words)}


def _looks_mixed(rng: random.Random) -> Record:
    text = response(rng)
    return rng.choice(
        (
            {"prompt": prompt(rng), "response": text + " With \u03b1 + \u03b2 = \u03c0 it holds."},
            {"prompt": prompt(rng), "response": text + " Poincar\u00e9 and G\u00f6del knew it."},
            {"prompt": "\u4e00\u52a0\u4e00\u7b49\u4e8e\u591a\u5c11\uff1f",
             "response": "\u56e0\u4e3a 1 + 1 = 2\uff0c\u6240\u4ee5\u7b54\u6848\u662f 2\u3002"},
            {"prompt": "How does one write 'cat' in Chinese, \u732b or \u72d7?",
             "response": "One writes \u732b. The other sign means dog."},
            {"prompt": prompt(rng), "response": text + " For x \u2208 \u211d, x^2 \u2265 0."},
        )
    )  # fmt: skip


def _form(rng: random.Random) -> Record:
    text = response(rng)
    body = rng.choice(
        (
            text + "</think> " + text,
            "<think>" + text + "</think>" + text,
            "<longcat_think>x</longcat_think>" + text,
            text + " <answer>3</answer>",
            text + ' <tool_call>{"name": "f"}</tool_call>',
            "[THINKING] " + text,
        )
    )
    return {"prompt": prompt(rng), "response": body}


def _looks_formed(rng: random.Random) -> Record:
    text = response(rng)
    tail = rng.choice((" For x < y > z.", " I think so.", " <x, y> = 0.", " The answer: 3."))
    return {"prompt": prompt(rng), "response": text + tail}


# ---- outcomes


def _unbalanced(rng: random.Random) -> Record:
    num = rng.choice((8, 16))
    right = rng.choice((0, num, 1))
    return {"prompt": prompt(rng), "outcomes": _shuffled(rng, right, num)}


def _balanced(rng: random.Random) -> Record:
    return {"prompt": prompt(rng), "outcomes": [*_shuffled(rng, rng.randint(2, 6), 8), None, None]}


def _too_easy(rng: random.Random) -> Record:
    return {"prompt": prompt(rng), "outcomes": _shuffled(rng, 16, 16) + [None] * rng.randint(0, 4)}


def _solved_often(rng: random.Random) -> Record:
    return {"prompt": prompt(rng), "outcomes": _shuffled(rng, rng.randint(0, 14), 16)}


def _shuffled(rng: random.Random, right: int, num: int) -> list[bool | None]:
    found: list[bool | None] = [i < right for i in range(num)]
    rng.shuffle(found)
    return found


def _wrong_gold(rng: random.Random) -> Record:
    """Six of eight models agree on what is right, and the gold is another."""
    a = rng.randint(2, 500)
    wrong = rng.choice((str(a + rng.randint(1, 9)), f"-{a}", f"{a}0", f"\\frac{{{a}}}{{7}}"))
    return {"prompt": prompt(rng), "gold": wrong, "answers": _votes(rng, a)}


def _right_gold(rng: random.Random) -> Record:
    """The gold is right, in another form than most answers."""
    a = rng.randint(2, 500)
    gold = rng.choice((str(a), f"{a}.0", f"\\frac{{{2 * a}}}{{2}}", f"${a}$", f"x = {a}"))
    return {"prompt": prompt(rng), "gold": gold, "answers": _votes(rng, a)}


def _votes(rng: random.Random, a: int) -> list[str]:
    forms = (f"{a}", f"{a}.", f"${a}$", f"{a}.0", f"\\boxed{{{a}}}")
    answers = [rng.choice(forms) for _ in range(6)] + [str(a + 11), str(a + 12)]
    rng.shuffle(answers)
    return answers


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
