"""Equality of two values: exact rationals, then numbers at two precisions, then identity testing.

Two exact values are equal only if they are the same, however close: 1/2004! is not 1/2006!.
`evaluator` gives values. A long decimal may stand for what it rounds. Functions are tested at
points that no text can know to be special.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from loong_jax.verifiers.maths.evaluator import RATIONAL, Evaluator, Undefined, Value
from loong_jax.verifiers.maths.expression import Node, call, constant, number, rewritten, substitute

FLOAT_DIGITS, LONG_DIGITS = 15, 10
FLOAT_TOLERANCE = Fraction(1, 10**11)  # relative, where one side is a double


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The permitted difference, beside rounding of long decimals: none by default."""

    relative: Fraction = Fraction(0)
    absolute: Fraction = Fraction(0)
    digits: int = LONG_DIGITS  # from which on a decimal stands for what it rounds
    as_written: bool = False  # 2.50 is not 2.5


EXACT = Tolerance()


def is_permitted(gold: Node, answer: Node, tolerance: Tolerance, *sizes: Value) -> bool | None:
    """True if a gap is permitted between values; None where no gap is.

    `sizes` are those of the gold, of the answer and of the gap. Beside the tolerance there are the
    rounding of a double, and the last decimal of a number that may stand for what it rounds.
    """
    of_larger, too_wide = 0, 0
    if max(num_digits(gold), num_digits(answer)) >= FLOAT_DIGITS:
        of_larger = FLOAT_TOLERANCE
    else:
        literals = _literal(gold), _literal(answer)
        if literals.count(None) == 1 and (known := literals[0] or literals[1]) is not None:
            value, digits = known
            if digits >= tolerance.digits:
                unit = Fraction(1)  # of its last decimal
                while (value / unit).denominator != 1:
                    unit /= 10
                too_wide = unit if digits >= LONG_DIGITS else unit / 2
    if not any((tolerance.absolute, tolerance.relative, of_larger, too_wide)):
        return None
    wanted, given, gap = map(as_fraction, sizes)
    of_values = max(tolerance.relative * wanted, of_larger * max(wanted, given))
    return gap <= max(tolerance.absolute, of_values) or gap < too_wide


def num_digits(node: Node) -> int:
    if node.head == "number":
        return node.args[1]
    return max((n.args[1] for n in node.walk() if n.head == "number"), default=0)


def _literal(node: Node) -> tuple[Fraction, int] | None:
    """Size and digits of a decimal or whole number that stands alone."""
    if node.head in ("percent", "quantity", "labelled", "degree"):
        node = node.args[0]
    if node.head == "neg":
        node = node.args[0]
    if node.head != "number" or (not node.args[1] and isinstance(node.args[0], Fraction)):
        return None
    return Fraction(node.args[0]), node.args[1]


LOW_DIGITS, HIGH_DIGITS = 40, 250


def evaluated(
    nodes: Sequence[Node], digits: int, bindings: Mapping[str, Value]
) -> list[tuple[Value, Evaluator]] | None:
    """The values of expressions, each with what evaluated it; None where one has none."""
    found = []
    try:
        for node in nodes:
            evaluator = Evaluator(digits, bindings)
            found.append((evaluator.value(node), evaluator))
    except Undefined:
        return None
    return found


def equal_numbers(
    gold: Node, answer: Node, bindings: Mapping[str, Value], tolerance: Tolerance
) -> bool | None:
    if tolerance.as_written and len({*map(num_digits, (gold, answer))} - {0}) > 1:
        return False
    if (found := evaluated((gold, answer), LOW_DIGITS, bindings)) is None:
        return None
    (a, evaluator), (b, other) = found
    if isinstance(a, RATIONAL) and isinstance(b, RATIONAL):
        return a == b or bool(is_permitted(gold, answer, tolerance, *map(abs, (a, b, a - b))))
    left, right = evaluator.real(a), evaluator.real(b)
    if not (evaluator.context.isfinite(left) and evaluator.context.isfinite(right)):
        return bool(a == b)
    sizes = map(abs, (left, right, left - right))
    if (outcome := is_permitted(gold, answer, tolerance, *sizes)) is not None:
        return outcome
    digits = HIGH_DIGITS + int(max(evaluator.max_bits, other.max_bits) / 3.3)
    digits = min(digits, 12_000)
    if (found := evaluated((gold, answer), digits, bindings)) is None:
        return None
    (c, high), (d, _) = found
    return near(high, c, d, digits - 60) or _both_vanish(high, a, b, c, d)


def near(evaluator: Evaluator, a: Value, b: Value, digits: int) -> bool:
    a, b = evaluator.real(a), evaluator.real(b)
    gap = abs(a - b)
    return gap == 0 or gap <= max(abs(a), abs(b)) * evaluator.context.mpf(10) ** -digits


