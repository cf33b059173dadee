"""Equations that name a value, x = 3 or (a, b) = (1, 2); lists; answers in the gold's names."""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from loong_jax.verifiers.maths import values
from loong_jax.verifiers.maths.expression import (
    BARE_LISTS,
    COLLECTIONS,
    UNNAMED,
    Node,
    difference,
    negate,
    number,
    render,
    rewritten,
    substitute,
    symbol,
    with_names,
)
from loong_jax.verifiers.maths.matching import nodes


def names_something(node: Node) -> bool:
    node = node.unlabelled
    if node.head in ("symbol", "apply") or nodes.order_of_quotient(node):
        return True
    if node.head == "mul" and node.args[0] == Node("symbol", ("nabla",)) and len(node.args) == 2:
        return node.args[1].head == "symbol"
    if node.head == "call" and node.args[0] in ("abs", "norm"):
        return all(item.head in ("symbol", "mul") for item in node.args[1:])
    return node.head == "tuple" and all(item.head == "symbol" for item in node.args)


def names_ratio(node: Node) -> bool:
    """A : B, AB/CD or V_1/V_2, whose value is asked for; y/x is a part of an equation."""
    if node.head not in ("ratio", "div") or node.heads - {node.head, "symbol", "mul"}:
        return False
    return node.head == "ratio" or all(n[:1].isupper() or "_" in n for n in node.symbols)


def names_function(left: Node, gold: Node, right: Node) -> bool:
    """True if F(s), phi(pq) or P(X = k), read as a product, is a name that neither side uses."""
    if left.head != "mul" or len(left.args) != 2 or left.args[0].head != "symbol":
        return False
    name, argument = left.args
    base = nodes.without_accent(name.args[0]).partition("_")[0]
    if name.args[0] in gold.symbols | right.symbols:
        return False
    if argument.head == "chain":  # P(X = k)
        variables = {v for v in argument.symbols if not v[:1].isupper()}
        return base in ("P", "Pr") and variables <= gold.symbols
    if argument.head not in ("symbol", "mul"):
        return False
    is_name = base in _FUNCTION_NAMES or (len(base) == 1 and base.isupper())
    return is_name and bool(argument.symbols) and argument.symbols <= gold.symbols


def names_measure(left: Node) -> bool:
    """sigma^2, s^2, chi^2, R^2, eta^2, which are names of one value, and rank(A)."""
    match left:
        case Node("pow", (Node("symbol", (name,)), exponent)):
            return exponent == number(2) and name.partition("_")[0] in _SQUARED_NAMES
        case Node("mul", (Node("symbol", (name,)), Node("symbol", (argument,)))):
            return name != argument and name in _FUNCTIONALS
    return False


def with_products_of(other: Node, node: Node) -> Node:
    """g times (a - b) for g(a - b), where `other` has the letter g as a number."""
    known = set(other.walk())

    def multiplied(part: Node) -> Node | None:
        if part.head != "apply" or len(part.args) != 2 or symbol(str(part.args[0])) not in known:
            return None
        return Node("mul", (symbol(str(part.args[0])), rewritten(part.args[1], multiplied)))

    return rewritten(node, multiplied)


_FUNCTION_NAMES = frozenset(("phi", "varphi", "psi", "Phi", "Psi", "Gamma", "Pr"))
_FUNCTIONALS = frozenset(("rank", "rk", "nullity", "tr", "trace", "Var", "Cov", "ord"))
_SQUARED_NAMES = frozenset(("sigma", "s", "chi", "R", "eta"))


def is_assignment(node: Node) -> bool:
    node = node.unlabelled
    is_equation = node.head == "chain" and set(node.args[0]) <= {"=", "~"}
    return is_equation and names_something(node.args[1])


def may_rename(name: Node, other: Node) -> bool:
    """y and f(x) name the same thing, as do a long name and another."""
    orders = nodes.order_of_derivative(name), nodes.order_of_derivative(other)
    if name.head == other.head == "div":
        return orders[0] == orders[1] > 0 and name.args[1] == other.args[1]
    if any(orders) and (all(orders) or name.head == other.head == "apply"):
        return orders[0] == orders[1]
    if nodes.order_of_quotient(name) or nodes.order_of_quotient(other):
        return False
    if name.head == "apply" or other.head == "apply":
        return name.head != other.head or bool(name.symbols or other.symbols)  # f(2) is not f(3)
    if not name.head == other.head == "symbol":
        return False
    (one,), (another,) = name.args, other.args
    are_long = len(one) > 1 and len(another) > 1 and one[0] == another[0]
    return are_long and not {one, another} & {"pH", "pOH"}


def left_side(node: Node) -> str | None:
    node = node.unlabelled
    return render(node.args[1]) if is_assignment(node) else None


def right_side(node: Node) -> Node:
    return node.unlabelled.args[-1] if is_assignment(node) else node


