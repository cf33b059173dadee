"""What a factor may begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loong_jax.verifiers.maths import names
from loong_jax.verifiers.maths.reading import integrals, words
from loong_jax.verifiers.maths.reading.tokens import Token

if TYPE_CHECKING:
    from loong_jax.verifiers.maths.reading.parser import Parser

FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac")
BINOMIALS = ("\\binom", "\\dbinom", "\\tbinom")
_STARTERS = frozenset(
    (*FRACTIONS, *BINOMIALS, *integrals.BIG, "\\sqrt", "\\begin", "\\{", "\\lbrace", "\\langle",
     "\\lfloor",
     "\\lceil", "\\lvert", "\\lVert", "\\|", "\\infty", "\\emptyset", "\\varnothing", "\\mathbb",
     "\\ldots", "\\dots", "\\cdots", "\\lim", "\\log", "\\$", "\\angle", "\\triangle", "\\circ",
     "\\vert", "\\pounds", "\\euro", "\\prime", "\\substack")
) | names.WRAPPERS | names.ACCENTS  # fmt: skip
PLAIN_FUNCTIONS = frozenset("\\" + name for name in names.PREFIX_FUNCTIONS)


def starts_command(text: str) -> bool:
    return (
        text in _STARTERS
        or text in PLAIN_FUNCTIONS
        or text[1:] in names.GREEK
        or (text[1:] in names.CONSTANTS)
    )


def starts_operand(parser: Parser, token: Token) -> bool:
    if token.kind in ("number", "recurring"):
        return True
    if token.kind in ("word", "text"):
        return words.is_operand(token)
    if token.kind == "sign":
        return token.text in ("(", "[", "{", "-", "+", "$") or (
            token.text == "|" and not parser.bars
        )
    return token.kind == "command" and starts_command(token.text)
