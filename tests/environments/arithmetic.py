"""A runner for tests: arithmetic on `ast` nodes, in this process, nothing evaluated."""

import ast
import operator

OPERATORS = {
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


def value_of(node, variables):
    if isinstance(node, ast.Expression):
        return value_of(node.body, variables)
    if isinstance(node, ast.BinOp):
        left, right = value_of(node.left, variables), value_of(node.right, variables)
        return OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return variables[node.id]
    raise ValueError(f"{ast.dump(node)} is not arithmetic")


def run(jobs):
    results = []
    for source, assignments in jobs:
        try:
            tree = ast.parse(source, mode="eval")
            results.append([value_of(tree, variables) for variables in assignments])
        except (SyntaxError, ValueError, KeyError, TypeError) as error:
            results.append(repr(error))
    return results
