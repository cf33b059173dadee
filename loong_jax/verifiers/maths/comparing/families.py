"""Solutions with one parameter, (x, y) = (2 + 3t, 1 - 2t): the same points under another parameter.

Over the integers two families p + t d are the same if their steps d agree up to sign and their
starts differ by a whole multiple of d; over the reals, by any multiple.
"""

from fractions import Fraction
from typing import NamedTuple

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import residues, vectors
from loong_jax.verifiers.maths.expression import (
    BARE_LISTS,
    Node,
    number,
    strip_labels,
    substitute,
    symbols,
)
from loong_jax.verifiers.maths.forms import kinds, naming

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
    domains = kinds.domains(node)
    node = strip_labels(node)
    names: tuple[str, ...] = ()
    if node.head in BARE_LISTS:
        pairs = [(naming.left_side(i), naming.right_side(i)) for i in node.args]
        if not all(left for left, _ in pairs):
            return None
        names = tuple(str(left) for left, _ in pairs)
        parts = tuple(right for _, right in pairs)
    elif node.head == "chain" and node.args[0] == ("=",) and node.args[2].head == "tuple":
        left, right = node.args[1:]
        if left.head == "tuple" and all(part.head == "symbol" for part in left.args):
            names = tuple(part.args[0] for part in left.args)
        parts = right.args
    elif node.head == "tuple":
        parts = node.args
    else:
        return None
    if len(parts) < 2 or (names and len(names) != len(parts)) or len(set(names)) != len(names):
        return None
    free = frozenset[str]().union(*map(symbols, parts))
    if len(free) != 1 or not free <= _PARAMETERS or free & set(names):
        return None
    (parameter,) = free
    ends = [_affine(part, parameter) for part in parts]
    if None in ends:
        return None
    start, step = zip(*(end for end in ends if end is not None), strict=True)
    return Family(names, start, step, parameter, domains) if any(step) else None


def _affine(part: Node, name: str) -> tuple[Fraction, Fraction] | None:
    at = [values.real_value(substitute(part, name, number(k))) for k in (0, 1, 2, 5)]
    if not all(isinstance(value, (int, Fraction)) for value in at):
        return None
    zero, one, two, five = (Fraction(value) for value in at)  # type: ignore[arg-type]
    step = one - zero
    return (zero, step) if (two - zero, five - zero) == (2 * step, 5 * step) else None


def equal(gold: Family, answer: Family) -> bool | None:
    """Whether both hold the same points; None where a domain that counts is not stated."""
    if gold.names and answer.names:
        if set(gold.names) != set(answer.names):
            return None
        answer = _in_order(answer, gold.names)
    elif answer.names and set(answer.names) <= set("xyzw"):
        answer = _in_order(answer, tuple(sorted(answer.names, key="xyzw".index)))
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
    whole = [residues.INTEGERS in one.domains or (not one.domains and one.parameter in _WHOLE)
             for one in (gold, answer)]  # fmt: skip
    if not all(whole):
        return None
    return abs(ratio) == 1 and shift.denominator == 1


def _in_order(family: Family, names: tuple[str, ...]) -> Family:
    order = [family.names.index(name) for name in names]
    start, step = ([row[i] for i in order] for row in (family.start, family.step))
    return family._replace(names=names, start=tuple(start), step=tuple(step))


def _multiple(vector: Point | list[Fraction], of: Point) -> Fraction | None:
    """k where vector = k * of; None where there is none."""
    index = next(i for i, x in enumerate(of) if x)
    factor = vector[index] / of[index]
    return factor if all(v == factor * x for v, x in zip(vector, of, strict=True)) else None


def as_function(node: Node) -> Node:
    """r(t) = (...), read as a product on its left, with the name it is."""
    if node.head == "chain" and node.args[0] == ("=",) and len(node.args) == 3:
        left, right = node.args[1:]
        is_vector = right.head in ("tuple", "matrix") or vectors.is_combination(right)
        if is_vector and kinds.is_applied(left):
            name, variable = left.args
            name = kinds.without_accent(name.args[0])
            return Node("chain", (("=",), Node("apply", (name, variable)), right))
    return node
