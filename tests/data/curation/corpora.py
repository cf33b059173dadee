"""Sound word problems and formulas, and texts with edited words."""

import random
import re

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
