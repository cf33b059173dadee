"""A runner for tests: evaluates integer expressions by walking their syntax, in this process."""

import ast
import operator

BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


def evaluate(expression, names):
    return value_of(ast.parse(expression, mode="eval").body, names)


def value_of(node, names):
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left, op, right):
            return BINARY[type(op)](value_of(left, names), value_of(right, names))
        case ast.UnaryOp(ast.USub(), operand):
            return -value_of(operand, names)
    raise ValueError(f"{type(node).__name__} is not evaluated here")


def run(runs):
    """A `Runner` of the code environments."""
    results = []
    for expression, assignments in runs:
        try:
            results.append([evaluate(expression, names) for names in assignments])
        except (SyntaxError, ValueError, KeyError) as error:
            results.append(f"error: {error!r}")
    return results


def refuse(runs):
    """A `Runner` for answers that must not be run."""
    raise AssertionError(f"{runs[0][0]!r} must not run")
