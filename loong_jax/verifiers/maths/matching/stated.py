"""What an equation such as k = 1 or 5 + 6 = 11 says the value is."""

from collections.abc import Sequence

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import (
    Node,
    heads,
    number,
    render,
    strip_labels,
    symbols,
    walk,
)
from loong_jax.verifiers.maths.forms import kinds, naming
from loong_jax.verifiers.maths.matching import ladder
from loong_jax.verifiers.maths.matching.ladder import Matcher


def value_of(matcher: Matcher, answer: Node, gold: Node) -> Node | None:
    """What an equation such as k = 1 or 5 + 6 = 11 says the value is; None if it says none."""
    if answer.head != "chain":
        return answer
    operators, *operands = answer.args
    if operators[-1] == "in" and len(operators) == 1:
        inner = operands[1]
        return inner.args[0] if inner.head == "set" and len(inner.args) == 1 else None
    if operators == ("->",):
        return operands[1]
    if not set(operators) <= {"=", "~", "=="}:
        return None
    if _contradicts(matcher, operators, operands):
        matcher.note = f"{render(answer)} contradicts itself"
        return None
    if "~" in operators and symbols(gold) == frozenset():
        exact = operands[operators.index("~")]
        rounded = operands[-1]
        if symbols(exact) == frozenset():
            return exact if _equal_or_none(matcher, gold, exact) else rounded
    last = strip_labels(operands[-1])
    first = strip_labels(operands[0])
    if len(operands) == 2 and kinds.is_multiple(first) and not symbols(last):
        matcher.note = f"{render(answer)} is not solved"
        return None
    if first.head == "number" and symbols(last) and len(operands) == 2:
        return first  # 5 = x
    is_sum = first.head in ("add", "neg") and bool(symbols(first))
    if is_sum and last == number(0):
        return None
    if kinds.is_applied(first) or kinds.is_derivative(first):
        return last
    if len(operands) == 2 and naming.names_function(first, gold, last):
        return last
    if operators == ("~",) and kinds.is_factorial(first) and first not in set(walk(gold)):
        return last  # n! ~ ..., by the formula of Stirling
    if symbols(first) and symbols(last) & symbols(first) and first.head != "apply":
        same = all(ladder.equal(matcher, gold, operand) for operand in operands)
        return last if same else None  # (x - 1)(x + 1) = x^2 - 1
    return last


def _equal_or_none(matcher: Matcher, gold: Node, answer: Node) -> bool:
    target = gold.args[0] if gold.head == "quantity" else gold
    return kinds.is_value(answer) and values.equal(target, answer, matcher.tolerance) is True


def _contradicts(matcher: Matcher, operators: Sequence[str], operands: Sequence[Node]) -> bool:
    """Whether two numbers of the chain differ, "6 = 5"; f(2) is none, f being unknown."""
    known: Node | None = None
    for index, operand in enumerate(operands):
        operand = strip_labels(operand)
        if operand.head == "quantity" or symbols(operand) or "apply" in heads(operand):
            continue
        if not kinds.is_value(operand):
            continue
        if known is None:
            known = operand
            continue
        if operators[index - 1] == "~":
            if not kinds.is_roughly(known, operand):
                return True
        elif values.equal(known, operand) is False and not (
            "~" in operators[: index - 1] and kinds.is_roughly(known, operand)
        ):
            return True
    return False