def order_of_point(names: Sequence[str]) -> list[str] | None:
    """Names in the order of a point, where they tell it: y = 2, x = 1 is (1, 2) and not (2, 1)."""
    if set(names) <= {"x", "y", "z"}:
        return sorted(names)
    parts = [name.rpartition("_") for name in names]
    if len({letter for letter, _, _ in parts}) == 1 and all(n.isdecimal() for *_, n in parts):
        return sorted(names, key=lambda name: int(name.rpartition("_")[2]))
    return None


def named_parts(equation: Node) -> Node | None:
    """(a, b) = (1, 2) as the list of a = 1 and b = 2; None for any other equation."""
    match equation.args:
        case (("=",), Node("tuple", names), Node("tuple", parts)) if len(names) == len(parts):
            if all(name.head == "symbol" for name in names):
                pairs = zip(names, parts, strict=True)
                return Node("list", tuple(Node("chain", (("=",), *pair)) for pair in pairs))
    return None


def in_turns(items: Sequence[Node]) -> tuple[list[str], Node] | None:
    """Names, and a list of points, one for each time they come, of x = 1, y = 2, x = 3, y = 4."""
    names = [name for item in items if (name := left_side(item)) is not None]
    size = len(set(names))
    if len(names) < len(items) or size < 2 or len(names) == size or len(names) % size:
        return None
    points = []
    for i in range(0, len(names), size):
        row = dict(zip(names[i : i + size], items[i : i + size], strict=True))
        if len(row) < size:
            return None
        points.append(Node("tuple", tuple(right_side(row[name]) for name in names[:size])))
    return names[:size], Node("list", tuple(points))


def grouped(gold: Node, answer: Node) -> Node:
    """x = 1, y = 2, x = 3, y = 4 as two points, where the gold has points."""
    found = in_turns(answer.args) if answer.head in BARE_LISTS else None
    golds = [item.unlabelled for item in gold.args]
    if found is None or any(g.head != "tuple" or len(g.args) != len(found[0]) for g in golds):
        return answer
    return found[1]


def without_restrictions(items: Sequence[Node]) -> Sequence[Node]:
    """An expression without the values that its unknowns may not have: x + 1, x != 1."""

    def excludes(item: Node) -> bool:
        match item.unlabelled:
            case Node("chain", (("!=",), name, _)):
                return not name.symbols.isdisjoint(items[0].symbols)
        return False

    return items[:1] if items[0].head != "chain" and all(map(excludes, items[1:])) else items


def may_be_interval(items: Sequence[Node]) -> bool:
    ends = [values.real_value(item) for item in items]
    return len(ends) == 2 and None not in ends and values.gap(*ends) < 0


def without_repeats(items: list[Node]) -> list[Node]:
    """Without repeated values, among few."""
    if len(items) > 12:
        return items
    kept: list[Node] = []
    for item in items:
        others = filter(nodes.is_value, kept if nodes.is_value(item) else ())
        if not any(values.equal(other, item) for other in others):
            kept.append(item)
    return kept


def flat(node: Node) -> tuple[Node, ...]:
    """Items with a plus-minus spread out; (x, y) = (1, 2) inside a list stays one item."""
    return tuple(itertools.chain.from_iterable(map(spread, node.args)))


def spread(node: Node) -> tuple[Node, ...]:
    """Both values of an expression with plus-minus: all upper signs, then all lower ones."""
    if node.head in (*COLLECTIONS, "matrix") or "pm" not in node.heads:
        return (node,)
    return with_sign(node, 1), with_sign(node, -1)


def points(node: Node) -> tuple[Node, ...]:
    """(1, 0) and (-1, 0) of the point (+-1, 0); two signs are left alone."""
    if node.head != "tuple" or sum(part.head == "pm" for part in node.walk()) != 1:
        return (node,)
    return with_sign(node, 1), with_sign(node, -1)


def with_sign(item: Any, sign: int) -> Any:
    def chosen(node: Node) -> Node | None:
        if node.head != "pm":
            return None
        *before, last = (with_sign(arg, sign) for arg in node.args)
        last = last if sign > 0 else negate(last)
        return Node("add", (*before, last)) if before else last

    return rewritten(item, chosen)


