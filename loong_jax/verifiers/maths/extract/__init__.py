"""Where a response states its answer: the last box, a closing phrase, the last formula or number.

`spans` gives candidates, the most trusted first. What is joined by "or", "and" or mere punctuation
is one candidate: a response that names several answers has given a list of them.
Every search is bounded: at most `MAX_TAIL` characters from the end are looked at, boxes apart.
`statements` gives the text without marks, and its boxes; `closing` phrases, `markdown`, `prose` and
`last_maths` each look for one kind; `refusals` says whether a response gives up or asks back.
"""

from loong_jax.verifiers.maths.extract.candidates import (
    Candidates,
    last_clause,
    last_sentence,
    spans,
)
from loong_jax.verifiers.maths.extract.refusals import gives_up
from loong_jax.verifiers.maths.extract.statements import Span, statement

__all__ = ["Candidates", "Span", "gives_up", "last_clause", "last_sentence", "spans", "statement"]
