"""Units: what a word after a number measures. A unit is a factor to base units and dimensions.

Conversion is exact where the unit is defined exactly. Temperatures in degrees are names of their
own: 5 °C is not 5 K, and no factor says how they relate.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from loong_jax.verifiers.maths import names


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


_METRIC = {name: _unit(text) for name, text in names.TABLES["metric_units"].items()}
_WORDS = names.by_word("metric_words")
_OTHERS = {word: _unit(text) for word, text in names.by_word("other_units").items()}
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
# what starts a unit without its context; single letters are variables unless written as text
AMBIGUOUS = frozenset(name for name in UNITS if len(name) == 1) | {"in", "as", "at", "pm", "psi"}
POWER_WORDS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
CURRENCIES = {"$": UNITS["USD"], "\\$": UNITS["USD"], "€": UNITS["EUR"], "£": UNITS["GBP"],
              "\\pounds": UNITS["GBP"], "\\euro": UNITS["EUR"]}  # fmt: skip
