"""Answers of responses to questions with a gold: where they stand, and the verdict on them.

`extract` finds candidates, the most trusted first: `statements` is the response without marks, and
its boxes, `closing` what follows a closing phrase, `prose` what sentences say. `gold` reads the
right answer, with the type that its form declares. `judging` compares the two as `maths` says, as
one of the `notations` that are no arithmetic, or in words.
"""

from loong_jax.verifiers.answers.verifier import MathVerifier

__all__ = ["MathVerifier"]
