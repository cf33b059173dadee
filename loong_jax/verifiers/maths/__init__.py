"""Maths answers: typed golds, our own parser, and a ladder of equality.

`extract` finds where an answer stands, `reading` makes an expression of it (`gold` with the type
that its form declares), `wording` knows answers in words and `notations` those that are no
arithmetic. `matching` compares by the kind of the gold, other forms of the same thing, sets and
functions among them; with `values` (exact, then numeric, then identities, by the `evaluator`), and
`symbolic`, sympy in a child process, last. `names`, `units` and `languages` know the words,
patterns and rewritings of `tables.toml`.
"""

from loong_jax.verifiers.maths.verifier import MathVerifier

__all__ = ["MathVerifier"]
