"""Matrices in other forms: nested lists, vectors, sums and multiples."""

from loong_jax.verifiers.maths.expression import Node, strip_labels


def size(matrix: Node) -> tuple[int, int]:
    return len(matrix.args), len(matrix.args[0]) if matrix.args else 0


def matrix_of(node: Node) -> Node | None:
    """A matrix, a nested list, a vector, or a sum and product of matrices, as one matrix."""
    node = strip_labels(node)
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