def _both_vanish(high: Evaluator, a: Value, b: Value, c: Value, d: Value) -> bool:
    """True if both are 0 but for rounding: the error shrank when the precision grew."""
    context = high.context
    bound = context.mpf(10) ** -(HIGH_DIGITS - 60)
    pairs = ((high.real(a), high.real(c)), (high.real(b), high.real(d)))
    return all(
        abs(later) == 0 or (abs(later) < bound and abs(later) < abs(early) * bound)
        for early, later in pairs
    )


def as_fraction(value: Any) -> Fraction:
    """A value as a rational; a huge or tiny mpf by its order of magnitude only."""
    if isinstance(value, RATIONAL):
        return Fraction(value)
    sign, mantissa, exponent, _ = value._mpf_
    if abs(exponent) > 5000:
        return Fraction(10**1500) if exponent > 0 else Fraction(0)
    return (-1) ** sign * int(mantissa) * Fraction(2) ** exponent


def real_value(node: Node, digits: int = LOW_DIGITS) -> Value | None:
    """The real value of a constant, exact or not; None where it has none."""
    if (found := evaluated((node,), digits, {})) is None:
        return None
    ((value, evaluator),) = found
    if isinstance(value, RATIONAL):
        return value
    return evaluator.context.re(value) if evaluator.context.im(value) == 0 else None


def gap(a: Value, b: Value) -> Value:
    """a - b of two real values; mpmath subtracts a Fraction from an mpf, but not the reverse."""
    return -(b - a) if isinstance(a, RATIONAL) and not isinstance(b, RATIONAL) else a - b


def affine(node: Node, name: str) -> tuple[Value, Value] | None:
    """Value at 0 and slope of an affine function of one unknown; None if it is none."""
    at = [real_value(substitute(node, name, number(k))) for k in (0, 1, 2, 5)]
    if any(value is None for value in at):
        return None
    start, step = at[0], gap(at[1], at[0])
    off = (gap(gap(at[i], start), k * step) for i, k in ((2, 2), (3, 5)))
    return None if any(abs(x) * 10**20 > abs(step) for x in off) else (start, step)


MIN_FIXED = 3  # points at which what is fixed has its value
_WHOLE_NAMES = frozenset("nkmjN")


def equal_functions(gold: Node, answer: Node, names: frozenset[str]) -> bool | None:
    """Tests equality of functions at points that no text can know to be special.

    A point where one side has no real value and the other has says nothing, and neither does one
    outside the domain of a logarithm, or of a root where signs are mixed, since branches differ
    there; two points inside the domain of a logarithm must be left.
    """
    ordered = sorted(names)
    compared = 0
    has_branches = all(_is_real_logarithmic(node) for node in (gold, answer))
    is_real = all(_I not in node.walk() for node in (gold, answer))
    for trial in range(len(POINTS)):
        bindings = bindings_at(ordered, trial)
        outcome = _compare_at(gold, answer, bindings, signed=trial >= FIRST_SIGNED)
        may_branch = has_branches or (is_real and trial == MIXED)  # sqrt(a/b)
        if outcome is False and may_branch:
            found = evaluated((gold, answer), LOW_DIGITS, bindings) or []
            if all(by.context.im(by.real(value)) != 0 for value, by in found):
                continue
        if outcome is False:
            return names <= _WHOLE_NAMES and _on_integers(gold, answer, ordered, otherwise=False)
        compared += outcome is True
    return True if compared > has_branches else _on_integers(gold, answer, ordered, otherwise=None)


_I = constant("i")


def _is_real_logarithmic(node: Node) -> bool:
    """True if a node has logarithms of its symbols and no imaginary number of its own."""
    return _I not in node.walk() and any(part.symbols for part in _logs(node, "ln", "log"))


def _on_integers(
    gold: Node, answer: Node, ordered: list[str], *, otherwise: bool | None
) -> bool | None:
    """True if sums up to n and (-1)^n agree at whole numbers, of both parities."""
    if not _needs_integers(gold) and not _needs_integers(answer):
        return otherwise
    outcomes = set()
    for start in (2, 3, 5, 6, 9, 11):
        bindings = {name: start + 3 * i for i, name in enumerate(ordered)}
        outcomes.add(_compare_at(gold, answer, bindings, signed=False))
        if False in outcomes:
            return False
    return True in outcomes or None


def _needs_integers(node: Node) -> bool:
    if node.heads & {"sum", "product"}:
        return True
    return any(
        (n.head == "call" and n.args[0] in ("sin", "cos", "floor", "ceiling", "mod", "gcd", "lcm"))
        or (n.head == "pow" and n.args[0].head == "number" and n.args[0].args[0] < 0)
        for n in node.walk()
    )


