"""Units: a factor to base units and dimensions, and how they are written: `km/h`, `J/(mol K)`.

Degrees of temperature are names of their own: no factor says how 5 °C relates to 5 K.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.expression import Node
from loong_jax.verifiers.maths.reading import Parser, Token


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
    if token.text in CURRENCIES:
        return CURRENCIES[parser.take().text]
    if token.kind not in ("word", "text") or left.head not in _NUMERIC:
        return None
    mark = parser.position
    unit = _one_unit(parser, first=True)
    while unit is not None:
        mark, exponent = parser.position, 1
        if parser.accept("/", "\\div") or parser.accept_word("per"):
            exponent = -1
        elif not parser.accept("*", "\\cdot", "\\times", "-") and parser.token.kind != "text":
            following = parser.peek().text  # mol L^{-1}: a unit with a power, set apart
            if not (_is_unit(parser.token) and parser.token.spaced and following in ("^", "**")):
                break
        is_bracketed = exponent == -1 and parser.accept("(")  # J/(mol K)
        other = _bracketed(parser) if is_bracketed else _one_unit(parser, first=False)
        if other is None:
            break
        unit = unit.times(other, exponent)
    parser.position = mark
    return unit


def _bracketed(parser: Parser) -> Unit | None:
    """Units up to a closing bracket, with or without signs between them."""
    unit = _one_unit(parser, first=False)
    while unit is not None and not parser.accept(")"):
        parser.accept("*", "\\cdot", "\\times")
        other = _one_unit(parser, first=False)
        unit = other and unit.times(other)
    return unit


def _is_unit(token: Token) -> bool:
    return token.is_word and token.text in UNITS


def _one_unit(parser: Parser, *, first: bool) -> Unit | None:
    if not parser.token.is_word:
        return None
    power = POWER_WORDS.get(parser.token.text, 0)
    if power and not _is_unit(parser.peek()):
        return None
    if power:
        parser.take()
    token, power = parser.token, power or 1
    word = token.text.rstrip("23")
    unit = UNITS.get(word) or UNITS.get(word.lower() if len(word) > 3 else word)
    if unit is None:
        return None
    is_product = word in ("cd", "mL", "mM", "nM", "uM") and not token.spaced  # 2cd is c times d
    may_be_letters = first and token.kind == "word" and (word in AMBIGUOUS or is_product)
    if may_be_letters and not _is_measured(parser, word):
        return None
    parser.take()
    if digits := token.text[len(word) :]:
        power = int(digits)
    elif parser.token.text in ("squared", "cubed"):
        power = POWER_WORDS[parser.take().text]
    elif parser.at("^", "**"):
        power *= _exponent(parser)
    return NOTHING.times(unit, power)


def _is_measured(parser: Parser, word: str) -> bool:
    """True if what follows makes letters a unit: 2 m 30 cm, 8 J/(mol K), 18 g mol^{-1}, 5 in^2."""
    token, one, two, three = map(parser.peek, range(4))
    if one.kind == "number" and _is_unit(two):
        return True
    below = three if two.text == "(" else two
    if token.spaced and one.text == "/" and _is_unit(below) and len(below.text) > 1:
        return True
    sign = parser.peek(4) if three.text == "{" else three
    is_inverse = two.text in ("^", "**") and sign.text == "-"
    if token.spaced and one.spaced and _is_unit(one) and is_inverse:
        return True
    return word == "in" and (one.kind == "end" or one.text == "^")


def _exponent(parser: Parser) -> int:
    parser.take()
    braces, sign = parser.accept("{"), -1 if parser.accept("-") else 1
    if (
        parser.token.kind != "number"
        or not parser.token.text.isdigit()
        or len(parser.token.text) > 1
    ):
        return 1
    power = sign * int(parser.take().text)
    if braces:
        parser.accept("}")
    return power
