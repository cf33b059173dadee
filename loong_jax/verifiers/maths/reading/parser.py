"""The parser: tokens to expressions, by recursive descent. It looks names up and calls nothing.

Depth of brackets and of the tree is bounded, so that no text exhausts the stack, here or later.
"""

from collections.abc import Callable

from loong_jax.verifiers.maths.expression import CostError, Node, ParseError
from loong_jax.verifiers.maths.reading.tokens import END, Token

MAX_DEPTH = 40


class Parser:
    """One pass over tokens; a subclass has the rules of the grammar, the loosest first."""

    whole: Callable[..., Node]
    items: Callable[..., Node]
    relation: Callable[..., Node]
    union: Callable[..., Node]
    sum: Callable[..., Node]
    product: Callable[..., Node]
    factor: Callable[..., Node]
    primary: Callable[..., Node]
    argument: Callable[..., Node]

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
