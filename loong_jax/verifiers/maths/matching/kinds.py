"""Golds by their kind: one value, a vector, a function in pieces, several parts, a matrix."""

import itertools
from collections.abc import Sequence

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import (
    BARE_LISTS,
    COLLECTIONS,
    EMPTY,
    ONE,
    UNNAMED,
    ZERO,
    CostError,
    Node,
    number,
    render,
)
from loong_jax.verifiers.maths.matching import ellipses, ladder, naming, nodes, real_sets
from loong_jax.verifiers.maths.matching.ladder import Comparison

MAX_ITEMS = 64
MAX_REPEATS = 2
_POINTS = ("permutations", "binomial")  # as which P(2, 3) and C(2, 3) are read
SEQUENCE = 5  # terms from which on a list that repeats itself is ordered
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
    if gold.head == "based" and _is_bare(answer, *gold.args):  # only the question can make it right
        note = f"the digits are right, their base {gold.args[1]} is not stated"
        return matcher.told("base" in matcher.conventions or None, note)
    if gold.head == "percent" and nodes.is_plain(answer) and "percent" in matcher.conventions:
        return matcher.equal(gold, answer) or matcher.equal(gold.args[0], answer)
    if answer.head == "div" and answer.symbols and not gold.symbols:
        answer = ladder.as_quantity(answer) or answer  # 3 m/s
    if answer.head == "quantity":
        as_unit = ladder.as_quantity(gold)
        if as_unit is None:  # no unit was asked for
            return matcher.equal(gold, answer.args[0])
        return ladder.quantity(matcher, as_unit, answer)
    are_functions = bool(gold.symbols and answer.symbols)
    outcome = matcher.equal(gold, answer) if are_functions else None
    if are_functions and outcome is not True:
        wanted, given = ladder.as_quantity(gold), ladder.as_quantity(answer)
        if wanted is not None and given is not None:  # 25 N m for 25 J
            return ladder.quantity(matcher, wanted, given)
    if answer.head == "matrix":
        return matcher.match(gold, answer.args[0][0]) if nodes.size_of(answer) == (1, 1) else False
    if answer.head == "degree" and gold.head != "degree" and nodes.is_plain(gold):
        return matcher.equal(gold, answer) or (
            "constant" not in gold.heads and matcher.equal(gold, answer.args[0])
        )
    if gold.head == "degree" != answer.head and matcher.equal(gold.args[0], answer):
        # 90 where the degrees were asked for
        return nodes.is_plain(answer) and "constant" not in answer.heads
    if answer.head == "ratio" and len(answer.args) == 2:
        same = matcher.equal(gold, Node("div", answer.args))
        if same and "probability" in matcher.conventions:
            # 1:3 as odds is a probability of 1/4
            return matcher.told(None, "the ratio may be odds")
        return same
    if answer.head in _NO_VALUES:
        return False
    is_percent = answer.head == "percent" and nodes.is_plain(gold)
    if is_percent and matcher.equal(gold, answer.args[0]):
        is_asked = "percent" in matcher.conventions and len(answer.args) == 1
        return matcher.told(is_asked or None, "the gold has no percent sign")
    if "apply" in gold.heads | answer.heads:
        with_products = naming.with_products_of
        gold, answer = with_products(answer, gold), with_products(gold, answer)
        are_functions = False
    outcome = outcome if are_functions else matcher.equal(gold, answer)
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
    return False if parts is None else collection(matcher, Node("tuple", parts), answer)


def _is_bare(answer: Node, value: int, base: int) -> bool:
    """True if an answer has the digits of a number without their base."""
    if answer.head not in ("number", "neg") or answer == number(value):
        return False
    try:
        return int(render(answer), base) == value
    except ValueError:
        return False


