"""The questions that the scripted author can pose: a family with its values.

A family is a question with numbers in it, the lines of a program that sets `result`, and, written
apart from these, the truth. Any role can read a question of ours back from its text, so judge and
solver know the truth where there is one. A text that does not read back is underspecified, tampered
with, or somebody else's.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Values = Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    name: str
    domain: str
    wordings: tuple[str, ...]  # each holds `{a}` for every value
    ranges: Mapping[str, tuple[int, int]]  # smallest and largest of each value
    program: str  # sets `result`; `{a}` as in the wordings
    truth: Callable[[Values], Any]  # an int, a Fraction (of decimals), or a text
    unit: str = ""
    digits: int | None = None  # decimals that the question asks for
    wrong: tuple[str, str] = ("result = ", "result = 1 + ")  # a wrong program, by replacement

    def draw(self, rng: random.Random) -> dict[str, int]:
        return {name: rng.randint(low, high) for name, (low, high) in self.ranges.items()}


FAMILIES: tuple[Family, ...] = (
    Family(
        name="product", domain="advanced_math",
        wordings=("What is {a} * {b}?", "Compute the product of {a} and {b}."),
        ranges={"a": (12, 99), "b": (12, 99)},
        program="a, b = {a}, {b}\nresult = a * b",
        truth=lambda v: v["a"] * v["b"],
    ),
    Family(
        name="residue", domain="advanced_math",
        wordings=(
            "Find the remainder when {a}^{b} is divided by {m}.",
            "What is the least non-negative residue of {a}^{b} modulo {m}?",
        ),
        ranges={"a": (3, 60), "b": (20, 90), "m": (37, 499)},
        program="result = 1\nfor _ in range({b}):\n    result = result * {a} % {m}",
        truth=lambda v: pow(v["a"], v["b"], v["m"]),
        wrong=("% {m}", "% ({m} + 1)"),
    ),
    Family(
        name="braking", domain="advanced_physics", unit="m", digits=2,
        wordings=(
            "A car that moves at {v} m/s brakes at a constant {a} m/s^2. What distance in m does "
            "it cover until it stands? Round to two decimals.",
        ),
        ranges={"v": (11, 59), "a": (2, 9)},
        program="v, a = {v}, {a}\nresult = round(v**2 / (2 * a), 2)",
        truth=lambda v: Fraction(v["v"] ** 2, 2 * v["a"]),
        wrong=("(2 * a)", "a"),
    ),
    Family(
        name="compound", domain="finance", digits=2,
        wordings=(
            "A deposit of {p} dollars earns {r} percent a year, compounded yearly. What is it "
            "worth, in dollars, after {n} years? Round to cents.",
        ),
        ranges={"p": (500, 9000), "r": (2, 11), "n": (2, 12)},
        program="p, r, n = {p}, {r}, {n}\nresult = round(p * (1 + r / 100)**n, 2)",
        truth=lambda v: v["p"] * (1 + Fraction(v["r"], 100)) ** v["n"],
        wrong=("(1 + r / 100)**n", "(1 + n * r / 100)"),
    ),
    Family(
        name="queue", domain="logic",
        wordings=(
            "{n} people stand in a row. Ann has {a} people before her, and Ben has {b} people "
            "behind him. Ben stands behind Ann. How many people stand between Ann and Ben?",
        ),
        ranges={"n": (40, 90), "a": (3, 17), "b": (3, 17)},
        program=(
            "n, a, b = {n}, {a}, {b}\nrow = list(range(n))\n"
            "result = row.index(n - 1 - b) - row.index(a) - 1"
        ),
        truth=lambda v: v["n"] - v["a"] - v["b"] - 2,
        wrong=("- 1 - b", "- b"),
    ),
    Family(
        name="hosts", domain="security_and_safety",
        wordings=(
            "A firewall rule covers an IPv4 subnet with a prefix of {a} bits for {b} departments. "
            "How many hosts can the subnet address? A) 2^(32-p)  B) 2^(32-p)-1  C) 2^(32-p)-2  "
            "D) (2^(32-p)-2)//2, where p is the length of the prefix.",
        ),
        ranges={"a": (17, 29), "b": (2, 900)},
        program=(
            "p = {a}\nhosts = 2**(32 - p) - 2\n"
            "result = 'ABC'[[2**(32 - p) - k for k in range(3)].index(hosts)]"
        ),
        truth=lambda _: "C",
        wrong=("hosts = 2**(32 - p) - 2", "hosts = 2**(32 - p) - 1"),
    ),
    Family(
        name="loop", domain="programming",
        wordings=(
            "What does this program print?\n\nfor n in range(1, {c} + 1):\n"
            "    print({a} * n % {b})",
        ),
        ranges={"a": (7, 99), "b": (11, 60), "c": (3, 9)},
        program="result = chr(10).join(str({a} * n % {b}) for n in range(1, {c} + 1))",
        truth=lambda v: "\n".join(str(v["a"] * n % v["b"]) for n in range(1, v["c"] + 1)),
        wrong=("range(1, {c} + 1)", "range(1, {c})"),
    ),
)  # fmt: skip
PERSONA = "A teacher writes on the board: "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Puzzle:
    family: Family
    values: Values
    wording: int = 0
    persona: str = ""

    @property
    def question(self) -> str:
        return self.persona + self.family.wordings[self.wording].format(**self.values)

    @property
    def truth(self) -> str:
        value = self.family.truth(self.values)
        if self.family.digits is None:
            return str(value)
        scale = 10**self.family.digits
        rounded = Fraction(round(Fraction(value) * scale), scale)
        return f"{float(rounded)} {self.family.unit}".strip()

    def program(self, *, is_wrong: bool = False) -> str:
        """A program that prints the answer, or, by the family's own mistake, another."""
        text = self.family.program
        if is_wrong:
            text = text.replace(*self.family.wrong)
        shown = f'f"{{result}} {self.family.unit}"' if self.family.unit else "result"
        return f"{text.format(**self.values)}\nprint({shown})"


def draw(domain: str, rng: random.Random) -> Puzzle:
    """A puzzle of this domain; of maths where the domain has none."""
    own = [family for family in FAMILIES if family.domain == domain]
    family = rng.choice(own or FAMILIES[:2])
    return Puzzle(
        family=family, values=family.draw(rng), wording=rng.randrange(len(family.wordings))
    )


def redrawn(puzzle: Puzzle, rng: random.Random) -> Puzzle:
    return dataclasses.replace(puzzle, values=puzzle.family.draw(rng))


def read(question: str) -> Puzzle | None:
    """The puzzle a text poses, if it is exactly one of ours."""
    text = question.strip().removeprefix(PERSONA)
    persona = PERSONA if question.strip() != text else ""
    for family in FAMILIES:
        for index in range(len(family.wordings)):
            if match := _pattern(family.wordings[index]).fullmatch(text):
                values = {name: int(value) for name, value in match.groupdict().items()}
                return Puzzle(family=family, values=values, wording=index, persona=persona)
    return None


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>-?\\d+)", re.escape(template)))
