"""Sets by a rule: points with one parameter, residue classes, what a few integers build.

Families p + t d over the integers are the same if d agrees up to sign and p up to multiples of d.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.evaluator import RATIONAL
from loong_jax.verifiers.maths.expression import BARE_LISTS, CostError, Node, number, substitute
from loong_jax.verifiers.maths.matching import naming, nodes, real_sets

MAX_ITEMS = 64
MAX_OFFSETS = 512
INTEGERS = "in Z"  # the label of what has an integer parameter
_EQUAL = Fraction(1, 10**25)  # offsets and periods closer than that are the same: 40 digits
_INDICES = frozenset("kmnljpqst")
_MAY_REPEAT = frozenset(("modular", "builder", "labelled", "chain", *BARE_LISTS))
_ANGLES = frozenset(("x", "t", "z", "theta", "alpha", "beta", "phi", "varphi"))


class Class(NamedTuple):
    name: str | None  # of its members
    offset: Fraction
    period: Fraction


def classes_of_gold(node: Node) -> list[Class] | None:
    """Its classes, where it is no mere formula as (n - 2) pi, the sum of a polygon's angles."""
    if node.head not in _MAY_REPEAT:
        return None
    is_said = "modular" in node.heads or node.head == "builder" or INTEGERS in nodes.domains(node)
    items = [item.unlabelled for item in (node.args if node.head in BARE_LISTS else (node,))]
    is_angle = ("degree" in node.heads or nodes.PI in node.walk()) and all(
        naming.is_assignment(i) and i.args[1].head == "symbol" and i.args[1].args[0] in _ANGLES
        for i in items
    )
    return classes_of(node) if is_said or is_angle else None


def classes_of(node: Node) -> list[Class] | None:
    """The classes of congruences, of values with one integer parameter, or of a list of them."""
    domains = nodes.domains(node)
    if domains and INTEGERS not in domains:
        return None
    node = node.unlabelled
    match node:
        case Node("builder", (value, Node("chain", (("in",), _, Node("symbol", ("set Z",)))))):
            node = value
        case Node("builder"):
            return None
    items = [i.unlabelled for i in (node.args if node.head in BARE_LISTS else (node,))]
    if len(items) > MAX_ITEMS:
        return None
    found = _congruences(items, node.head) or _parametrised(items)
    return None if found is None or len({one.name for one in found} - {None}) > 1 else found


def _named(item: Node, operators: Sequence[str]) -> tuple[str | None, Node] | None:
    """A value with the name that it is given, if any; None for any other relation."""
    match item:
        case Node("chain", ((operator,), Node("symbol", (name,)), value)) if operator in operators:
            return name, value
        case Node("chain"):
            return None
    return None, item


def _congruences(items: Sequence[Node], join: str) -> list[Class] | None:
    """x = 2, 5 (mod 7), where the last modulus is that of all before it."""
    found: list[Class] = []
    period: Fraction | None = None
    moduli: set[Fraction] = set()
    for item in reversed(items):
        if item.head == "modular":
            item, given = item.args
            period = _rational(given)
        if not period or (named := _named(item, ("==", "="))) is None:
            return None
        moduli.add(period)
        for value in naming.spread(named[1]):
            if (offset := _rational(value)) is None:
                return None
            found.append(Class(named[0], offset, abs(period)))
    return found if len(moduli) == 1 or join == "or" else None


def _parametrised(items: Sequence[Node]) -> list[Class] | None:
    found: list[Class] = []
    for item in items:
        if (named := _named(item, ("=", "~"))) is None:
            return None
        name, item = named
        if len(item.symbols) != 1 or not item.symbols <= _INDICES or name in item.symbols:
            return None
        (letter,) = item.symbols
        for value in naming.spread(item):
            parts = [values.affine(value, letter)]
            if parts[0] is None or not parts[0][1]:
                # (-1)^n pi/6 + n pi: one class for even n, one for odd n
                twice = Node("mul", (number(2), Node("symbol", (letter,))))
                halves = (twice, Node("add", (twice, number(1))))
                parts = [values.affine(substitute(value, letter, x), letter) for x in halves]
            for part in parts:
                if part is None or not part[1]:
                    return None
                offset, period = map(values.as_fraction, part)
                found.append(Class(name, offset, abs(period)))
    return found


def _constant(node: Node) -> values.Value | None:
    return values.real_value(node) if not node.symbols else None


def _rational(node: Node) -> Fraction | None:
    value = _constant(node)
    return Fraction(value) if isinstance(value, RATIONAL) else None