def _compare_at(
    gold: Node, answer: Node, bindings: Mapping[str, Value], *, signed: bool
) -> bool | None:
    if (found := evaluated((gold, answer), LOW_DIGITS, bindings)) is None:
        return None
    (a, evaluator), (b, _) = found
    if isinstance(a, RATIONAL) and isinstance(b, RATIONAL):
        return a == b or bool(is_permitted(gold, answer, EXACT, *map(abs, (a, b, a - b))))
    context = evaluator.context
    a, b = evaluator.real(a), evaluator.real(b)
    if not context.isfinite(a) or not context.isfinite(b):
        return None
    if signed and (context.im(a) != 0) != (context.im(b) != 0):
        return None
    digits = 9 if max(num_digits(gold), num_digits(answer)) >= FLOAT_DIGITS else 25
    if near(evaluator, a, b, digits):
        return True
    if max(abs(a), abs(b)) < context.mpf(10) ** -25:  # perhaps noise around 0
        return equal_numbers(gold, answer, bindings, EXACT)
    return False


def _at_points(*nodes: Node) -> Iterator[tuple[Any, list[Any]]]:
    """The context and the finite values of expressions, wherever all of them have one."""
    names = sorted(frozenset[str]().union(*(node.symbols for node in nodes)))
    for trial in range(len(POINTS)):
        found = evaluated(nodes, LOW_DIGITS, bindings_at(names, trial))
        if found is None:
            continue
        context = found[0][1].context
        reals = [evaluator.real(value) for value, evaluator in found]
        if all(map(context.isfinite, reals)):
            yield context, reals


def constant_ratio(gold: Node, answer: Node) -> int | None:
    """Sign of the constant that gold is times answer; 0 where there is none, None if unknown."""
    ratios: list[Any] = []
    for context, (a, b) in _at_points(gold, answer):
        if a == 0 and b == 0:
            continue
        if a == 0 or b == 0:
            return 0
        ratios.append(a / b)
        apart = abs(ratios[-1] - ratios[0])
        if apart > abs(ratios[0]) * context.mpf(10) ** -20 or context.im(ratios[0]) != 0:
            return 0
    if len(ratios) < 2:
        return None
    return 1 if ratios[0].real > 0 else -1


def is_fixed(node: Node) -> bool:
    """True if an expression has one real value, whatever its symbols are."""
    seen: list[Any] = []
    for context, (value,) in _at_points(node):
        if abs(context.im(value)) < (small := context.mpf(10) ** -25):
            seen.append(context.re(value))
            if abs(seen[-1] - seen[0]) > max(1, abs(seen[0])) * small:
                return False
    return len(seen) >= MIN_FIXED


# Values of the symbols, by trial: positive, then with signs. Of up to four symbols no two have the
# same sign in both of the last: |xy| is not xy.
POINTS = tuple(
    tuple(map(Fraction, row.split()))
    for row in (
        "1273/1009 719/1013 2111/997 389/641 1789/773 503/881 1301/499 271/563",
        "311/1031 1613/607 863/1019 2243/811 421/947 1129/557 173/769 1931/983",
        "-1249/983 887/1021 -433/1033 1657/701 -613/859 1483/673 347/991 -991/467",
        "641/1049 -1907/853 -1063/617 -277/1039 1321/709 787/1051 -1543/911 -659/521",
    )
)
FIRST_SIGNED, MIXED = 2, 3  # in the latter alone the first two symbols differ in sign


def bindings_at(names: Sequence[str], trial: int) -> dict[str, Value]:
    return {name: POINTS[trial][(7 * i + i // 8) % 8] + i // 8 for i, name in enumerate(names)}


def equal(gold: Node, answer: Node, tolerance: Tolerance = EXACT) -> bool | None:
    """True if two expressions have the same value; None where that cannot be told.

    Raises CostError.
    """
    if gold == answer:
        return True
    verdict = _equal(gold, answer, tolerance)
    if verdict is not True and any(len(n.args) == 2 for n in _logs(gold)) and _logs(answer):
        verdict = _equal(_decadic(gold), _decadic(answer), tolerance) or verdict
    return verdict


def _equal(gold: Node, answer: Node, tolerance: Tolerance) -> bool | None:
    names = gold.symbols | answer.symbols
    if names:
        return equal_functions(gold, answer, names)
    return equal_numbers(gold, answer, {}, tolerance)


def _logs(node: Node, *names: str) -> list[Node]:
    return [n for n in node.walk() if n.head == "call" and n.args[0] in (names or ("log",))]


def _decadic(node: Node) -> Node:
    """The expression with every logarithm that has no base to the base 10."""

    def based(part: Node) -> Node | None:
        is_bare = part.head == "call" and part.args[0] == "log" and len(part.args) == 2
        return call("log", _decadic(part.args[1]), number(10)) if is_bare else None

    return rewritten(node, based)
