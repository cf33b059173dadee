"""Equality of functions, tested at points that no text can know to be special."""

from collections.abc import Mapping
from fractions import Fraction

from loong_jax.verifiers.maths.expression import Node, heads, symbols, walk
from loong_jax.verifiers.maths.values import numbers, points, rounding
from loong_jax.verifiers.maths.values.powers import Undefined, Value
from loong_jax.verifiers.maths.values.rounding import EXACT

MIN_FIXED = 3  # points at which what is fixed has its value
_WHOLE_NAMES = frozenset("nkmjN")


def equal(gold: Node, answer: Node, names: frozenset[str], common_log: bool) -> bool | None:
    """Tests equality of functions at points that no text can know to be special.

    A point where one side has no real value and the other has says nothing, and neither does one
    outside the domain of a logarithm, or of a root where signs are mixed, since branches differ
    there; two points inside the domain of a logarithm must be left.
    """
    ordered = sorted(names)
    compared = 0
    has_branches = all(_is_real_logarithmic(node) for node in (gold, answer))
    is_real = all(Node("constant", ("i",)) not in walk(node) for node in (gold, answer))
    for trial in range(len(points.POINTS)):
        bindings = points.bindings(ordered, trial)
        outcome = _compare_at(
            gold, answer, bindings, common_log, signed=trial >= points.FIRST_SIGNED
        )
        may_branch = has_branches or (is_real and trial == points.MIXED)  # sqrt(a/b)
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
    parts = list(walk(node))
    return Node("constant", ("i",)) not in parts and any(
        part.head == "call" and part.args[0] in ("ln", "log") and symbols(part) for part in parts
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
    found = heads(node)
    if found & {"sum", "product"}:
        return True
    return any(
        (n.head == "call" and n.args[0] in ("sin", "cos", "floor", "ceiling", "mod", "gcd", "lcm"))
        or (n.head == "pow" and n.args[0].head == "number" and n.args[0].args[0] < 0)
        for n in walk(node)
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
            rounding.between(gold, answer)(Fraction(size), Fraction(abs(a - b))) >= abs(a - b)
        )
    context = evaluator.context
    a, b = evaluator.real(a), evaluator.real(b)
    if not context.isfinite(a) or not context.isfinite(b):
        return None
    if signed and (context.im(a) != 0) != (context.im(b) != 0):
        return None
    digits = (
        9
        if max(rounding.num_digits(gold), rounding.num_digits(answer)) >= rounding.FLOAT_DIGITS
        else 25
    )
    if numbers.near(evaluator, a, b, digits):
        return True
    if max(abs(a), abs(b)) < context.mpf(10) ** -25:  # perhaps noise around 0
        return numbers.equal(gold, answer, bindings, EXACT, common_log)
    return False


def constant_ratio(gold: Node, answer: Node) -> int | None:
    """Sign of the constant that gold is times answer; 0 where there is none, None if unknown."""
    names = sorted(symbols(gold) | symbols(answer))
    ratios = []
    for trial in range(len(points.POINTS)):
        bindings = points.bindings(names, trial)
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
    names = sorted(symbols(node))
    for trial in range(len(points.POINTS)):
        try:
            value, evaluator = numbers.evaluate(
                node, numbers.LOW_DIGITS, points.bindings(names, trial), False
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
