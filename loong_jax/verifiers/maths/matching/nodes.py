"""Kinds of nodes: values, names, derivatives, labels; fractions, vectors and matrices as one."""

import itertools
from collections.abc import Callable
from typing import Any

from loong_jax.verifiers.maths import names, values
from loong_jax.verifiers.maths.expression import ONE, ZERO, Node, symbol

PI = Node("constant", ("pi",))


def is_value(node: Node) -> bool:
    return not node.heads & _NO_VALUES


_NO_VALUES = frozenset(
    str.split(
        "chain interval union intersection setminus builder matrix set tuple bracket list and or "
        "pm text piecewise modular"
    )
)


def is_plain(node: Node) -> bool:
    return node.head in ("number", "neg", "div") and not node.symbols


def is_roughly(exact: Node, rounded: Node) -> bool:
    a, b = values.real_value(exact), values.real_value(rounded)
    if a is None or b is None:
        return True
    gap = abs(float(a) - float(b)) if abs(a) < 10**300 and abs(b) < 10**300 else 0.0
    return gap <= 0.01 * max(abs(float(a)), abs(float(b)), 1e-300) if gap else True


def without_accent(name: str) -> str:
    """r of vec(r)."""
    accent, _, inner = name.partition("(")
    return inner.rstrip(")") if accent in ("vec", "overrightarrow", "bar", "hat") else name


def is_applied(node: Node) -> bool:
    """True if p(x), read as a product, is the name of a function and its variable."""
    match node:
        case Node("mul", (Node("symbol", (name,)), Node("symbol", (variable,)))):
            return without_accent(name) in tuple("pqrsuvPQRSTFGHAV") and variable in tuple("xtnyz")
    return False


def order_of_quotient(node: Node) -> int:
    """Of dy/dx, d^2y/dx^2, d/dx before what it is of, all read as products of d; 0 for others."""
    if node.head == "mul" and node.args:
        return order_of_quotient(node.args[0])
    if node.head != "div":
        return 0
    above, below = (n.args[0] if n.head == "mul" else n for n in node.args)
    power = above.args[1] if above.head == "pow" else ONE
    above, below = (n.args[0] if n.head == "pow" else n for n in (above, below))
    last = node.args[1].args[-1] if node.args[1].head == "mul" else ONE
    order = last.args[1] if last.head == "pow" else ONE
    if above != below or above not in _DIFFERENTIALS or power != order:
        return 0
    return order.args[0] if order.head == "number" else 1


_DIFFERENTIALS = (symbol("d"), symbol("partial"))


def order_of_derivative(node: Node) -> int:
    """2 of d^2y/dx^2 and of y''; 0 for anything else."""
    if node.head in ("symbol", "apply"):
        return len(node.args[0]) - len(node.args[0].rstrip("'"))
    return order_of_quotient(node)


def label(node: Node) -> tuple[str, ...]:
    return () if node.head != "labelled" or domains(node) else node.args[1]


def domains(node: Node) -> tuple[str, ...]:
    """The domains of a node's parameters, as labels: "in Z"."""
    is_domain = node.head == "labelled" and node.args[1][0].startswith("in ")
    return node.args[1] if is_domain else ()


_DENIALS = frozenset(("not", "incorrect", "wrong", "false", "impossible", "excluded", "never",
                      "extraneous", "discarded", "rejected", "invalid", "too"))  # fmt: skip
_SOLUTIONS = frozenset(("solution", "solutions", "root", "roots"))


def denies(label: tuple[str, ...]) -> bool:
    """True if the words after an answer take it back or change it: "(D) is incorrect"."""
    words = {word.lower() for word in label}
    if label and label[0].lower() == "who":  # 45 who do not
        return False
    if label and label[0].lower() in ("if", "unless"):  # 50 if the coin were fair
        return True
    counts_solutions = words & {"has", "have"} and words & _SOLUTIONS
    return bool(words & _DENIALS or words & names.CHANGING_WORDS or counts_solutions)


def fraction(node: Node) -> tuple[Node, Node]:
    head, args = node
    if head == "neg":
        above, below = fraction(args[0])
        return Node("neg", (above,)), below
    if head == "div":
        (a, b), (c, d) = fraction(args[0]), fraction(args[1])
        return product(a, d), product(b, c)
    if head == "mul":
        parts = [fraction(arg) for arg in args]
        return product(*(p[0] for p in parts)), product(*(p[1] for p in parts))
    if head == "add":
        above, below = fraction(args[0])
        for a, b in map(fraction, args[1:]):
            above = Node("add", (product(above, b), product(a, below)))
            below = product(below, b)
        return above, below
    return node, ONE


def product(*factors: Node) -> Node:
    kept = [factor for factor in factors if factor != ONE]
    if not kept:
        return ONE
    return kept[0] if len(kept) == 1 else Node("mul", tuple(kept))


