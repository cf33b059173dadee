"""The verdict, for verifiers of your own, which name it here; it stands in problems/verdict.py."""

from loong_jax.problems.verdict import (
    IsolationTier,
    Outcome,
    Score,
    Verdict,
    answer_of,
    answer_span,
    correct,
    extract_answer,
    ungradable,
    wrong,
)

__all__ = [
    "IsolationTier", "Outcome", "Score", "Verdict", "answer_of", "answer_span", "correct",
    "extract_answer", "ungradable", "wrong",
]  # fmt: skip