def in_pieces(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    while gold.head == "chain" and gold.args[0] == ("=",):  # f(x) = ...
        gold = gold.args[-1]
    if answer.head == "chain" and answer.args[0] == ("=",):
        answer = answer.args[-1]
    if any(node.head != "piecewise" and not nodes.is_value(node) for node in (gold, answer)):
        return False
    matcher.rung = "identity"
    return real_sets.same_functions(gold, answer)


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
    match first:
        case Node("mul", (Node("number") as factor, Node("symbol"))) if (
            factor != ONE and len(operands) == 2 and not last.symbols
        ):  # 2x = 6
            matcher.note = f"{render(answer)} is not solved"
            return None
    if first.head == "number" and last.symbols and len(operands) == 2:
        return first  # 5 = x
    is_sum = first.head in ("add", "neg") and bool(first.symbols)
    if is_sum and last == number(0):
        return None
    if nodes.is_applied(first) or nodes.order_of_quotient(first):
        return last
    if len(operands) == 2 and naming.names_function(first, gold, last):
        return last
    is_counted = first.head == "call" and first.args[0] in ("factorial", "binomial")
    if operators == ("~",) and is_counted and first not in set(gold.walk()):
        return last  # n! ~ ..., by the formula of Stirling
    if first.symbols and last.symbols & first.symbols and first.head != "apply":
        same = all(matcher.equal(gold, operand) for operand in operands)
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


# ---- several parts


def collection(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    items = naming.flat(gold)
    if answer.head == "chain":
        operators, *operands = answer.args
        if operators[-1] not in ("=", "in", "~", "->"):
            is_set = real_sets.real_set(answer) is not None
            return is_set and matcher.same_set(gold, answer)
        answer = operands[-1]
    answer = answer.unlabelled
    if gold.head == "tuple" and answer.head == "call" and answer.args[0] in _POINTS:
        answer = Node("tuple", answer.args[1:])  # the point P(2, 3)
    answer = naming.grouped(gold, answer)
    if answer.head not in COLLECTIONS and "pm" in answer.heads:
        answer = Node("list", naming.spread(answer))
    if gold.head == "tuple":
        parts = nodes.components(answer, len(items), gold.symbols)
        answer = answer if parts is None else Node("tuple", parts)
    if gold == EMPTY:
        return answer == EMPTY
    if answer.head == "matrix":
        if gold.head == "bracket" and items and all(i.head == "bracket" for i in items):
            return matrix(matcher, Node("matrix", tuple(i.args for i in items)), answer)
        if gold.head in ("tuple", "bracket", "list") and 1 in nodes.size_of(answer):
            answer = Node("tuple", tuple(x for row in answer.args for x in row))
    if real_sets.is_set(answer) and real_sets.real_set(gold) is not None:
        if gold.head == "tuple" and not naming.may_be_interval(items):
            return False  # [1/3, -2) is empty, and (1/3, -2) a point
        return matcher.same_set(gold, answer)
    if answer.head in ("interval", "union", "setminus", "builder") or (
        answer.head == "bracket" and gold.head == "tuple" and len(items) == len(answer.args) == 2
    ):
        return matcher.same_set(gold, answer) if gold.head not in BARE_LISTS else False
    if answer.head not in COLLECTIONS:
        return len(items) == 1 and matcher.match(items[0], answer)
    given = naming.flat(answer)
    if all("pm" not in item.heads for item in items):
        given = [one for item in given for one in naming.points(item)]
    if len(given) == 1 and given[0].head in COLLECTIONS and len(items) > 1:
        return collection(matcher, gold, given[0])  # [(4, 112)]
    if len(given) > MAX_ITEMS or len(items) > MAX_ITEMS:
        raise CostError(f"more than {MAX_ITEMS} items")
    if gold.head == "bracket" and answer.head == "tuple" and naming.may_be_interval(items):
        return False
    others = {"set": ("bracket",), "bracket": ("set", *BARE_LISTS)}.get(gold.head, ())
    if answer.head in others and any(map(naming.may_be_interval, (items, given))):
        return matcher.told(None, "square brackets may hold two elements or all between them")
    if {gold.head, answer.head} == {"set", "tuple"}:
        return False
    if len(given) > 1 and {i.head for i in given} == {"set"} != {i.head for i in items}:
        return False  # {1} or {2} is not {1, 2}
    gold_values = [naming.right_side(i) for i in items]
    given_values = [naming.right_side(i) for i in given]
    names = [naming.left_side(i) for i in given]
    is_several = answer.head == "or" or (all(names) and len(set(names)) < len(names))
    if gold.head == "tuple" and is_several:
        return False  # "x = 1 or x = 2" is no point
    own = [naming.left_side(i) for i in items]
    bases = {str(name).partition("_")[0] for name in own}
    if all(own) and all(names) and len(bases) > len(set(names)):
        return False  # "x = 2 or x = 3" for x = 2, y = 3
    in_order = gold.head == "tuple" or (gold.head == "bracket" and answer.head != "set")
    if gold.head == answer.head == "bracket" and len(items) == 2:
        in_order = all(values.real_value(item) is not None for item in items)
    if all(names) and len(set(names)) == len(names) > 1:
        named = dict(zip(names, given_values, strict=True))
        if all(own) and set(own) == set(names):
            given_values, in_order = [named[name] for name in own], True
        elif all(own) and len(bases) > 1:
            in_order = True
        elif set(own) & set(names) and all(str(name).isalpha() for name in names):
            return False  # "x = 2, y = 3" for x = 2 or x = 3
        elif gold.head == "tuple":
            if (order := naming.order_of_point(list(map(str, names)))) is not None:
                given_values = [named[name] for name in order]
            elif names != sorted(map(str, names)) and all(len(str(name)) == 1 for name in names):
                matcher.note = "which of the named values comes first is not stated"
                return unordered(matcher, gold_values, given_values) is not False and None
    if in_order:
        is_whole = len(gold_values) == len(given_values)
        return is_whole and matcher.match_all(gold_values, given_values)
    own, different = list(dict.fromkeys(gold_values)), list(dict.fromkeys(given_values))
    if gold.head == "list" and (ellipses.ELLIPSIS in own or len(own) < len(gold_values)):
        return _sequence(matcher, gold_values, given_values)
    if len(given_values) > len(different) + MAX_REPEATS:
        return False  # no list of solutions names them again and again
    return unordered(matcher, own, different)


def _sequence(matcher: Comparison, gold: list[Node], answer: list[Node]) -> bool | None:
    """A list that repeats itself or goes on: whole, and in order where it is long."""
    if len(gold) != len(answer):
        return False
    if matcher.match_all(gold, answer):
        return True
    if ellipses.ELLIPSIS in gold or not _paired(matcher, gold, answer):
        return False
    # 2, 3, 2 are factors
    return matcher.told(len(gold) < SEQUENCE or None, "the same terms in another order")


def unordered(matcher: Comparison, gold: list[Node], answer: list[Node]) -> bool | None:
    gold, answer = naming.without_repeats(gold), naming.without_repeats(answer)
    return _paired(matcher, gold, answer) if len(gold) == len(answer) else False


def _paired(matcher: Comparison, gold: list[Node], answer: list[Node]) -> bool | None:
    unknown, rest = False, list(answer)
    for item in gold:
        for index, other in enumerate(rest):
            outcome = matcher.match(item, other)
            if outcome:
                del rest[index]
                break
            unknown |= outcome is None
        else:
            return None if unknown else False
    return True


def matrix(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    if answer.head == "symbol" and answer.args[0] in ("I_identity", "O_zero"):
        one = ONE if answer.args[0] == "I_identity" else ZERO
        rows = range(len(gold.args))
        answer = Node("matrix", tuple(tuple(one if i == j else ZERO for j in rows) for i in rows))
    matrix, own = nodes.matrix_of(answer), nodes.size_of(gold)
    if matrix is None and 1 in own:
        parts = nodes.components(answer, max(own), gold.symbols)
        matrix = None if parts is None else nodes.shaped(list(parts), own)
    if matrix is None:
        return False
    given = nodes.size_of(matrix)
    is_flat = 1 in own and 1 in given and matrix.args != ()
    if own != given and not (is_flat and own == given[::-1] and matrix.head == "vector"):
        return False
    flat = itertools.chain.from_iterable
    return matcher.match_all(flat(gold.args), flat(matrix.args))


def ratio(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    if answer.head == "ratio":
        if len(gold.args) != len(answer.args):
            return False
        if any(values.equal(term, ZERO) for term in (*gold.args, *answer.args)):
            # a multiple of 0 is anything: 0:0 is not 2:3, nor 8:00 the time 7:00
            return matcher.match_all(gold.args, answer.args)
        first, other = gold.args[0], answer.args[0]
        return matcher.match_all(
            (Node("mul", (term, other)) for term in gold.args[1:]),
            (Node("mul", (term, first)) for term in answer.args[1:]),
        )
    return len(gold.args) == 2 and matcher.match(Node("div", gold.args), answer)