def same_classes(gold: list[Class], answer: list[Class]) -> bool:
    """True if both hold the same numbers. Raises CostError."""
    both, unit = (*gold, *answer), gold[0].period
    periods = {one.period: (one.period / unit).limit_denominator(MAX_OFFSETS) for one in both}
    if len({one.name for one in both} - {None}) > 1 or any(
        not near or abs(near - period / unit) > _EQUAL for period, near in periods.items()
    ):
        return False
    common = Fraction(
        math.lcm(*(period.numerator for period in periods.values())),
        math.gcd(*(period.denominator for period in periods.values())),
    )
    left, right = ([*_offsets(classes, unit, periods, common)] for classes in (gold, answer))
    return len(left) == len(right) and all(
        abs(a - b) < _EQUAL for a, b in zip(left, right, strict=True)
    )


def _offsets(
    classes: Sequence[Class], unit: Fraction, periods: Mapping[Fraction, Fraction], common: Fraction
) -> Iterator[Fraction]:
    """Offsets in units of `unit` from 0 to the common period, each once, ascending."""
    found: list[Fraction] = []
    for one in classes:
        period = periods[one.period]
        if len(found) + (count := int(common / period)) > MAX_OFFSETS:
            raise CostError(f"more than {MAX_OFFSETS} offsets in one period")
        offsets = ((one.offset / unit + step * period) % common for step in range(count))
        found += (Fraction(0) if common - offset < _EQUAL else offset for offset in offsets)
    last = -common
    for offset in sorted(found):
        if offset - last > _EQUAL:
            yield offset
        last = offset


def is_open(node: Node) -> bool:
    """True if a remainder is left to work out: 42 mod 5."""
    value, modulus = map(_constant, node.args)
    return isinstance(value, int) and isinstance(modulus, int) and 0 < modulus <= abs(value)


def residue(node: Node) -> Node:
    """2 of 7 = 2 (mod 5), where that is true; else what is said without the modulus."""
    inner, modulus = node.args
    if inner.head != "chain" or set(inner.args[0]) - {"==", "="}:
        return inner
    terms = (*inner.args[1:], modulus)
    if inner.args[1].head == "symbol" and len(terms) > 3:
        terms = terms[1:]  # x = 27 = 5 (mod 11)
    given = [x for x in map(_constant, terms) if isinstance(x, int)]
    if len(given) < len(terms) or not given[-1]:
        return inner
    is_true = all((x - given[0]) % given[-1] == 0 for x in given[:-1])
    return inner.args[-1] if is_true else inner


_PARAMETERS = frozenset("tkmnslpqruvc")
_WHOLE = frozenset("kmn")  # letters that stand for whole numbers where nothing is said
Point = tuple[Fraction, ...]


class Family(NamedTuple):
    names: tuple[str, ...]  # of the components; none where they are not named
    start: Point
    step: Point
    parameter: str
    domains: tuple[str, ...]


def read(node: Node) -> Family | None:
    """The family of a point with one parameter; None for anything else."""
    domains = nodes.domains(node)
    names: tuple[str, ...] = ()
    match node.unlabelled:
        case Node("list" | "and" | "or", items):
            names = tuple(left for i in items if (left := naming.left_side(i)))
            parts = tuple(map(naming.right_side, items))
            if len(names) < len(parts):
                return None
        case Node("chain", (("=",), left, Node("tuple", parts))):
            if left.head == "tuple" and all(part.head == "symbol" for part in left.args):
                names = tuple(part.args[0] for part in left.args)
        case Node("tuple", parts):
            pass
        case _:
            return None
    if len(parts) < 2 or (names and len(names) != len(parts)) or len(set(names)) != len(names):
        return None
    free = frozenset[str]().union(*(part.symbols for part in parts))
    if len(free) != 1 or not free <= _PARAMETERS or free & set(names):
        return None
    (parameter,) = free
    if any(name.partition("_")[2] == parameter for name in names):
        return None  # a_n = 4n + 1 is a sequence
    ends = [end for part in parts if (end := values.affine(part, parameter)) is not None]
    if len(ends) < len(parts) or not all(isinstance(x, RATIONAL) for end in ends for x in end):
        return None
    start, step = (tuple(map(Fraction, row)) for row in zip(*ends, strict=True))
    return Family(names, start, step, parameter, domains) if any(step) else None


