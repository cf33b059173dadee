"""Vectors and matrices: their size, their components, and what may be written as one."""

from loong_jax.verifiers.maths.expression import ZERO, Node, negate, number, symbol

_PLAIN = {Node("constant", ("i",)): 0, symbol("j"): 1, symbol("k"): 2}
_MARKED = {
    symbol(f"{accent}({letter})"): index
    for accent in ("hat", "vec", "bar", "overrightarrow", "widehat", "tilde")
    for letters, index in (("i", 0), ("j", 1), ("k", 2))
    for letter in (letters, f"{letters}math", f"mathbf{{{letters}}}", f"mathbf{letters}")
}
_UNITS = _PLAIN | _MARKED
_COMBINED = frozenset(("add", "mul", "neg", "div", "symbol", "constant"))
Parts = dict[int, Node]  # coefficients of the unit vectors


def is_combination(node: Node) -> bool:
    """Whether unit vectors are named beyond doubt: 4i may be a complex number."""
    if node.head not in _COMBINED:
        return False
    found = {item for item in node.walk() if item in _UNITS}
    return (len(found) > 1 or bool(found & _MARKED.keys())) and _parts(node) is not None


def components(node: Node, size: int, known: frozenset[str]) -> tuple[Node, ...] | None:
    """The components of a combination as a vector of so many; None where it is none.

    Factors may hold no names but the known ones: P(2, 3) is a point and no multiple.
    """
    if node.head not in _COMBINED:
        return None
    parts = _parts(node)
    if parts is not None and size in (2, 3) and max(parts) < size:
        return tuple(parts.get(index, ZERO) for index in range(size))
    found = _sum_of_vectors(node, known)
    return found if found is not None and len(found) == size else None


def _parts(node: Node) -> Parts | None:
    head, args = node
    if node in _UNITS:
        return {_UNITS[node]: number(1)}
    if head == "neg":
        inner = _parts(args[0])
        return None if inner is None else {i: negate(x) for i, x in inner.items()}
    if head == "add":
        total: Parts = {}
        for term in args:
            inner = _parts(term)
            if inner is None:
                return None
            for i, x in inner.items():
                total[i] = Node("add", (total[i], x)) if i in total else x
        return total
    if head == "div":
        inner = _parts(args[0])
        if inner is None or _names_a_unit(args[1]):
            return None
        return {i: Node("div", (x, args[1])) for i, x in inner.items()}
    if head == "mul":
        named = [index for index, factor in enumerate(args) if _names_a_unit(factor)]
        inner = _parts(args[named[0]]) if len(named) == 1 else None
        if inner is None:
            return None
        rest = (*args[: named[0]], *args[named[0] + 1 :])
        return {i: Node("mul", (*rest, x)) for i, x in inner.items()}
    return None


def _names_a_unit(node: Node) -> bool:
    return any(item in _UNITS for item in node.walk())


def _sum_of_vectors(node: Node, known: frozenset[str]) -> tuple[Node, ...] | None:
    head, args = node
    if head == "tuple":
        return args
    if head == "matrix" and (len(args) == 1 or len(args[0]) == 1):
        return tuple(cell for row in args for cell in row)
    if head == "neg":
        inner = _sum_of_vectors(args[0], known)
        return None if inner is None else tuple(map(negate, inner))
    if head == "add":
        terms = [_sum_of_vectors(term, known) for term in args]
        if any(term is None for term in terms) or len({len(term) for term in terms if term}) != 1:
            return None
        cells = zip(*(term for term in terms if term), strict=True)
        return tuple(Node("add", cell) for cell in cells)
    if head not in ("mul", "div"):
        return None
    found = [_sum_of_vectors(factor, known) for factor in args]
    at = [index for index, one in enumerate(found) if one is not None]
    if len(at) != 1 or (head == "div" and at[0]):
        return None
    rest = (*args[: at[0]], *args[at[0] + 1 :])
    if not frozenset[str]().union(*(r.symbols for r in rest)) <= known:
        return None
    return tuple(Node(head, (*args[: at[0]], x, *args[at[0] + 1 :])) for x in found[at[0]] or ())


def size(matrix: Node) -> tuple[int, int]:
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
    if node.head == "add":
        parts = [matrix_of(item) for item in node.args]
        if any(part is None for part in parts) or len({size(p) for p in parts if p}) != 1:
            return None
        cells = zip(*([x for row in p.args for x in row] for p in parts if p), strict=True)
        flat = [Node("add", tuple(cell)) for cell in cells]
        return shaped(flat, size(parts[0]))  # type: ignore[arg-type]
    if node.head in ("mul", "div", "neg"):
        found = [(i, matrix_of(a)) for i, a in enumerate(node.args) if a.head == "matrix"]
        if len(found) != 1 or (node.head == "div" and found[0][0] == 1):
            return None
        index, matrix = found[0]
        assert matrix is not None
        flat = [
            Node(node.head, (*node.args[:index], x, *node.args[index + 1 :]))
            for row in matrix.args
            for x in row
        ]
        return shaped(flat, size(matrix))
    return None


def shaped(flat: list[Node], size: tuple[int, int]) -> Node:
    rows, columns = size
    return Node("matrix", tuple(tuple(flat[i * columns : (i + 1) * columns]) for i in range(rows)))
