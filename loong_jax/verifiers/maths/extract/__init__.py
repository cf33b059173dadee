"""The answer of a response: the last box, a closing phrase, the last formula or number.

`candidates` gives them, the most trusted first, out of the `statements` of a text: what follows a
`closing` phrase, what its `prose` says, its `last_maths`.
"""

from loong_jax.verifiers.maths.extract.candidates import (
    Candidates,
    gives_up,
    last_clause,
    last_sentence,
    spans,
)
from loong_jax.verifiers.maths.extract.statements import Span, statement

__all__ = ["Candidates", "Span", "gives_up", "last_clause", "last_sentence", "spans", "statement"]