_PLAIN = {Node("constant", ("i",)): 0, symbol("j"): 1, symbol("k"): 2}
_MARKED = {
    symbol(f"{accent}({letter})"): index
    for accent in ("hat", "vec", "bar", "overrightarrow", "widehat", "tilde")
    for index, letters in enumerate("ijk")
    for letter in (letters, f"{letters}math", f"mathbf{{{letters}}}", f"mathbf{letters}")
}
_UNITS = _PLAIN | _MARKED
_COMBINED = frozenset(("add", "mul", "neg", "div", "symbol", "constant"))
Parts = dict[Any, Node]  # coefficients, by a place


def is_combination(node: Node) -> bool:
    """True if unit vectors are named beyond doubt: 4i may be a complex number."""
    if node.head not in _COMBINED:
        return False
    found = {item for item in node.walk() if item in _UNITS}
    is_clear = len(found) > 1 or bool(found & _MARKED.keys())
    return is_clear and _along_units(node) is not None


def components(node: Node, size: int, known: frozenset[str]) -> tuple[Node, ...] | None:
    """The components of a combination as a vector of so many; None where it is none.

    Factors may hold no names but the known ones: P(2, 3) is a point and no multiple.
    """
    if node.head not in _COMBINED:
        return None
    parts = _along_units(node)
    if parts is not None and size in (2, 3) and max(parts) < size:
        return tuple(parts.get(index, ZERO) for index in range(size))
    cells = _combined(node, _cells_of_vector, lambda factor: factor.symbols <= known)
    return tuple(cells.values()) if cells and {n for n, _ in cells} == {size} else None


def _combined(
    node: Node, known: Callable[[Node], Parts | None], may_scale: Callable[[Node], bool]
) -> Parts | None:
    """Coefficients of a sum of multiples of what is `known`, by place; None for anything else."""
    if (own := known(node)) is not None:
        return own
    head, args = node
    if head not in ("neg", "add", "mul", "div"):
        return None
    found = {i: parts for i, arg in enumerate(args) if (parts := _combined(arg, known, may_scale))}
    if head == "add":
        total: Parts = {}
        for parts in found.values():
            for place, x in parts.items():
                total[place] = Node("add", (total[place], x)) if place in total else x
        return total if len(found) == len(args) else None
    if len(found) != 1 or (head == "div" and 0 not in found):
        return None
    ((at, parts),) = found.items()
    before, after = args[:at], args[at + 1 :]
    if not all(map(may_scale, (*before, *after))):
        return None
    return {place: Node(head, (*before, x, *after)) for place, x in parts.items()}


def _along_units(node: Node) -> Parts | None:
    """By unit vector."""
    return _combined(
        node,
        lambda part: {_UNITS[part]: ONE} if part in _UNITS else None,
        lambda factor: _UNITS.keys().isdisjoint(factor.walk()),
    )


def _cells_of_vector(node: Node) -> Parts | None:
    """By size and index."""
    if node.head == "matrix" and 1 in size_of(node):
        node = Node("tuple", tuple(itertools.chain.from_iterable(node.args)))
    if node.head != "tuple":
        return None
    return {(len(node.args), i): x for i, x in enumerate(node.args)}


def _cells_of_matrix(node: Node) -> Parts | None:
    """By size and index, row after row."""
    matrix = matrix_of(node) if node.unlabelled.head in ("matrix", "bracket", "tuple") else None
    if matrix is None:
        return None
    cells = itertools.chain.from_iterable(matrix.args)
    return {(size_of(matrix), i): x for i, x in enumerate(cells)}


def size_of(matrix: Node) -> tuple[int, int]:
    return len(matrix.args), len(matrix.args[0]) if matrix.args else 0


def matrix_of(node: Node) -> Node | None:
    """A matrix, a nested list, a vector, or a sum and product of matrices, as one matrix."""
    node = node.unlabelled
    if node.head == "matrix":
        return node
    if node.head in ("bracket", "tuple") and node.args:
        rows = node.args
        if all(row.head in ("bracket", "tuple") for row in rows):
            if len({len(row.args) for row in rows}) == 1 and rows[0].args:
                return Node("matrix", tuple(row.args for row in rows))
            return None
        if node.head == "tuple":
            return Node("matrix", tuple((item,) for item in rows))
        return Node("vector", (rows,))
    cells = _combined(node, _cells_of_matrix, lambda factor: factor.head != "matrix") or {}
    sizes = {size for size, _ in cells}
    return shaped(list(cells.values()), sizes.pop()) if len(sizes) == 1 else None


def shaped(flat: list[Node], size: tuple[int, int]) -> Node:
    rows, columns = size
    return Node("matrix", tuple(tuple(flat[i * columns : (i + 1) * columns]) for i in range(rows)))
