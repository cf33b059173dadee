"""Matching of an answer and a gold: by the kind of the gold, down the ladder of equality.

The gold decides what is compared, and the relation is not symmetric: "x = 11" and "11 cm" answer
the gold 11, while "1" does not answer the gold x + z = 1.
"""

import re
from collections.abc import Sequence

from loong_jax.verifiers.maths import values
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
from loong_jax.verifiers.maths.matching import (
    ellipses,
    families,
    kinds,
    ladder,
    naming,
    nodes,
    real_sets,
)
from loong_jax.verifiers.maths.matching.ladder import Comparison
from loong_jax.verifiers.maths.names import FLIPPED

_POINT = re.compile("[A-Z]'{1,3}")
_FINITE = frozenset(("set", "builder", "list", "and"))
_ORDERS = frozenset(("<", "<=", ">", ">="))


class Matcher(Comparison):
    """A comparison by the kind of the gold."""

    def match(self, gold: Node, answer: Node) -> bool | None:
        if gold == answer:
            return True
        self.rung = "canonical"
        gold, answer = ellipses.closed(gold), ellipses.closed(answer)
        if (classes := families.classes_of_gold(gold)) is not None:
            if nodes.domains(answer) and families.INTEGERS not in nodes.domains(answer):
                return False  # k counts from 0 or 1
            if (given := families.classes_of(answer)) is not None:
                self.rung = "numeric"
                return families.same_classes(classes, given)
        family = families.read(gold)
        if family is not None and (other := families.read(answer)) is not None:
            return families.equal(family, other)
        warm, cold = ladder.kelvins(gold), ladder.kelvins(answer)
        if warm is not None and cold is not None and warm[0] != cold[0]:
            return ladder.temperature(self, gold, answer, warm[1], cold[1])
        labels = nodes.label(gold), nodes.label(answer)
        wanted, said = map(" ".join, labels)
        stems = [{word.lower().rstrip("s.") for word in label} for label in labels]
        if all(stems) and not stems[0] & stems[1]:
            return self.told(None, f"{said} for {wanted}")
        if nodes.denies(labels[1]):
            return self.told(False, f"the answer says of it: {said}")
        gold, answer = gold.unlabelled, answer.unlabelled
        if gold.head in ("tuple", "bracket", "interval", "union"):
            match answer:
                case Node("apply", (name, _, _, *_)) if _POINT.fullmatch(str(name)):
                    answer = Node("tuple", answer.args[1:])  # (3, -4) of P'(3, -4)
                case Node("chain", (operators, low, middle, high)) if (
                    len(middle.symbols) > 1 and not low.symbols and not high.symbols
                ):  # of 0 < xy + z < 1 the range of what has several variables
                    answer = Node("chain", (operators, low, UNNAMED, high))
        if gold.head in _FINITE and answer.head in _FINITE:
            gold, answer = families.listed(gold), families.listed(answer)
        if gold.head == "modular":
            if answer.head == "modular" and not self.match(gold.args[1], answer.args[1]):
                return False
            gold = gold.args[0]
        if answer.head == "modular":
            if gold.head == "number" and families.is_open(answer):
                return self.told(False, "the remainder is not worked out")
            answer = families.residue(answer) if gold.head != "chain" else answer.args[0]
        if gold.head == "piecewise" or answer.head == "piecewise":
            return kinds.in_pieces(self, gold, answer)
        if "chain" in gold.heads and gold.args[0] != ("in",):
            match answer:
                case Node("chain", (("in",), name, Node("set", (_, _, *_) as elements))) if (
                    naming.names_something(name)
                ):  # n = 1 or n = 2
                    named = (Node("chain", (("=",), name, element)) for element in elements)
                    answer = Node("or", tuple(named))
        if gold.head == "chain":
            return relation(self, gold, answer)
        if gold.head in BARE_LISTS and any(i.head == "chain" for i in gold.args):
            return _system(self, gold, answer)
        if real_sets.is_set(gold):
            return self.same_set(gold, answer)
        if gold.head in COLLECTIONS:
            return kinds.collection(self, gold, answer)
        if gold.head in ("add", "mul", "div", "neg") and "matrix" in gold.heads:
            gold = nodes.matrix_of(gold) or gold
        if gold.head in ("matrix", "ratio") and answer.head == "chain":
            answer = answer.args[-1]
        if gold.head == "matrix":
            return kinds.matrix(self, gold, answer)
        if gold.head not in COLLECTIONS and "pm" in gold.heads:
            return kinds.collection(self, Node("list", naming.spread(gold)), answer)
        if gold.head == "ratio":
            return kinds.ratio(self, gold, answer)
        return kinds.value(self, gold, answer)


