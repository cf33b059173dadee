"""Units: a factor to base units and dimensions, and how they are written: `km/h`, `J/(mol K)`.

Degrees of temperature are names of their own: no factor says how 5 °C relates to 5 K.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import Node
from loong_jax.verifiers.maths.reading import Parser


class Unit(NamedTuple):
    factor: Fraction  # of the base units
    dimensions: tuple[tuple[str, int], ...]  # sorted (dimension, exponent), none of them 0

    def times(self, other: "Unit", exponent: int = 1) -> "Unit":
        powers = dict(self.dimensions)
        for name, power in other.dimensions:
            powers[name] = powers.get(name, 0) + power * exponent
        return Unit(
            self.factor * other.factor**exponent,
            tuple(sorted((name, power) for name, power in powers.items() if power)),
        )


NOTHING = Unit(Fraction(1), ())


def _unit(text: str) -> Unit:
    """A unit as the tables write it: "4.184 kg m2 s-2"."""
    factor, *powers = text.split()
    found = (re.fullmatch(r"([A-Za-z]+)(-?\d*)", power) for power in powers)
    return Unit(Fraction(factor), tuple(sorted((m[1], int(m[2] or 1)) for m in found if m)))


_METRIC = {name: _unit(text) for name, text in names.measures("METRIC").items()}
_WORDS = names.measures("METRIC_WORDS")
_OTHERS = {word: _unit(text) for word, text in names.measures("OTHERS").items()}
_PREFIXES = {"k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "d": "0.1", "c": "0.01", "m": "1e-3",
             "u": "1e-6", "μ": "1e-6", "n": "1e-9", "p": "1e-12"}  # fmt: skip
_WORD_PREFIXES = {"kilo": "k", "mega": "M", "giga": "G", "centi": "c", "milli": "m", "deci": "d",
                  "micro": "u", "nano": "n"}  # fmt: skip


def _table() -> dict[str, Unit]:
    table = dict(_METRIC)
    for symbol, unit in _METRIC.items():
        for prefix, factor in _PREFIXES.items():
            table[prefix + symbol] = Unit(unit.factor * Fraction(factor), unit.dimensions)
    for word, symbol in _WORDS.items():
        for prefix, letter in {"": "", **_WORD_PREFIXES}.items():
            unit = table[letter + symbol]
            table[prefix + word] = table[prefix + word + "s"] = unit
    table |= _OTHERS
    table |= {word + "s": unit for word, unit in _OTHERS.items() if len(word) > 2}
    return table


UNITS = _table()
# words that start a unit without its context; single letters are variables unless written as text
AMBIGUOUS = frozenset(name for name in UNITS if len(name) == 1) | {"in", "as", "at", "pm", "psi"}
POWER_WORDS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
CURRENCIES = {"$": UNITS["USD"], "\\$": UNITS["USD"], "€": UNITS["EUR"], "£": UNITS["GBP"],
              "\\pounds": UNITS["GBP"], "\\euro": UNITS["EUR"]}  # fmt: skip


_NUMERIC = frozenset(str.split("number div mul call constant pow add neg tuple"))


def take_unit(parser: Parser, left: Node) -> Unit | None:
    """The unit that follows a number, such as `cm`, `km/h`, `square feet` or `m^2`."""
    token = parser.token
    if (token.kind == "sign" and token.text == "$") or token.text in CURRENCIES:
        parser.take()
        return CURRENCIES[token.text]
    if token.kind not in ("word", "text") or left.head not in _NUMERIC:
        return None
    mark = parser.position
    unit = _product_of_units(parser, first=True)
    if unit is None:
        parser.position = mark
    return unit


def _product_of_units(parser: Parser, *, first: bool) -> Unit | None:
    unit = _one_unit(parser, first=first)
    if unit is None:
        return None
    while True:
        mark = parser.position
        exponent = 1
        if parser.accept("/", "\\div") or _accept_word(parser, "per"):
            exponent = -1
        elif not parser.accept("*", "\\cdot", "\\times", "-"):
            exponent = 0
        if exponent == 0 and parser.token.kind != "text" and not _is_another(parser):
            return unit
        if exponent == -1 and parser.accept("("):  # J/(mol K)
            other = _bracketed(parser)
        else:
            other = _one_unit(parser, first=False)
        if other is None:
            parser.position = mark
            return unit
        unit = unit.times(other, exponent or 1)


def _bracketed(parser: Parser) -> Unit | None:
    """Units up to a closing bracket, with or without signs between them."""
    unit = None
    while not parser.accept(")"):
        if unit is not None:
            parser.accept("*", "\\cdot", "\\times")
        other = _one_unit(parser, first=False)
        if other is None:
            return None
        unit = other if unit is None else unit.times(other)
    return unit


def _is_another(parser: Parser) -> bool:
    """True if a unit with a power follows, set apart from one: mol L^{-1}."""
    token = parser.token
    return (
        token.kind == "word"
        and token.spaced
        and token.text in UNITS
        and parser.peek().text in ("^", "**")
    )


def _accept_word(parser: Parser, word: str) -> bool:
    if parser.token.kind in ("word", "text") and parser.token.text == word:
        parser.take()
        return True
    return False


def _one_unit(parser: Parser, *, first: bool) -> Unit | None:
    token = parser.token
    if token.kind not in ("word", "text"):
        return None
    power = 1
    if token.text in POWER_WORDS:
        following = parser.peek()
        if following.kind not in ("word", "text") or following.text not in UNITS:
            return None
        power = POWER_WORDS[token.text]
        parser.take()
        token = parser.token
    word, digits = token.text.rstrip("23"), token.text[len(token.text.rstrip("23")) :]
    unit = UNITS.get(word) or UNITS.get(word.lower() if len(word) > 3 else word)
    if unit is None:
        return None
    is_product = word in ("cd", "mL", "mM", "nM", "uM") and not token.spaced  # 2cd is c times d
    is_letters = (word in AMBIGUOUS or is_product) and not (
        _is_first_of_two(parser)
        or _is_over_unit(parser)
        or _is_before_inverse(parser)
        or (word == "in" and (parser.peek().kind == "end" or parser.peek().text == "^"))  # 5 in^2
    )
    if first and token.kind == "word" and is_letters:
        return None
    parser.take()
    if digits:
        power = int(digits)
    elif parser.token.text in ("squared", "cubed"):
        power = POWER_WORDS[parser.take().text]
    elif parser.at("^", "**"):
        power *= _exponent(parser)
    return NOTHING.times(unit, power)


def _is_over_unit(parser: Parser) -> bool:
    """True if a quotient by a unit of several letters begins, as in 8 J/(mol K) and 2 J/kg."""
    if not parser.token.spaced or parser.peek().text != "/":
        return False
    below = parser.peek(3 if parser.peek(2).text == "(" else 2)
    return below.kind in ("word", "text") and below.text in UNITS and len(below.text) > 1


def _is_before_inverse(parser: Parser) -> bool:
    """True if a unit with a negative power follows, all set apart: 18 g mol^{-1}, 3 m s^{-1}."""
    unit, at = parser.peek(), 3 + (parser.peek(3).text == "{")
    return (
        parser.token.spaced
        and unit.spaced
        and unit.kind in ("word", "text")
        and unit.text in UNITS
        and parser.peek(2).text in ("^", "**")
        and parser.peek(at).text == "-"
    )


def _is_first_of_two(parser: Parser) -> bool:
    """True if a number and another unit follow, as in 2 m 30 cm."""
    count, unit = parser.peek(), parser.peek(2)
    return count.kind == "number" and unit.kind in ("word", "text") and unit.text in UNITS


def _exponent(parser: Parser) -> int:
    parser.take()
    braces = parser.accept("{")
    negative = parser.accept("-")
    token = parser.token
    if token.kind != "number" or not token.text.isdigit() or len(token.text) > 1:
        return 1
    parser.take()
    if braces:
        parser.accept("}")
    return -int(token.text) if negative else int(token.text)