def with_bounds_named(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Both, where one bounds what it does not name and the other has one unknown: that is meant."""
    own, other = gold.symbols, answer.symbols
    if UNNAMED.args[0] in other and len(own) == 1:
        answer = substitute(answer, UNNAMED.args[0], symbol(*own))
    elif UNNAMED.args[0] in own and len(other) == 1:
        gold = substitute(gold, UNNAMED.args[0], symbol(*other))
    return gold, answer


_ALIASES = {"I": "i", "j": "i", "E": "e"}  # as Python and engineers write them


def with_one_constant(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Both with one name for a constant of integration, or for the whole number in pi/4 + k pi.

    Else with I, j and E as constants where only one has such a variable; else None.
    """
    own, other = gold.symbols - answer.symbols, answer.symbols - gold.symbols
    if len(own) == len(other) == 1:
        (name,), (given,) = own, other
        is_periodic = name in "kmn" and given in "kmn" and nodes.PI in gold.walk()
        if is_periodic or (name[0] in "CKck" and given[0] in "CKck"):
            return gold, substitute(answer, given, symbol(name))
    once = (own | other) & _ALIASES.keys()
    for name in once:
        meant = Node("constant", (_ALIASES[name],))
        gold, answer = (substitute(node, name, meant) for node in (gold, answer))
    return (gold, answer) if once else None


_INDICES = frozenset("jklmnrst")


def with_names_of(gold: Node, answer: Node) -> Node | None:
    """The answer with its arguments or index named as those of the gold.

    None where that is wrong: f(t) = 2x + 1 has a name of the gold that it does not bind.
    """
    own, given = _bound(gold), _bound(answer)
    if own == given or len(own) != len(given) or not own:
        return answer
    if answer.args[-1].symbols & (set(own) - set(given)):
        return None
    left = answer.args[1]
    if left.head == "symbol":  # the name a_k, whose index is a part of it
        left = symbol(left.args[0].partition("_")[0] + "_" + own[0])
    names = dict(zip(given, own, strict=True))
    return Node("chain", (answer.args[0], *with_names((left, *answer.args[2:]), names)))


def applied(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Gold and answer with P(x) as a name, where it was read as a product on an equation's left.

    That is so where the other has P(t) there, and where a function in pieces or a vector follows.
    """
    own, given = (
        node.args[1].args
        if node.head == "chain" and node.args[0] == ("=",) and nodes.is_applied(node.args[1])
        else ()
        for node in (gold, answer)
    )
    is_other = given and own[:1] == given[:1] and own != given
    is_function = own and (is_other or gold.args[2].head == "piecewise")

    def with_name(equation: Node, parts: tuple[Node, ...]) -> Node:
        if not parts:
            return equation
        right = equation.args[2]
        is_vector = right.head in ("tuple", "matrix") or nodes.is_combination(right)
        if not is_function and not is_vector:
            return equation
        left = Node("apply", (nodes.without_accent(parts[0].args[0]), parts[1]))
        return Node("chain", (("=",), left, right))

    return with_name(gold, own), with_name(answer, given)


def _bound(equation: Node) -> tuple[str, ...]:
    """x of f(x) = ..., n of a_n = ...; nothing where no name is bound."""
    if equation.head != "chain" or equation.args[0] != ("=",):
        return ()
    left = equation.args[1]
    if left.head == "apply" and all(item.head == "symbol" for item in left.args[1:]):
        found = tuple(item.args[0] for item in left.args[1:])
        return found if len(set(found)) == len(found) else ()
    index = left.args[0].partition("_")[2] if left.head == "symbol" else ""
    return (index,) if index in _INDICES else ()


MAX_CONSTANTS = 3
_is_arbitrary = re.compile(r"[CcKk]_?\d|[CcK]").fullmatch
_OTHER_NAMES = re.compile(r"[ABDEMNabdk](?:_?\d)?|alpha|beta|lambda")
_VARIABLES = frozenset(("x", "t", "y", "z", "s", "u", "theta", "n"))


def renamed(gold: Node, answer: Node) -> Iterator[Node]:
    """The answer with its constants under the names that the gold has, in every order."""
    own, given = gold.symbols, answer.symbols
    if not any(map(_is_arbitrary, own | given)):
        return
    fixed = {name for name in own & given if not _is_arbitrary(name)}
    constants, others = (
        sorted(n for n in names - fixed if _is_arbitrary(n) or _OTHER_NAMES.fullmatch(n))
        for names in (own, given)
    )
    if not 0 < len(constants) == len(others) <= MAX_CONSTANTS:
        return
    if own - set(constants) != given - set(others) or not own - set(constants) & _VARIABLES:
        return
    if not (all(map(_is_arbitrary, constants)) or all(map(_is_arbitrary, others))):
        return
    for node, names in ((gold, constants), (answer, others)):
        if node.head == "chain" and node.args[1] in map(symbol, names):
            return  # C = 2 pi r
    for order in itertools.permutations(constants):
        if list(order) != others:
            yield with_names(answer, dict(zip(others, order, strict=True)))


def absorbed(gold: Node, answer: Node) -> bool:
    """True if both end on a free constant and differ by a constant besides: ln|x| and ln|2x|."""
    own, given = _without_constant(gold), _without_constant(answer)
    if own is None or given is None or own.symbols != given.symbols or not own.symbols:
        return False
    return values.is_fixed(difference(own, given))


def _without_constant(node: Node) -> Node | None:
    """The terms of a sum but its arbitrary constant, which has to stand there alone and once."""
    if node.head != "add":
        return None
    free = [term for term in node.args if term.head == "symbol" and _is_arbitrary(term.args[0])]
    if len(free) != 1:
        return None
    rest = Node("add", tuple(term for term in node.args if term != free[0]))
    (name,) = free[0].args
    is_line = len(rest.symbols) > 1  # c of a x^2 + b x + c is given, and of x^2 + c + 1
    is_given = name.islower() and (is_line or any(not term.symbols for term in rest.args))
    return None if name in rest.symbols or is_given else rest