# ---- equations, inequalities, or several of them


def relation(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    gold, answer = naming.with_bounds_named(gold, answer)
    if answer.head in BARE_LISTS and (named := naming.named_parts(gold)) is not None:
        return kinds.collection(matcher, named, answer)  # (a, b) = (1, 2), and b = 2, a = 1
    gold, answer = naming.applied(gold, answer)
    operators, *operands = gold.args
    name, last = operands[0], operands[-1]
    if answer.head != "chain":
        match operands:
            case low, Node("apply" | "div"), high if set(operators) <= _ORDERS:
                if not low.symbols and not high.symbols:
                    # 0 < x < 1 for 0 < f(x) < 1 and 0 < a/b < 1, which an interval answers
                    bounded = Node("chain", (operators, low, UNNAMED, high))
                    return matcher.same_set(bounded, answer)
        if naming.names_ratio(name) and not last.symbols:
            return matcher.match(last, answer)
    renamed = naming.with_names_of(gold, answer)
    if renamed is None:
        return matcher.told(False, f"{render(answer)} renames its argument on one side only")
    answer = renamed
    if set(operators) <= {"=", "~"} and naming.names_something(name):
        target = operands[operators.index("~")] if "~" in operators else last
        target = last if target is name else target
        if answer.head != "chain":
            return matcher.match(target, answer)
        other = answer.args[1]
        match other, name:
            case Node("mul", (Node("symbol", (a,)), Node("symbol", (n,)))), Node("symbol", (a_n,)):
                if a_n == f"{a}_{n}":
                    return matcher.match(target, answer.args[-1])  # a(n) = ... for a_n = ...
        is_solved = any(s.head == "symbol" or s == ZERO for s in answer.args[1:])  # 3x + 4 = 19
        if naming.is_assignment(answer):
            if name == other or naming.may_rename(name, other):
                return matcher.match(target, answer)
            if len(operators) > 1 or name.head == other.head == "apply":
                return False  # f(2) is not f(3)
        elif (
            answer.args[0] == ("=",) and name.head == "symbol" and not (is_solved or target.symbols)
        ):
            return matcher.told(False, f"{render(answer)} is not solved")
        return equation(matcher, gold, answer)
    if operators in (("in",), ("notin",)) or set(operators) <= _ORDERS | {"!="}:
        wanted, is_relation = real_sets.real_set(gold), answer.head == "chain"
        given = real_sets.real_set(answer) if wanted is not None or is_relation else None
        if wanted is None and (real_sets.is_set(answer) or (is_relation and given is not None)):
            return (is_relation and equation(matcher, gold, answer)) or None
        if wanted is not None and given is not None:
            if is_relation and answer.symbols != gold.symbols and answer.args[0] != ("=",):
                return False  # of others
            matcher.rung = "numeric"
            return real_sets.equal(wanted, given)
    if answer.head == "chain":
        return equation(matcher, gold, answer)
    is_measure = operators == ("=",) and naming.names_measure(name) and not last.symbols
    is_known = set(operators) <= {"=", "~", "=="} and not gold.symbols and nodes.is_value(answer)
    return (is_measure or is_known) and matcher.match(last, answer)


def equation(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    """Equations and inequalities with the same solutions: sides differ by a constant factor."""
    operators, *operands = gold.args
    others, *given = answer.args
    if operators == ("=",) == tuple(dict.fromkeys(others)) and not kinds.contradicts(answer):
        others, given = ("=",), [given[0], given[-1]]  # m + n = 16 + 33 = 49
    operands, given = (
        [Node("div", s.args) if s.head == "ratio" and len(s.args) == 2 else s for s in sides]
        for sides in (operands, given)
    )
    if len(operators) > 1 or len(others) > 1 or not {*operators, *others} <= FLIPPED.keys():
        return _chains(operators, operands, others, given)
    operator, other = operators[0], others[0]
    if gold.symbols != answer.symbols:
        return any(equation(matcher, gold, other) for other in naming.renamed(gold, answer))
    if "pm" in answer.heads:
        return _solves(gold, answer)
    left, right = difference(*operands), difference(*given)
    sign = values.constant_ratio(left, right)
    matcher.rung = "identity"
    if sign is None:
        return _chains(operators, operands, others, given)
    if sign:
        return operator == (other if sign > 0 else FLIPPED[other])
    if operator != "=" or other != "=":
        return False
    fractions = zip((left, right), map(nodes.fraction, (left, right)), strict=True)
    numerators = tuple(above if below.symbols else side for side, (above, below) in fractions)
    if values.constant_ratio(*numerators):
        return True
    if numerators == (left, right):
        return False  # polynomials, or as good as
    return matcher.ask(gold, answer)


def _chains(operators, operands, others, given) -> bool | None:
    if operators != others:
        others, given = tuple(FLIPPED.get(o, o) for o in reversed(others)), given[::-1]
    if operators != others:
        return False
    return ladder.all_of(
        [
            g == a or (values.equal(g, a) if nodes.is_value(g) and nodes.is_value(a) else None)
            for g, a in zip(operands, given, strict=True)
        ]
    )


def _system(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    """Several equations or inequalities: values to names, a set of reals, or each of them."""
    items = gold.args
    if answer.head == "chain" and answer.args[1].head == "tuple":
        answer = naming.named_parts(answer) or answer  # (a, b) = (1, 2)
    if any(i.head == "chain" and set(i.args[0]) & _ORDERS for i in items):
        left, right = real_sets.real_set(gold), real_sets.real_set(answer)
        if left is not None and right is not None:
            matcher.rung = "numeric"
            return real_sets.equal(left, right)
    are_assigned = all(map(naming.is_assignment, items))
    if not are_assigned and all(i.head == "chain" and i.args[0] == ("=",) for i in items):
        rights = Node("tuple", tuple(i.args[-1] for i in items))
        if answer.head in BARE_LISTS and not answer.symbols and not rights.symbols:
            return kinds.collection(matcher, rights, Node("tuple", answer.args))
    if not are_assigned:
        if answer.head not in COLLECTIONS:
            return False
        return kinds.unordered(matcher, list(items), list(answer.args))
    if (points := _points(items)) is not None:
        given: Node | None = answer
        if answer.head in BARE_LISTS:
            is_named = sum(map(naming.is_assignment, answer.args)) > 1
            rights = Node("list", tuple(map(naming.right_side, answer.args)))
            given = _points(answer.args) if is_named else rights
        return given is not None and kinds.collection(matcher, points, given)
    bases = {str(naming.left_side(i)).partition("_")[0] for i in items}  # x_1, x_2: roots of x
    are_distinct = len(bases) == len(items) and answer.head in (*BARE_LISTS, "tuple")
    if are_distinct and not any(map(naming.left_side, naming.flat(answer))):  # bare values
        gold = Node("tuple", tuple(map(naming.right_side, items)))
    return kinds.collection(matcher, gold, answer)


def _points(items: Sequence[Node]) -> Node | None:
    """The points of p = 5, q = 2; p = 7, q = 2, by their names in order."""
    if (found := naming.in_turns(items)) is None:
        return None
    order = sorted(range(len(found[0])), key=found[0].__getitem__)
    rows = (tuple(point.args[i] for i in order) for point in found[1].args)
    return Node("list", tuple(Node("tuple", row) for row in rows))


def _solves(curve: Node, halves: Node) -> bool:
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
    third, second = (
        Node("add", tuple(Node("mul", (number(w), y)) for w, y in zip(weights, at, strict=False)))
        for weights in ((1, -3, 3, -1), (1, -2, 1))
    )
    if not values.equal(third, ZERO) or values.equal(second, ZERO) is not False:
        return False
    if second.symbols and not values.is_fixed(second):
        return False
    return all(values.equal(substitute(gap, name, root), ZERO) for root in roots)
