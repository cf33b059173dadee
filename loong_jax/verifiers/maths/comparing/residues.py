"""Sets that repeat themselves: x = 3 (mod 7), x = 7k + 3, x = pi/2 + k pi.

Each is a union of classes offset + period * Z. Two are the same if, with all periods brought to a
common one, they have the same offsets: 3 (mod 7) is 3 or 10 (mod 14).
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import kinds, naming
from loong_jax.verifiers.maths.expression import BARE_LISTS, CostError, Node, number, substitute

MAX_ITEMS = 64
MAX_OFFSETS = 512
INTEGERS = "in Z"  # the label of what has an integer parameter
_EQUAL = Fraction(1, 10**25)  # offsets and periods closer than that are the same: 40 digits
_PARAMETERS = frozenset("kmnljpqst")
_MAY_REPEAT = frozenset(("modular", "builder", "labelled", "chain", *BARE_LISTS))
_ANGLES = frozenset(("x", "t", "z", "theta", "alpha", "beta", "phi", "varphi"))


class Class(NamedTuple):
    offset: Fraction
    period: Fraction


class Classes(NamedTuple):
    name: str | None  # what is in them
    classes: tuple[Class, ...]


def of_gold(node: Node) -> Classes | None:
    """Its classes, where it is no mere formula as (n - 2) pi, the sum of a polygon's angles."""
    if not _is_periodic(node):
        return None
    return of(node)


def _is_periodic(node: Node) -> bool:
    if node.head not in _MAY_REPEAT:
        return False
    found = node.heads
    if "modular" in found or node.head == "builder" or INTEGERS in kinds.domains(node):
        return True
    if not ("degree" in found or kinds.PI in node.walk()):
        return False
    items = node.args if node.head in BARE_LISTS else (node,)
    return all(
        naming.is_assignment(i) and i.args[1].head == "symbol" and i.args[1].args[0] in _ANGLES
        for i in (item.unlabelled for item in items)
    )


def of(node: Node) -> Classes | None:
    """The classes of congruences, of values with one integer parameter, or of a list of them."""
    domains = kinds.domains(node)
    if domains and INTEGERS not in domains:
        return None
    node = node.unlabelled
    if node.head == "builder":
        value, condition = node.args
        is_whole = condition.head == "chain" and condition.args[0] == ("in",)
        if not is_whole or condition.args[2] != Node("symbol", ("set Z",)):
            return None
        node = value
    items = node.args if node.head in BARE_LISTS else (node,)
    if len(items) > MAX_ITEMS:
        return None
    found = _congruences(items, node.head) or _parametrised(items)
    if found is None or len({name for name, _ in found if name is not None}) > 1:
        return None
    names = [name for name, _ in found if name is not None]
    return Classes(names[0] if names else None, tuple(one for _, one in found))


def _congruences(items: Sequence[Node], join: str) -> list[tuple[str | None, Class]] | None:
    """x = 2, 5 (mod 7), where the last modulus is that of all before it."""
    found: list[tuple[str | None, Class]] = []
    period: Fraction | None = None
    moduli: set[Fraction] = set()
    for item in reversed([item.unlabelled for item in items]):
        if item.head == "modular":
            item, given = item.args
            period = _rational(given)
        if period is None or not period:
            return None
        moduli.add(period)
        name = None
        if item.head == "chain":
            if item.args[0] not in (("==",), ("=",)) or item.args[1].head != "symbol":
                return None
            name, item = item.args[1].args[0], item.args[2]
        for value in naming.spread(item):
            offset = _rational(value)
            if offset is None:
                return None
            found.append((name, Class(offset, abs(period))))
    return found if len(moduli) == 1 or join == "or" else None


