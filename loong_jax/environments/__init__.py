"""Generators of problems whose answers are checked without a reference."""

from typing import Any

from loong_jax.environments.environment import LEVELS, STYLES, Environment, Style
from loong_jax.environments.folding import Folding
from loong_jax.environments.problem import DOMAINS, Domain, Problem, split_of
from loong_jax.environments.running_sum import RunningSum
from loong_jax.environments.stream import ProblemStream
from loong_jax.environments.swaps import Swaps

ENVIRONMENTS: dict[str, type] = {
    "running_sum": RunningSum,
    "swaps": Swaps,
    "folding": Folding,
}

__all__ = [
    "DOMAINS", "ENVIRONMENTS", "LEVELS", "STYLES", "Domain", "Environment", "Problem",
    "ProblemStream", "Style", "get_environment", "split_of",
]  # fmt: skip


def get_environment(name: str, **settings: Any) -> Environment:
    """The environment of this name; `settings` are its fields, such as the runner of the code one."""
    if name not in ENVIRONMENTS:
        raise ValueError(f"environment {name!r} is unknown. Choose one of {sorted(ENVIRONMENTS)}.")
    return ENVIRONMENTS[name](**settings)
