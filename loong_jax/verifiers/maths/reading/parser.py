"""The parser: tokens to expressions, by recursive descent. It looks names up and calls nothing.

Grammar, loosest first: items, relations, unions, sums, products, powers, primaries.
Depth of brackets and of the tree is bounded, so that no text exhausts the stack, here or in what
walks the tree later.
"""

from loong_jax.verifiers.maths.expression import CostError, Node, depth
from loong_jax.verifiers.maths.reading import postfixes, primaries, relations, sums
from loong_jax.verifiers.maths.reading.stream import Stream
from loong_jax.verifiers.maths.reading.tokens import prepare, tokenize

MAX_TREE_DEPTH = 200  # 1/2/3/... and 3!!!... grow deep without a bracket


def parse(text: str) -> Node:
    """The expression a text stands for; raises ParseError or CostError."""
    node = Parser(tokenize(prepare(text))).whole()
    if (deep := depth(node)) > MAX_TREE_DEPTH:
        raise CostError(f"a tree {deep} deep, above {MAX_TREE_DEPTH}")
    return node


class Parser(Stream):
    """The grammar's rules as methods, the loosest first."""

    whole = relations.whole
    items = relations.items
    relation = relations.relation
    union = relations.union
    sum = sums.sum_
    product = sums.product
    factor = postfixes.factor
    primary = primaries.primary
    argument = primaries.argument