def equal(gold: Family, answer: Family) -> bool | None:
    """True if both hold the same points; None where a domain that counts is not stated."""
    if answer.names:
        are_axes = set(answer.names) <= set("xyzw")
        names = sorted(answer.names, key="xyzw".index) if are_axes else answer.names
        if set(names := gold.names or names) != set(answer.names):
            return None
        order = [answer.names.index(name) for name in names]
        start, step = (tuple(row[i] for i in order) for row in (answer.start, answer.step))
        answer = answer._replace(start=start, step=step)
    if len(gold.start) != len(answer.start):
        return False
    apart = [b - a for a, b in zip(gold.start, answer.start, strict=True)]
    ratio, shift = _multiple(answer.step, gold.step), _multiple(apart, gold.step)
    if ratio is None or shift is None:
        return False
    if (gold.start, gold.step) == (answer.start, answer.step):
        return True
    if gold.domains != answer.domains and gold.domains and answer.domains:
        return False
    for one in (gold, answer):
        if INTEGERS not in one.domains and (one.domains or one.parameter not in _WHOLE):
            return None
    return abs(ratio) == 1 and shift.denominator == 1


def _multiple(vector: Point | list[Fraction], of: Point) -> Fraction | None:
    """k where vector = k * of; None where there is none."""
    index = next(i for i, x in enumerate(of) if x)
    factor = vector[index] / of[index]
    return factor if all(v == factor * x for v, x in zip(vector, of, strict=True)) else None


MAX_ELEMENTS = 64
FARTHEST = 10**9  # from 0, of an end
_INTEGERS, _NATURAL = "set Z", "set N"
_WHOLE_NUMBERS = frozenset((_INTEGERS, _NATURAL, "set Z+", "set N*", "set N+"))


def listed(node: Node) -> Node:
    """A rule that builds a finite set as the set of its elements, if it is seen to be finite."""
    if node.head != "builder":
        return node
    value, condition = node.args
    conditions = list(condition.args) if condition.head in BARE_LISTS[:2] else [condition]
    if value.head == "chain" and value.args[0] == ("in",):
        conditions.insert(0, value)
        value = value.args[1]
    if (found := _domain(conditions)) is None:
        return node
    variable, domain, rest = found
    if not all(item.head == "chain" and item.symbols == {variable} for item in rest):
        return node
    if domain.head == "symbol":
        whole = _integers(domain.args[0], rest)
    else:
        whole = [item for item in domain.args if _hold(rest, variable, item)]
    if whole is None or len(whole) > MAX_ELEMENTS:
        return node
    return Node("set", tuple(substitute(value, variable, item) for item in whole))


def _domain(conditions: Sequence[Node]) -> tuple[str, Node, list[Node]] | None:
    """The variable, what it ranges over (a set, or the name of one), and the other conditions."""
    for index, item in enumerate(conditions):
        if item.head != "chain" or len(item.args) != 3 or item.args[1].head != "symbol":
            continue
        operators, (_, (variable,)), domain = item.args
        rest = [*conditions[:index], *conditions[index + 1 :]]
        if operators == ("=",) and index == 0 and not any(n.symbols for n in (domain, *rest)):
            return variable, Node("set", (domain, *rest)), []  # k = 1, 2, 3
        is_plain = domain.head == "set" and not domain.symbols
        is_named = domain.head == "symbol" and domain.args[0] in _WHOLE_NUMBERS
        if operators == ("in",) and (is_plain or is_named):
            return variable, domain, rest
    return None


def _integers(domain: str, conditions: Sequence[Node]) -> list[Node] | None:
    """The integers that meet all conditions, if these leave only a bounded part of the line."""
    sets = [one for item in conditions if (one := real_sets.real_set(item)) is not None]
    line = real_sets.cut(sets) if len(sets) == len(conditions) else None
    if line is None or not line.ends:
        return None
    if {-0.5, line.places[-1]} & set.intersection(*map(line.within, sets)):
        return None
    if any(abs(value) > FARTHEST for value, _ in line.ends):
        return None
    low, high = math.floor(float(line.ends[0][0])), math.ceil(float(line.ends[-1][0]))
    if high - low > 4 * MAX_ELEMENTS:
        return None
    (variable,) = conditions[0].symbols
    found = [n for n in range(low, high + 1) if _hold(conditions, variable, number(n))]
    if domain == _NATURAL and 0 in found:
        return None  # which 0 may belong to or not
    return [number(n) for n in found if domain == _INTEGERS or n > 0]


_MEANT = {"=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def _hold(relations: Sequence[Node], variable: str, at: Node) -> bool:
    """True if chains of inequalities hold at a number."""
    for relation in relations:
        operators, *operands = substitute(relation, variable, at).args
        for operator, left, right in zip(operators, operands, operands[1:], strict=False):
            same = values.equal(left, right)
            a, b = values.real_value(left), values.real_value(right)
            if same is None or a is None or b is None:
                return False
            order = "=" if same else "<" if values.gap(a, b) < 0 else ">"
            if order not in _MEANT.get(operator, ()):
                return False
    return True
