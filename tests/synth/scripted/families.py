"""The questions that the scripted author can pose: one family or more in each of twelve domains.

A family is a question with numbers in it, in several wordings, the lines of a program that sets
`result`, and, written apart from these, the truth.
"""

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product
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

    @property
    def takes_steps(self) -> bool:
        """Whether its result is an integer that further steps can go on with."""
        is_number = self.digits is None and not self.unit
        return is_number and self.domain not in ("programming", _MCQ)


_MCQ = "security_and_safety"


def _paths(v: Values) -> int:
    return math.comb(v["a"] + v["b"], v["a"])


def _dice(v: Values) -> Fraction:
    rolls = product(range(1, 7), repeat=v["a"])
    return Fraction(sum(sum(roll) == v["b"] for roll in rolls), 6 ** v["a"])


def _knapsack(v: Values) -> int:
    items = [(v["a"], v["b"]), (v["c"], v["d"]), (v["e"], v["f"])]
    kept = [
        [item for item, k in zip(items, bits, strict=True) if k]
        for bits in product((0, 1), repeat=3)
    ]
    return max(sum(p for _, p in one) for one in kept if sum(w for w, _ in one) <= v["g"])


def _loop_output(v: Values) -> str:
    return "\n".join(str(v["a"] * n % v["b"]) for n in range(1, v["c"] + 1))


