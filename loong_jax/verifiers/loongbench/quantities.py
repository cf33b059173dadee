"""Measured quantities, a number and a unit, as physics and chemistry write them.

Wider than the maths verifier's: a unit nobody knows is a dimension of its own, so `3.1 dB` equals
`3.10 dB` and nothing else. Units that are known convert exactly.
"""

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple

from loong_jax.verifiers.maths import units
from loong_jax.verifiers.maths.units import Unit

MAX_CHARS = 200
MAX_EXPONENT = 400
_POWER_OF_TEN = (
    r"(?:\s*(?:\*|\\times|\\cdot|x|·|\u00d7)?\s*10\s?(?:\^|\*\*)\s?\{?(?P<power>[-+]?\d{1,3})\}?|"
    r"\s+1[eE](?P<tens>[-+]?\d{1,3}))"  # 1.8 1e-5
)
_NUMBER = re.compile(
    r"(?:[A-Za-z_]{1,12}\s*(?:=|\\approx|≈)\s*)?"
    r"(?P<digits>[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|[-+]?\.\d+)"
    rf"(?:[eE](?P<e>[-+]?\d{{1,3}})|{_POWER_OF_TEN})?(?P<unit>.*)",
    re.DOTALL,
)
_MARKUP = re.compile(r"\\(?:mathrm|text|textrm|rm|mathbf)\b\s*|\\[,;:! ]|[${}~]|\\left|\\right")
_FRACTION = re.compile(
    r"\\d?frac\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_POWER = re.compile(r"\s*(?:\^|\*\*)\s*\(?\s*([-+]?\d)\s*\)?")
_NAMES = {"\\circ": "degree", "°": "degree", "degrees": "degree", "deg": "degree", "Ω": "ohm",
          "\\Omega": "ohm", "rads": "rad", "radians": "rad", "unitless": "", "dimensionless": "",
          "\\%": "%", "percent": "%", "Torr": "torr", "µ": "μ", "hrs": "h"}  # fmt: skip
_KNOWN = {
    "torr": Unit(Fraction(101325, 760), units.UNITS["Pa"].dimensions),
    "amu": Unit(Fraction("1.66053906660e-27"), units.UNITS["kg"].dimensions),
    "hartree": Unit(Fraction("4.3597447222071e-18"), units.UNITS["J"].dimensions),
    "ohms": units.UNITS["ohm"],
    "rad": Unit(Fraction(1), (("rad", 1),)),
    "degree": Unit(Fraction(str(math.pi)) / 180, (("rad", 1),)),
}


_CONSTANTS = frozenset({"pi", "\\pi", "sqrt", "\\sqrt", "log", "ln", "exp", "sin", "cos", "tan",
                        "atan", "acos", "asin"})  # fmt: skip


class Quantity(NamedTuple):
    digits: Decimal  # as written, without the power of ten
    shift: int  # that power
    unit: Unit | None  # None: none is written

    @property
    def value(self) -> Fraction:
        return Fraction(self.digits) * Fraction(10) ** self.shift

    @property
    def is_decimal(self) -> bool:
        return int(self.digits.as_tuple().exponent) < 0


def read(text: str) -> Quantity | None:
    """The quantity a text holds and nothing besides, else None."""
    text = text.strip().rstrip(".").strip("$ ").strip()
    if len(text) > MAX_CHARS:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        digits = Decimal(match["digits"].replace(",", ""))
    except InvalidOperation:
        return None
    shift = int(match["e"] or match["power"] or match["tens"] or 0)
    if abs(shift) > MAX_EXPONENT:
        return None
    rest = match["unit"].strip()
    if not _MARKUP.sub(" ", rest).strip():
        return Quantity(digits, shift, None)
    unit = read_unit(rest)
    return None if unit is None else Quantity(digits, shift, unit)


def read_unit(text: str) -> Unit | None:
    """The unit of `m/s^2`, `J/(mol*K)`, `$\\mathrm{kJ} \\mathrm{~mol}^{-1}$`; None for no unit."""
    text = text.replace("\\mu", "μ").replace("μ ", "μ").replace("^\\circ", "\\circ ")
    text = text.replace("^{\\circ}", "\\circ ").replace("µ", "μ")
    text = re.sub(r"μ(?:\s|\\mathrm|[${}~])+(?=[A-Za-z])", "μ", text)
    for _ in range(2):
        text = _FRACTION.sub(r"(\1)/(\2)", text)
    return _product(re.sub(r"\s+", " ", _MARKUP.sub(" ", text)).strip())


def _product(text: str) -> Unit | None:
    unit, sign, position, num_open = units.NOTHING, 1, 0, []
    while position < len(text):
        character = text[position]
        if character in " *·.":
            position += 1
        elif character == "/":
            sign, position = _outer(num_open) * -1, position + 1
            if position < len(text) and text[position:].lstrip().startswith("("):
                position = text.index("(", position) + 1
                num_open.append(sign)
        elif character == "(":
            num_open.append(sign)
            position += 1
        elif character == ")":
            if not num_open:
                return None
            num_open.pop()
            sign, position = _outer(num_open), position + 1
        else:
            match = re.compile(r"\\?[A-Za-zμΩ°%]+(?:-[A-Za-z]+)*|1(?=\s*/)").match(text, position)
            if match is None:
                return None
            position = match.end()
            power = _POWER.match(text, position)
            exponent = 1
            if power is not None:
                exponent, position = int(power[1]), power.end()
            named = _named(match[0])
            if named is None:
                return None
            unit = unit.times(named, sign * exponent)
            sign = _outer(num_open)
    return None if num_open else unit


def _outer(signs: list[int]) -> int:
    return signs[-1] if signs else 1


def _named(word: str) -> Unit | None:
    """The unit of a word; None for a word that belongs to the number."""
    word = _NAMES.get(word, word)
    if word in _CONSTANTS:
        return None
    if word in ("", "1"):
        return units.NOTHING
    known = _KNOWN.get(word) or units.UNITS.get(word)
    if known is None and len(word) > 3:
        known = units.UNITS.get(word.lower())
    return known or Unit(Fraction(1), ((word, 1),))


def split(text: str) -> tuple[str, Unit] | None:
    """A formula and the unit behind it, as in `5.12*pi cm^3`; None where no unit is known."""
    formula, _, last = text.strip().rpartition(" ")
    unit = read_unit(last) if formula else None
    return None if unit is None or unit == units.NOTHING else (formula, unit)


def agree(gold: Quantity, answer: Quantity, allowed: float) -> bool:
    """True if the answer, in the gold's unit, lies within `allowed` of it.

    An answer without a unit is taken to be in the gold's; a gold without one takes any.
    """
    value = answer.value
    if gold.unit is not None and answer.unit is not None:
        if gold.unit.dimensions != answer.unit.dimensions:
            return False
        value = value * answer.unit.factor / gold.unit.factor
    return abs(value - gold.value) <= Fraction(str(allowed))


def rounding(gold: Quantity, num_digits: int) -> float:
    """Half of the gold's last digit: of the last written, or of digit `num_digits` if later."""
    digits = gold.digits if gold.is_decimal else gold.digits.normalize()
    last = min(int(digits.as_tuple().exponent), digits.adjusted() - num_digits + 1)
    return 0.5 * 10.0 ** (last + gold.shift) * (1 + 1e-6)  # a tie may be moved by binary numbers
