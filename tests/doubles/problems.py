"""Problems of which a test says what it needs; the rest is made up."""

from typing import Any

from loong_jax.problems.problem import Problem


def made_problem(number: int = 0, **fields: Any) -> Problem:
    made = dict(
        uid=f"made/1/{number}",
        domain="stem",
        environment="made",
        level=1,
        seed=number,
        canonical=str(number),
        prompt="?",
        verifier="math",
    )
    return Problem(**made | fields)