def _subnet(v: Values) -> str:
    hosts = 2 ** (32 - v["a"]) - 2
    options = {"A": hosts + 2, "B": hosts + 1, "C": hosts, "D": hosts // 2}
    return next(letter for letter, count in options.items() if count == hosts)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="product", domain="advanced_math",
        wordings=("What is {a} * {b}?", "Compute the product of {a} and {b}."),
        ranges={"a": (12, 99), "b": (12, 99)},
        program="a, b = {a}, {b}\nresult = a * b",
        truth=lambda v: v["a"] * v["b"],
    ),
    Family(
        name="series", domain="advanced_math",
        wordings=(
            "Find the sum of the first {n} terms of the arithmetic sequence that starts at {a} and "
            "has common difference {d}.",
            "An arithmetic progression has first term {a} and common difference {d}. Determine the "
            "sum of its first {n} terms.",
        ),
        ranges={"n": (8, 60), "a": (-20, 40), "d": (2, 15)},
        program="n, a, d = {n}, {a}, {d}\nresult = sum(a + k * d for k in range(n))",
        truth=lambda v: v["n"] * (2 * v["a"] + (v["n"] - 1) * v["d"]) // 2,
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
            "How far, in m, does a train travelling at {v} m/s go before it stops, if it slows "
            "down steadily by {a} m/s^2? Give two decimals.",
        ),
        ranges={"v": (11, 59), "a": (2, 9)},
        program="v, a = {v}, {a}\nresult = round(v**2 / (2 * a), 2)",
        truth=lambda v: Fraction(v["v"] ** 2, 2 * v["a"]),
        wrong=("(2 * a)", "a"),
    ),
    Family(
        name="dilution", domain="chemistry", unit="mL", digits=2,
        wordings=(
            "What volume in mL of a {c} mmol/L stock solution is needed to prepare {v} mL of a "
            "solution of {d} mmol/L? Round to two decimals.",
        ),
        ranges={"c": (120, 990), "v": (50, 900), "d": (3, 99)},
        program="c, v, d = {c}, {v}, {d}\nresult = round(d * v / c, 2)",
        truth=lambda v: Fraction(v["d"] * v["v"], v["c"]),
        wrong=("d * v / c", "c * v / d"),
    ),
    Family(
        name="codons", domain="computational_biology",
        wordings=(
            "A coding sequence has {n} nucleotides, the stop codon included, and {k} of its codons "
            "are lost by a deletion in frame. How many amino acids does the protein have?",
        ),
        ranges={"n": (100, 400), "k": (2, 20)},
        program="n, k = 3 * ({n} // 3), {k}\nresult = n // 3 - k - 1",
        truth=lambda v: v["n"] // 3 - v["k"] - 1,
    ),
    Family(
        name="compound", domain="finance", digits=2,
        wordings=(
            "A deposit of {p} dollars earns {r} percent a year, compounded yearly. What is it "
            "worth, in dollars, after {n} years? Round to cents.",
            "You invest {p} dollars at {r} percent annual interest with yearly compounding. How "
            "many dollars do you have after {n} years, rounded to cents?",
        ),
        ranges={"p": (500, 9000), "r": (2, 11), "n": (2, 12)},
        program="p, r, n = {p}, {r}, {n}\nresult = round(p * (1 + r / 100)**n, 2)",
        truth=lambda v: v["p"] * (1 + Fraction(v["r"], 100)) ** v["n"],
        wrong=("(1 + r / 100)**n", "(1 + n * r / 100)"),
    ),
    Family(
        name="dice", domain="game", digits=4,
        wordings=(
            "You roll {a} fair dice with six sides. What is the probability that they sum to {b}? "
            "Round to four decimals.",
        ),
        ranges={"a": (2, 4), "b": (6, 14)},
        program=(
            "from itertools import product\nrolls = list(product(range(1, 7), repeat={a}))\n"
            "result = round(sum(sum(r) == {b} for r in rolls) / len(rolls), 4)"
        ),
        truth=_dice,
        wrong=("== {b}", "<= {b}"),
    ),
    Family(
        name="lattice", domain="graph_discrete_math",
        wordings=(
            "How many shortest paths lead from one corner of a grid graph of {a} by {b} unit "
            "squares to the opposite corner?",
            "In a rectangular lattice {a} steps wide and {b} steps high, count the monotone paths "
            "between opposite corners.",
        ),
        ranges={"a": (3, 14), "b": (3, 14)},
        program=(
            "a, b = {a}, {b}\npaths = [1] * (b + 1)\nfor _ in range(a):\n"
            "    for j in range(1, b + 1):\n        paths[j] += paths[j - 1]\nresult = paths[b]"
        ),
        truth=_paths,
        wrong=("range(a)", "range(a - 1)"),
    ),
    Family(
        name="handshakes", domain="graph_discrete_math",
        wordings=(
            "A complete graph has {n} vertices, and {k} of its edges are removed. How many edges "
            "remain?",
        ),
        ranges={"n": (8, 80), "k": (2, 27)},
        program="n, k = {n}, {k}\nresult = n * (n - 1) // 2 - k",
        truth=lambda v: math.comb(v["n"], 2) - v["k"],
        wrong=("// 2", ""),
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
        name="knapsack", domain="mathematical_programming",
        wordings=(
            "Three projects cost {a}, {c} and {e} and return {b}, {d} and {f}. Each can be done "
            "once, and the budget is {g}. What is the largest total return?",
        ),
        ranges={name: (11, 60) for name in "abcdef"} | {"g": (61, 130)},
        program=(
            "from itertools import combinations\nitems = [({a}, {b}), ({c}, {d}), ({e}, {f})]\n"
            "result = max(sum(p for _, p in s) for k in range(4) for s in combinations(items, k)\n"
            "             if sum(w for w, _ in s) <= {g})"
        ),
        truth=_knapsack,
        wrong=("result = max", "result = min"),
    ),
    Family(
        name="infusion", domain="medicine", unit="mL/h", digits=2,
        wordings=(
            "A patient who weighs {w} kg is to receive {d} micrograms per kg and hour from a "
            "solution of {c} micrograms per mL. At how many mL/h is the pump set? Round "
            "to two decimals.",
        ),
        ranges={"w": (41, 119), "d": (3, 30), "c": (7, 160)},
        program="w, d, c = {w}, {d}, {c}\nresult = round(w * d / c, 2)",
        truth=lambda v: Fraction(v["w"] * v["d"], v["c"]),
        wrong=("w * d / c", "w * c / d"),
    ),
    Family(
        name="subnet", domain=_MCQ,
        wordings=(
            "A firewall rule covers an IPv4 subnet with a prefix of {a} bits for {b} departments. "
            "How many hosts can the subnet address? A) 2^(32-p)  B) 2^(32-p)-1  C) 2^(32-p)-2  "
            "D) (2^(32-p)-2)//2, where p is the length of the prefix.",
        ),
        ranges={"a": (17, 29), "b": (2, 900)},
        program=(
            "p = {a}\nhosts = 2**(32 - p) - 2\n"
            "counts = [2**(32 - p), 2**(32 - p) - 1, 2**(32 - p) - 2, (2**(32 - p) - 2) // 2]\n"
            "options = dict(zip('ABCD', counts))\n"
            "result = next(k for k, v in options.items() if v == hosts)"
        ),
        truth=_subnet,
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
        truth=_loop_output,
        wrong=("range(1, {c} + 1)", "range(1, {c})"),
    ),
)  # fmt: skip

BY_DOMAIN: dict[str, list[Family]] = {}
for _family in FAMILIES:
    BY_DOMAIN.setdefault(_family.domain, []).append(_family)
