"""Units: what a word after a number measures. A unit is a factor to base units and dimensions.

Conversion is exact where the unit is defined exactly. Temperatures in degrees are names of their
own: 5 °C is not 5 K, and no factor says how they relate.
"""

from fractions import Fraction
from typing import NamedTuple


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


def _unit(factor: str | int | Fraction, **powers: int) -> Unit:
    return Unit(Fraction(factor), tuple(sorted(powers.items())))


_METRIC = {  # letters and words that take prefixes
    "m": _unit(1, m=1), "g": _unit("0.001", kg=1), "s": _unit(1, s=1), "A": _unit(1, A=1),
    "K": _unit(1, K=1), "mol": _unit(1, mol=1), "cd": _unit(1, cd=1),
    "Hz": _unit(1, s=-1), "N": _unit(1, kg=1, m=1, s=-2), "Pa": _unit(1, kg=1, m=-1, s=-2),
    "J": _unit(1, kg=1, m=2, s=-2), "W": _unit(1, kg=1, m=2, s=-3), "C": _unit(1, A=1, s=1),
    "V": _unit(1, kg=1, m=2, s=-3, A=-1), "F": _unit(1, kg=-1, m=-2, s=4, A=2),
    "ohm": _unit(1, kg=1, m=2, s=-3, A=-2), "Wb": _unit(1, kg=1, m=2, s=-2, A=-1),
    "T": _unit(1, kg=1, s=-2, A=-1), "H": _unit(1, kg=1, m=2, s=-2, A=-2),
    "L": _unit("0.001", m=3), "l": _unit("0.001", m=3),
    "eV": _unit("1.602176634e-19", kg=1, m=2, s=-2),
    "cal": _unit("4.184", kg=1, m=2, s=-2), "bar": _unit(100000, kg=1, m=-1, s=-2),
    "Wh": _unit(3600, kg=1, m=2, s=-2), "B": _unit(8, bit=1), "bit": _unit(1, bit=1),
}  # fmt: skip
_PREFIXES = {"k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "d": "0.1", "c": "0.01", "m": "1e-3",
             "u": "1e-6", "μ": "1e-6", "n": "1e-9", "p": "1e-12"}  # fmt: skip
_WORDS = {  # singular words; the plural in -s is added
    "meter": "m", "metre": "m", "gram": "g", "second": "s", "ampere": "A", "amp": "A",
    "kelvin": "K", "mole": "mol", "hertz": "Hz", "newton": "N", "pascal": "Pa", "joule": "J",
    "watt": "W", "coulomb": "C", "volt": "V", "farad": "F", "tesla": "T", "liter": "L",
    "litre": "L", "calorie": "cal", "byte": "B", "bit": "bit",
}  # fmt: skip
_WORD_PREFIXES = {"kilo": "k", "mega": "M", "giga": "G", "centi": "c", "milli": "m", "deci": "d",
                  "micro": "u", "nano": "n"}  # fmt: skip
_INCH = Fraction("0.0254")
_OTHERS = {
    "min": _unit(60, s=1), "minute": _unit(60, s=1), "sec": _unit(1, s=1), "h": _unit(3600, s=1),
    "hr": _unit(3600, s=1), "hour": _unit(3600, s=1), "day": _unit(86400, s=1),
    "week": _unit(604800, s=1), "in": _unit(_INCH, m=1), "inch": _unit(_INCH, m=1),
    "inches": _unit(_INCH, m=1), "ft": _unit(12 * _INCH, m=1), "foot": _unit(12 * _INCH, m=1),
    "feet": _unit(12 * _INCH, m=1), "yd": _unit(36 * _INCH, m=1), "yard": _unit(36 * _INCH, m=1),
    "mi": _unit(63360 * _INCH, m=1), "mile": _unit(63360 * _INCH, m=1),
    "mph": _unit(63360 * _INCH / 3600, m=1, s=-1), "kph": _unit(Fraction(10, 36), m=1, s=-1),
    "kmh": _unit(Fraction(10, 36), m=1, s=-1),
    "lb": _unit("0.45359237", kg=1), "lbs": _unit("0.45359237", kg=1),
    "pound": _unit("0.45359237", kg=1), "oz": _unit("0.028349523125", kg=1),
    "ounce": _unit("0.028349523125", kg=1), "ton": _unit(1000, kg=1), "tonne": _unit(1000, kg=1),
    "M": _unit(1000, mol=1, m=-3), "mM": _unit(1, mol=1, m=-3), "uM": _unit("1e-3", mol=1, m=-3),
    "nM": _unit("1e-6", mol=1, m=-3), "molar": _unit(1000, mol=1, m=-3),
    "torr": _unit(Fraction(101325, 760), kg=1, m=-1, s=-2),
    "Torr": _unit(Fraction(101325, 760), kg=1, m=-1, s=-2),
    "mmHg": _unit(Fraction(101325, 760), kg=1, m=-1, s=-2),
    "psi": _unit("6894.757293168", kg=1, m=-1, s=-2),
    "GBP": _unit(1, GBP=1), "pound_sterling": _unit(1, GBP=1),
    "acre": _unit("4046.8564224", m=2), "hectare": _unit(10000, m=2), "ha": _unit(10000, m=2),
    "atm": _unit(101325, kg=1, m=-1, s=-2), "cc": _unit("1e-6", m=3),
    "angstrom": _unit("1e-10", m=1), "gallon": _unit("0.003785411784", m=3),
    "dollar": _unit(1, USD=1), "USD": _unit(1, USD=1), "buck": _unit(1, USD=1),
    "cent": _unit("0.01", USD=1), "euro": _unit(1, EUR=1), "EUR": _unit(1, EUR=1),
    **{name: _unit(1, **{code: 1}) for code, names in {
        "CNY": "yuan CNY RMB", "JPY": "yen JPY", "RUB": "ruble RUB", "INR": "rupee INR Rs", "KRW": "won"}.items()
        for name in names.split()},
    "year": _unit("31557600", s=1), "yr": _unit("31557600", s=1), "month": _unit("2629800", s=1),
    "sqft": _unit(144 * _INCH**2, m=2), "sqm": _unit(1, m=2),
}  # fmt: skip


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
CURRENCIES = {"$": UNITS["USD"], "\\$": UNITS["USD"], "€": UNITS["EUR"], "£": _unit(1, GBP=1),
              "\\pounds": _unit(1, GBP=1), "\\euro": UNITS["EUR"]}  # fmt: skip