def _parametrised(items: Sequence[Node]) -> list[tuple[str | None, Class]] | None:
    found: list[tuple[str | None, Class]] = []
    for item in (item.unlabelled for item in items):
        name = None
        if item.head == "chain":
            if not naming.is_assignment(item) or item.args[1].head != "symbol":
                return None
            if len(item.args[0]) > 1:
                return None
            name, item = item.args[1].args[0], item.args[2]
        free = item.symbols
        if len(free) != 1 or not free <= _PARAMETERS or name in free:
            return None
        for value in naming.spread(item):
            letter = next(iter(free))
            one = _affine(value, letter)
            parts = [one] if one is not None else _by_parity(value, letter)
            if parts is None:
                return None
            found += [(name, part) for part in parts]
    return found


def _affine(value: Node, name: str) -> Class | None:
    found = values.affine(value, name)
    if found is None or not found[1]:
        return None
    offset, period = map(values.rational, found)
    return Class(offset, abs(period))


def _by_parity(value: Node, name: str) -> list[Class] | None:
    """(-1)^n pi/6 + n pi: one class for even n, one for odd n."""
    twice = Node("mul", (number(2), Node("symbol", (name,))))
    halves = (twice, Node("add", (twice, number(1))))
    found = [_affine(substitute(value, name, half), name) for half in halves]
    return None if None in found else [one for one in found if one is not None]


def _rational(node: Node) -> Fraction | None:
    value = values.real_value(node) if not node.symbols else None
    return Fraction(value) if isinstance(value, (int, Fraction)) else None


def equal(gold: Classes, answer: Classes) -> bool:
    """Whether both hold the same numbers. Raises CostError."""
    if None not in (gold.name, answer.name) and gold.name != answer.name:
        return False
    unit = gold.classes[0].period
    common = _common_period([one.period / unit for one in (*gold.classes, *answer.classes)])
    if common is None:
        return False
    left, right = (_offsets(given.classes, unit, common) for given in (gold, answer))
    return len(left) == len(right) and all(
        abs(a - b) < _EQUAL for a, b in zip(left, right, strict=True)
    )


def _common_period(ratios: Iterable[Fraction]) -> Fraction | None:
    """The least common multiple; None where two periods have no rational ratio."""
    above, below = 1, 0
    for ratio in ratios:
        near = ratio.limit_denominator(MAX_OFFSETS)
        if not near or abs(near - ratio) > _EQUAL:
            return None
        above, below = math.lcm(above, near.numerator), math.gcd(below, near.denominator)
    return Fraction(above, below)


def _offsets(classes: Sequence[Class], unit: Fraction, common: Fraction) -> list[Fraction]:
    """Offsets in units of `unit` from 0 to the common period, each once, ascending."""
    found: list[Fraction] = []
    for one in classes:
        period = (one.period / unit).limit_denominator(MAX_OFFSETS)
        count = common / period
        if len(found) + count > MAX_OFFSETS:
            raise CostError(f"more than {MAX_OFFSETS} offsets in one period")
        for step in range(int(count)):
            offset = (one.offset / unit + step * period) % common
            found.append(Fraction(0) if common - offset < _EQUAL else offset)
    found.sort()
    return [x for i, x in enumerate(found) if not i or x - found[i - 1] > _EQUAL]


def is_open(node: Node) -> bool:
    """Whether a remainder is left to work out: 42 mod 5."""
    found = [values.real_value(x) if not x.symbols else None for x in node.args]
    return isinstance(found[0], int) and isinstance(found[1], int) and 0 < found[1] <= abs(found[0])


def residue(node: Node) -> Node:
    """2 of 7 = 2 (mod 5), where that is true; else what is said without the modulus."""
    inner, modulus = node.args
    if inner.head != "chain" or set(inner.args[0]) - {"==", "="}:
        return inner
    terms = (*inner.args[1:], modulus)
    if inner.args[1].head == "symbol" and len(terms) > 3:
        terms = terms[1:]  # x = 27 = 5 (mod 11)
    given = [values.real_value(x) if not x.symbols else None for x in terms]
    if not all(isinstance(x, int) for x in given) or not given[-1]:
        return inner
    is_true = all((x - given[0]) % given[-1] == 0 for x in given[:-1])  # type: ignore[operator]
    return inner.args[-1] if is_true else inner
