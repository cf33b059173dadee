"""Golds of several parts: lists, sets and tuples, matrices, ratios."""

import itertools

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.comparing import ellipses, naming, nodes, real_sets
from loong_jax.verifiers.maths.expression import (
    BARE_LISTS,
    COLLECTIONS,
    EMPTY,
    ONE,
    ZERO,
    CostError,
    Node,
)
from loong_jax.verifiers.maths.matching import ladder
from loong_jax.verifiers.maths.matching.ladder import Comparison

MAX_ITEMS = 64
MAX_REPEATS = 2
_POINTS = ("permutations", "binomial")  # as which P(2, 3) and C(2, 3) are read
SEQUENCE = 5  # terms from which on a list that repeats itself is ordered


def collection(matcher: Comparison, gold: Node, answer: Node) -> bool | None:
    items = naming.flat(gold)
    if answer.head == "chain":
        operators, *operands = answer.args
        if operators[-1] not in ("=", "in", "~", "->"):
            is_set = real_sets.real_set(answer) is not None
            return is_set and ladder.real_set(matcher, gold, answer)
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
        return ladder.real_set(matcher, gold, answer)
    if answer.head in ("interval", "union", "setminus", "builder") or (
        answer.head == "bracket" and gold.head == "tuple" and len(items) == len(answer.args) == 2
    ):
        return ladder.real_set(matcher, gold, answer) if gold.head not in BARE_LISTS else False
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
    if (
        (answer.head == "bracket" and gold.head == "set")
        or (gold.head == "bracket" and answer.head in ("set", *BARE_LISTS))
    ) and (naming.may_be_interval(items) or naming.may_be_interval(given)):
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
        if all(own) and set(own) == set(names):
            order = [names.index(name) for name in own]
            given_values, in_order = [given_values[i] for i in order], True
        elif all(own) and len(bases) > 1:
            in_order = True
        elif set(own) & set(names) and all(str(name).isalpha() for name in names):
            return False  # "x = 2, y = 3" for x = 2 or x = 3
        elif gold.head == "tuple":
            if (order := naming.order_of_point(list(map(str, names)))) is not None:
                named = dict(zip(names, given_values, strict=True))
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
    matcher.note = "the same terms in another order"
    return True if len(gold) < SEQUENCE else None  # 2, 3, 2 are factors


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
    if answer.head == "chain":
        answer = answer.args[-1]
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
    if answer.head == "chain":
        answer = answer.args[-1]
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
