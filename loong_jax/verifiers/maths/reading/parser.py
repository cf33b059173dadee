"""The parser: tokens to expressions, by recursive descent. It looks names up and calls nothing.

Grammar, loosest first: items, relations, unions, sums, products, powers, primaries.
Depth of brackets and of the tree is bounded, so that no text exhausts the stack, here or in what
walks the tree later.
"""

from collections.abc import Callable

from loong_jax.verifiers.maths.expression import CostError, Node, ParseError, depth
from loong_jax.verifiers.maths.reading import postfixes, primaries, relations, sums
from loong_jax.verifiers.maths.reading.tokens import END, Token, prepare, tokenize

MAX_DEPTH = 40


class Stream:
    """One pass over tokens."""

    def __init__(self, tokens: list[Token]):
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self.bars = 0  # open |...|, inside which a bar closes
        self.colon_is_ratio = True
        self.in_pieces = False  # inside an environment that is read as a function in pieces

    @property
    def token(self) -> Token:
        return self._tokens[self._position]

    def peek(self, ahead: int = 1) -> Token:
        position = self._position + ahead
        return self._tokens[position] if position < len(self._tokens) else END

    def take(self) -> Token:
        token = self._tokens[self._position]
        if token.kind != "end":
            self._position += 1
        return token

    def at(self, *texts: str) -> bool:
        token = self.token
        return token.kind in ("sign", "command") and token.text in texts

    def accept(self, *texts: str) -> bool:
        if self.at(*texts):
            self._position += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        if not self.at(*texts):
            raise ParseError(f"{self.token.text!r} stands where {texts[0]!r} belongs")
        return self.take().text

    def replace(self, *tokens: Token) -> None:
        """Puts other tokens where the next one stands."""
        self._tokens[self._position : self._position + 1] = tokens

    def mark(self) -> int:
        return self._position

    def reset(self, mark: int) -> None:
        self._position = mark

    def nested(self, rule: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CostError(f"nested deeper than {MAX_DEPTH}")
        try:
            return rule()
        finally:
            self._depth -= 1


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
