"""Golds of one value: a number, an expression, a vector, a function in pieces."""

from collections.abc import Sequence

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import naming, nodes, piecewise
from loong_jax.verifiers.maths.expression import (
    BARE_LISTS,
    COLLECTIONS,
    UNNAMED,
    Node,
    number,
    render,
)
from loong_jax.verifiers.maths.matching import ladder, several
from loong_jax.verifiers.maths.matching.ladder import Comparison

_NO_VALUES = frozenset(str.split("chain interval union builder setminus intersection ratio"))


def value(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    if answer.head == "chain" and answer.args[1] == UNNAMED:
        # which the question may ask for: "at least 5 socks"
        return matcher.told(None, "the answer is a bound")
    if (stated := value_of(matcher, answer, gold)) is None:
        return False
    answer = stated
    if answer.head in ("tuple", "matrix") and nodes.is_combination(gold):
        return _vector(matcher, gold, answer)
    if answer.head in COLLECTIONS or "pm" in answer.heads:
        items = answer.args if answer.head in COLLECTIONS else naming.spread(answer)
        if len(items) > 1 and answer.head in BARE_LISTS:
            items = _solved(items)
            items = naming.without_restrictions(naming.without_repeats(list(items)))  # 24, 24
        if len(items) == 1:
            return matcher.match(gold, items[0])
        return ladder.sum_of_quantities(matcher, gold, items)
    if gold.head == "quantity":
        return ladder.quantity(matcher, gold, answer)
    if gold.head == "based" and (outcome := _bare_digits(matcher, gold, answer)) is not False:
        return outcome
    if gold.head == "percent" and nodes.is_plain(answer) and "percent" in matcher.conventions:
        return ladder.equal(matcher, gold, answer) or ladder.equal(matcher, gold.args[0], answer)
    if answer.head == "div" and answer.symbols and not gold.symbols:
        answer = ladder.as_quantity(answer) or answer  # 3 m/s
    if answer.head == "quantity":
        as_unit = ladder.as_quantity(gold)
        if as_unit is None:  # no unit was asked for
            return ladder.equal(matcher, gold, answer.args[0])
        return ladder.quantity(matcher, as_unit, answer)
    are_functions = bool(gold.symbols and answer.symbols)
    outcome = ladder.equal(matcher, gold, answer) if are_functions else None
    if are_functions and outcome is not True:
        pair = ladder.as_quantity(gold), ladder.as_quantity(answer)
        if pair[0] is not None and pair[1] is not None:  # 25 N m for 25 J
            return ladder.quantity(matcher, pair[0], pair[1])
    if answer.head == "matrix":
        return matcher.match(gold, answer.args[0][0]) if nodes.size_of(answer) == (1, 1) else False
    if answer.head == "degree" and gold.head != "degree" and nodes.is_plain(gold):
        return ladder.equal(matcher, gold, answer) or (
            "constant" not in gold.heads and ladder.equal(matcher, gold, answer.args[0])
        )
    if gold.head == "degree" != answer.head and ladder.equal(matcher, gold.args[0], answer):
        # 90 where the degrees were asked for
        return nodes.is_plain(answer) and "constant" not in answer.heads
    if answer.head == "ratio" and len(answer.args) == 2:
        same = ladder.equal(matcher, gold, Node("div", answer.args))
        if same and "probability" in matcher.conventions:
            # 1:3 as odds is a probability of 1/4
            return matcher.told(None, "the ratio may be odds")
        return same
    if answer.head in _NO_VALUES:
        return False
    is_percent = answer.head == "percent" and nodes.is_plain(gold)
    if is_percent and ladder.equal(matcher, gold, answer.args[0]):
        is_asked = "percent" in matcher.conventions and len(answer.args) == 1
        return matcher.told(is_asked or None, "the gold has no percent sign")
    if "apply" in gold.heads | answer.heads:
        with_products = naming.with_products_of
        gold, answer = with_products(answer, gold), with_products(gold, answer)
        are_functions = False
    outcome = outcome if are_functions else ladder.equal(matcher, gold, answer)
    if outcome is False and all(map(nodes.is_combination, (gold, answer))):
        return _vector(matcher, gold, answer)
    return outcome


def _solved(items: Sequence[Node]) -> Sequence[Node]:
    """x = 5 of "0.3x = 1.5 and x = 5" or of "f(x) = x + 2, f(3) = 5": what the others lead to."""
    last = items[-1]
    if all(i.head == "chain" and {*i.args[0]} == {"="} for i in items) and (
        len({i.args[1] for i in items}) == 1 and not last.args[1].symbols
    ):
        return items[-1:]  # sin 120 = sin 60, and so sin 120 = 1/2 sqrt 3
    if not naming.is_assignment(last) or naming.right_side(last).symbols:
        return items
    before = [item for item in items[:-1] if item.head == "chain" and item.args[-1].head != "text"]
    leads = all(
        not naming.is_assignment(item) or naming.right_side(item).symbols for item in before
    )
    return items[-1:] if len(before) == len(items) - 1 and leads else items


def _vector(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    """A gold 2i - 3j + k beside components, or beside other names of the unit vectors."""
    size = 3
    if answer.head in ("tuple", "matrix"):
        size = max(nodes.size_of(answer)) if answer.head == "matrix" else len(answer.args)
    parts = nodes.components(gold, size, frozenset())
    return False if parts is None else several.collection(matcher, Node("tuple", parts), answer)


def _bare_digits(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    """The digits without their base, which only the question can make right."""
    value, base = gold.args
    if answer.head not in ("number", "neg") or answer == number(value):
        return False
    try:
        if int(render(answer), base) != value:
            return False
    except ValueError:
        return False
    note = f"the digits are right, their base {base} is not stated"
    return matcher.told("base" in matcher.conventions or None, note)


def in_pieces(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    if gold.head == "chain":  # f(x) = ...
        gold, operators = gold.args[-1], gold.args[0]
        return in_pieces(matcher, gold, answer) if operators == ("=",) else False
    if answer.head == "chain":
        answer = answer.args[-1] if answer.args[0] == ("=",) else answer
    if any(node.head != "piecewise" and not nodes.is_value(node) for node in (gold, answer)):
        return False
    matcher.rung = "identity"
    return piecewise.equal(gold, answer)


def value_of(matcher: Comparison, answer: Node, gold: Node) -> Node | None:
    """The value that an equation such as k = 1 or 5 + 6 = 11 states; None if it states none."""
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
    if contradicts(answer):
        matcher.note = f"{render(answer)} contradicts itself"
        return None
    exact = operands[operators.index("~")] if "~" in operators else None
    if exact is not None and not gold.symbols and not exact.symbols:
        target = gold.args[0] if gold.head == "quantity" else gold
        same = nodes.is_value(exact) and values.equal(target, exact, matcher.tolerance)
        return exact if same else operands[-1]
    last = operands[-1].unlabelled
    if gold.head == "quantity" and (amount := ladder.as_quantity(last)) is not None:
        last = amount if amount.args[1].dimensions == gold.args[1].dimensions else last
        operands = [last]  # 3.5 * 100 g = 350 g
    first = operands[0].unlabelled
    if len(operands) == 2 and nodes.is_multiple(first) and not last.symbols:
        matcher.note = f"{render(answer)} is not solved"
        return None
    if first.head == "number" and last.symbols and len(operands) == 2:
        return first  # 5 = x
    is_sum = first.head in ("add", "neg") and bool(first.symbols)
    if is_sum and last == number(0):
        return None
    if nodes.is_applied(first) or nodes.is_derivative(first):
        return last
    if len(operands) == 2 and naming.names_function(first, gold, last):
        return last
    is_counted = first.head == "call" and first.args[0] in ("factorial", "binomial")
    if operators == ("~",) and is_counted and first not in set(gold.walk()):
        return last  # n! ~ ..., by the formula of Stirling
    if first.symbols and last.symbols & first.symbols and first.head != "apply":
        same = all(ladder.equal(matcher, gold, operand) for operand in operands)
        return last if same else None  # (x - 1)(x + 1) = x^2 - 1
    return last


def contradicts(chain: Node) -> bool:
    """True if two numbers of a chain differ, "6 = 5"; f(2) is none, f being unknown."""
    operators, *operands = chain.args
    known: Node | None = None
    for index, operand in enumerate(operands):
        operand = operand.unlabelled
        if index == 0 and operand.head == "constant":
            continue  # the name e or i
        is_known = operand.head != "quantity" and not operand.symbols
        if not is_known or "apply" in operand.heads or not nodes.is_value(operand):
            continue
        if known is None:
            known = operand
        elif operators[index - 1] == "~" or "~" in operators[: index - 1]:
            if not nodes.is_roughly(known, operand):
                return True
        elif values.equal(known, operand) is False:
            return True
    return False
