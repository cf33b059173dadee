"""A piece of a response that may be its answer."""

from typing import NamedTuple


class Span(NamedTuple):
    text: str
    rule: str  # boxed, phrase, whole, bold, listed, stated, formula, number, sentence
