"""Golds that are equations, inequalities, or several of them."""

from collections.abc import Sequence

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import naming, nodes, real_sets
from loong_jax.verifiers.maths.expression import (
    BARE_LISTS,
    COLLECTIONS,
    UNNAMED,
    ZERO,
    Node,
    difference,
    number,
    render,
    substitute,
)
from loong_jax.verifiers.maths.matching import ladder, several, single
from loong_jax.verifiers.maths.matching.ladder import Comparison
from loong_jax.verifiers.maths.names import FLIPPED

_ORDERS = frozenset(("<", "<=", ">", ">="))


def relation(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    gold, answer = naming.with_bounds_named(gold, answer)
    operators, *operands = gold.args
    if answer.head in BARE_LISTS and (named := naming.named_parts(gold)) is not None:
        return several.collection(matcher, named, answer)  # (a, b) = (1, 2), and b = 2, a = 1
    gold, answer = naming.applied(gold, answer)
    operands = gold.args[1:]
    if (bounded := _bounded(gold)) is not None and answer.head != "chain":
        return ladder.real_set(matcher, bounded, answer)
    if answer.head != "chain" and naming.names_ratio(operands[0]) and not operands[-1].symbols:
        return matcher.match(operands[-1], answer)
    renamed = naming.with_names_of(gold, answer)
    if renamed is None:
        return matcher.told(False, f"{render(answer)} renames its argument on one side only")
    answer = renamed
    if set(operators) <= {"=", "~"} and naming.names_something(operands[0]):
        target = operands[operators.index("~")] if "~" in operators else operands[-1]
        target = operands[-1] if target is operands[0] else target
        if answer.head != "chain":
            return matcher.match(target, answer)
        if naming.is_term(answer.args[1], operands[0]):
            return matcher.match(target, answer.args[-1])  # a(n) = ... for a_n = ...
        if naming.is_assignment(answer):
            name, other = operands[0], answer.args[1]
            if name != other and not naming.may_rename(name, other):
                is_function = name.head == other.head == "apply"  # f(2) is not f(3)
                is_open = len(operators) == 1 and not is_function
                return equation(matcher, gold, answer) if is_open else False
            return matcher.match(target, answer)
        if not target.symbols and operands[0].head == "symbol" and nodes.is_unsolved(answer):
            return matcher.told(False, f"{render(answer)} is not solved")
        return equation(matcher, gold, answer)
    if operators in (("in",), ("notin",)) or set(operators) <= {"<", "<=", ">", ">=", "!="}:
        gold_set = real_sets.real_set(gold)
        if gold_set is None:
            is_relation = answer.head == "chain"
            if real_sets.is_set(answer) or (is_relation and real_sets.real_set(answer) is not None):
                return (is_relation and equation(matcher, gold, answer)) or None
        elif (answer_set := real_sets.real_set(answer)) is not None:
            is_of_others = answer.head == "chain" and answer.symbols != gold.symbols
            if is_of_others and answer.args[0] != ("=",):
                return False
            matcher.rung = "numeric"
            return real_sets.equal(gold_set, answer_set)
    if answer.head != "chain":
        if operators == ("=",) and naming.names_measure(operands[0]) and not operands[1].symbols:
            return matcher.match(operands[1], answer)
        if set(operators) <= {"=", "~", "=="} and not gold.symbols and nodes.is_value(answer):
            return matcher.match(operands[-1], answer)
        return False
    return equation(matcher, gold, answer)


def _bounded(gold: Node) -> Node | None:
    """0 < x < 1 for 0 < f(x) < 1 and 0 < a/b < 1, which an interval answers."""
    match gold.args:
        case (operators, low, Node("apply" | "div"), high) if set(operators) <= _ORDERS:
            if not low.symbols and not high.symbols:
                return Node("chain", (operators, low, UNNAMED, high))
    return None


def equation(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    """Equations and inequalities with the same solutions: sides differ by a constant factor."""
    operators, *operands = gold.args
    others, *given = answer.args
    if operators == ("=",) == tuple(dict.fromkeys(others)) and not single.contradicts(answer):
        others, given = ("=",), [given[0], given[-1]]  # m + n = 16 + 33 = 49
    if len(operators) > 1 or len(others) > 1:
        return _chains(matcher, operators, operands, others, given)
    operator, other = operators[0], others[0]
    operands, given = (
        [Node("div", s.args) if s.head == "ratio" and len(s.args) == 2 else s for s in sides]
        for sides in (operands, given)
    )
    if operator not in FLIPPED or other not in FLIPPED:
        return _chains(matcher, operators, operands, others, given)
    if gold.symbols != answer.symbols:
        return any(equation(matcher, gold, other) for other in naming.renamed(gold, answer))
    if "pm" in answer.heads:
        return solves(gold, answer)
    left, right = difference(*operands), difference(*given)
    sign = values.constant_ratio(left, right)
    matcher.rung = "identity"
    if sign is None:
        return _chains(matcher, operators, operands, others, given)
    if sign:
        return operator == (other if sign > 0 else FLIPPED[other])
    if operator != "=" or other != "=":
        return False
    numerators = nodes.numerator(left), nodes.numerator(right)
    if values.constant_ratio(*numerators):
        return True
    if numerators == (left, right):
        return False  # polynomials, or as good as
    return ladder.ask(matcher, gold, answer)


def _points(items: Sequence[Node]) -> Node | None:
    """The points of p = 5, q = 2; p = 7, q = 2, by their names in order."""
    if (found := naming.in_turns(items)) is None:
        return None
    order = sorted(range(len(found[0])), key=found[0].__getitem__)
    return Node("list", tuple(Node("tuple", tuple(row[i] for i in order)) for row in found[1]))


def _chains(matcher: Comparison, operators, operands, others, given) -> bool | None:
    if len(operators) != len(others):
        return False
    if tuple(operators) != tuple(others):
        others = tuple(FLIPPED.get(o, o) for o in reversed(others))
        given = list(reversed(given))
        if tuple(operators) != others:
            return False
    return ladder.all_of(
        [
            g == a or (values.equal(g, a) if nodes.is_value(g) and nodes.is_value(a) else None)
            for g, a in zip(operands, given, strict=True)
        ]
    )


def system(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    """Several equations or inequalities: values to names, a set of reals, or each of them."""
    items = gold.args
    if answer.head == "chain" and answer.args[1].head == "tuple":
        answer = naming.named_parts(answer) or answer  # (a, b) = (1, 2)
    if any(i.head == "chain" and set(i.args[0]) & _ORDERS for i in items):
        left, right = real_sets.real_set(gold), real_sets.real_set(answer)
        if left is not None and right is not None:
            matcher.rung = "numeric"
            return real_sets.equal(left, right)
    are_equal = all(i.head == "chain" and i.args[0] == ("=",) for i in items)
    rights = Node("tuple", tuple(i.args[-1] for i in items))
    is_bare = answer.head in BARE_LISTS and not answer.symbols and not rights.symbols
    if are_equal and is_bare and not all(map(naming.is_assignment, items)):
        return several.collection(matcher, rights, Node("tuple", answer.args))
    if all(naming.is_assignment(i) for i in items):
        names = [naming.left_side(i) for i in items]
        if (points := _points(items)) is not None:
            given: Node | None = answer
            if answer.head in BARE_LISTS:
                named = [i for i in answer.args if naming.is_assignment(i)]
                parts = tuple(naming.right_side(i) for i in answer.args)
                given = _points(answer.args) if len(named) > 1 else Node("list", parts)
            return given is not None and several.collection(matcher, points, given)
        bases = {str(name).partition("_")[0] for name in names}  # x_1 and x_2 are roots of x
        is_ordered = len(bases) == len(names) and answer.head in ("list", "and", "or", "tuple")
        if is_ordered and not any(map(naming.left_side, naming.flat(answer))):  # bare values
            rights = Node("tuple", tuple(map(naming.right_side, items)))
            return several.collection(matcher, rights, answer)
        return several.collection(matcher, gold, answer)
    if answer.head not in COLLECTIONS:
        return False
    return several.unordered(matcher, list(items), list(answer.args))


def solves(curve: Node, halves: Node) -> bool:
    """True if an equation quadratic in a name has as its solutions both values of the other.

    The coefficient of the square has to be a number: x y^2 = x has the line x = 0 besides.
    """
    if curve.args[0] != ("=",) or halves.args[0] != ("=",) or halves.args[1].head != "symbol":
        return False
    name = halves.args[1].args[0]
    roots = naming.spread(halves.args[2])
    if len(roots) != 2 or name in halves.args[2].symbols or name not in curve.symbols:
        return False
    if len(curve.symbols) < 2 or values.equal(*roots) is not False:
        return False
    gap = difference(curve.args[1], curve.args[2])
    at = [substitute(gap, name, number(y)) for y in range(4)]
    third, second = _weighted(at, (1, -3, 3, -1)), _weighted(at, (1, -2, 1))
    if not values.equal(third, ZERO) or values.equal(second, ZERO) is not False:
        return False
    if second.symbols and not values.is_fixed(second):
        return False
    return all(values.equal(substitute(gap, name, root), ZERO) for root in roots)


def _weighted(terms: list[Node], weights: tuple[int, ...]) -> Node:
    pairs = zip(map(number, weights), terms, strict=False)
    return Node("add", tuple(Node("mul", pair) for pair in pairs))
