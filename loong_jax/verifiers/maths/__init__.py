"""Maths answers: typed golds, our own parser, and a ladder of equality.

extract (where the answer stands) -> tokens -> parser -> expression -> matching, which asks values
(exact, then numeric, then identities), real_sets, and sympy in a child process last.
"""

from loong_jax.verifiers.maths.verifier import MathVerifier

__all__ = ["MathVerifier"]
