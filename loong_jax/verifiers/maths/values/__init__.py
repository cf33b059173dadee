"""Equality of two values: exact rationals, then numbers at two precisions, then identity testing.

Two exact values are equal only if they are the same, however close: 1/2004! is not 1/2006!.
`evaluator` gives values, `functions` those of sin and its like; `numbers` compares numbers and says
what a decimal may stand for. Functions are tested at points that no text can know to be special.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from loong_jax.verifiers.maths.expression import Node
from loong_jax.verifiers.maths.values import numbers
from loong_jax.verifiers.maths.values.functions import Undefined, Value
from loong_jax.verifiers.maths.values.numbers import (
    EXACT,
    LONG_DIGITS,
    Tolerance,
    affine,
    gap,
    is_exact,
    rational,
    real_value,
)

MIN_FIXED = 3  # points at which what is fixed has its value
_WHOLE_NAMES = frozenset("nkmjN")


def equal_functions(
    gold: Node, answer: Node, names: frozenset[str], common_log: bool
) -> bool | None:
    """Tests equality of functions at points that no text can know to be special.

    A point where one side has no real value and the other has says nothing, and neither does one
    outside the domain of a logarithm, or of a root where signs are mixed, since branches differ
    there; two points inside the domain of a logarithm must be left.
    """
    ordered = sorted(names)
    compared = 0
    has_branches = all(_is_real_logarithmic(node) for node in (gold, answer))
    is_real = all(Node("constant", ("i",)) not in node.walk() for node in (gold, answer))
    for trial in range(len(POINTS)):
        bindings = bindings_at(ordered, trial)
        outcome = _compare_at(gold, answer, bindings, common_log, signed=trial >= FIRST_SIGNED)
        may_branch = has_branches or (is_real and trial == MIXED)  # sqrt(a/b)
        if outcome is False and may_branch and _are_complex(gold, answer, bindings):
            continue
        if outcome is False:
            if names <= _WHOLE_NAMES:
                return _identical_on_integers(gold, answer, ordered, common_log)
            return False
        compared += outcome is True
    if compared > has_branches:
        return True
    if not _needs_integers(gold) and not _needs_integers(answer):
        return None
    return _identical_on_integers(gold, answer, ordered, common_log)


def _is_real_logarithmic(node: Node) -> bool:
    """Whether it has logarithms of its symbols and no imaginary number of its own."""
    parts = list(node.walk())
    return Node("constant", ("i",)) not in parts and any(
        part.head == "call" and part.args[0] in ("ln", "log") and part.symbols for part in parts
    )


def _are_complex(gold: Node, answer: Node, bindings: Mapping[str, Value]) -> bool:
    """Whether neither has a real value there."""
    for node in (gold, answer):
        value, evaluator = numbers.evaluate(node, numbers.LOW_DIGITS, bindings, False)
        if evaluator.context.im(evaluator.real(value)) == 0:
            return False
    return True


def _identical_on_integers(
    gold: Node, answer: Node, ordered: list[str], common_log: bool
) -> bool | None:
    """For sums up to n and (-1)^n: values at whole numbers, of both parities."""
    if not _needs_integers(gold) and not _needs_integers(answer):
        return False
    compared = False
    for start in (2, 3, 5, 6, 9, 11):
        bindings = {name: start + 3 * i for i, name in enumerate(ordered)}
        outcome = _compare_at(gold, answer, bindings, common_log, signed=False)
        if outcome is False:
            return False
        compared |= outcome is True
    return True if compared else None


def _needs_integers(node: Node) -> bool:
    found = node.heads
    if found & {"sum", "product"}:
        return True
    return any(
        (n.head == "call" and n.args[0] in ("sin", "cos", "floor", "ceiling", "mod", "gcd", "lcm"))
        or (n.head == "pow" and n.args[0].head == "number" and n.args[0].args[0] < 0)
        for n in node.walk()
    )


def _compare_at(
    gold: Node, answer: Node, bindings: Mapping[str, Value], common_log: bool, *, signed: bool
) -> bool | None:
    try:
        a, evaluator = numbers.evaluate(gold, numbers.LOW_DIGITS, bindings, common_log)
        b, _ = numbers.evaluate(answer, numbers.LOW_DIGITS, bindings, common_log)
    except Undefined:
        return None
    if numbers.is_exact(a) and numbers.is_exact(b):
        if a == b:
            return True
        size = max(abs(a), abs(b))
        return bool(
            numbers.between(gold, answer)(Fraction(size), Fraction(abs(a - b))) >= abs(a - b)
        )
    context = evaluator.context
    a, b = evaluator.real(a), evaluator.real(b)
    if not context.isfinite(a) or not context.isfinite(b):
        return None
    if signed and (context.im(a) != 0) != (context.im(b) != 0):
        return None
    digits = (
        9
        if max(numbers.num_digits(gold), numbers.num_digits(answer)) >= numbers.FLOAT_DIGITS
        else 25
    )
    if numbers.near(evaluator, a, b, digits):
        return True
    if max(abs(a), abs(b)) < context.mpf(10) ** -25:  # perhaps noise around 0
        return numbers.equal(gold, answer, bindings, EXACT, common_log)
    return False


def constant_ratio(gold: Node, answer: Node) -> int | None:
    """Sign of the constant that gold is times answer; 0 where there is none, None if unknown."""
    names = sorted(gold.symbols | answer.symbols)
    ratios = []
    for trial in range(len(POINTS)):
        bindings = bindings_at(names, trial)
        try:
            a, evaluator = numbers.evaluate(gold, numbers.LOW_DIGITS, bindings, False)
            b, _ = numbers.evaluate(answer, numbers.LOW_DIGITS, bindings, False)
        except Undefined:
            continue
        context = evaluator.context
        a, b = evaluator.real(a), evaluator.real(b)
        if not context.isfinite(a) or not context.isfinite(b):
            continue
        if b == 0 or a == 0:
            if a == b:
                continue
            return 0
        ratios.append(a / b)
    if len(ratios) < 2:
        return None
    first = ratios[0]
    if any(abs(ratio - first) > abs(first) * context.mpf(10) ** -20 for ratio in ratios[1:]):
        return 0
    if context.im(first) != 0:
        return 0
    return 1 if context.re(first) > 0 else -1


def is_fixed(node: Node) -> bool:
    """Whether an expression has one real value, whatever its symbols are."""
    seen = []
    names = sorted(node.symbols)
    for trial in range(len(POINTS)):
        try:
            value, evaluator = numbers.evaluate(
                node, numbers.LOW_DIGITS, bindings_at(names, trial), False
            )
        except Undefined:
            continue
        value, context = evaluator.real(value), evaluator.context
        if context.isfinite(value) and abs(context.im(value)) < context.mpf(10) ** -25:
            seen.append(context.re(value))
    if len(seen) < MIN_FIXED:
        return False
    size = max(1, *map(abs, seen))
    return all(abs(value - seen[0]) <= size * context.mpf(10) ** -25 for value in seen)


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
    """Whether two expressions have the same value; None where that cannot be told.

    Raises CostError.
    """
    if gold == answer:
        return True
    names = gold.symbols | answer.symbols
    verdict = _equal_at(gold, answer, names, tolerance, common_log=False)
    if verdict is not True and any(len(n.args) == 2 for n in _logs(gold)) and _logs(answer):
        verdict = _equal_at(gold, answer, names, tolerance, common_log=True) or verdict
    return verdict


def _logs(node: Node) -> list[Node]:
    return [n for n in node.walk() if n.head == "call" and n.args[0] == "log"]


def _equal_at(
    gold: Node, answer: Node, names: frozenset[str], tolerance: Tolerance, *, common_log: bool
) -> bool | None:
    if names:
        return equal_functions(gold, answer, names, common_log)
    return numbers.equal(gold, answer, {}, tolerance, common_log)


__all__ = ["EXACT", "LONG_DIGITS", "Tolerance", "affine", "constant_ratio", "equal", "gap",
           "is_exact", "is_fixed", "rational", "real_value"]  # fmt: skip
