"""Problems of an environment by its name, and their answers, as two functions."""

from loong_jax.environments import get_environment
from loong_jax.problems.problem import Problem


def generate(name: str, level: int, seed: int) -> Problem:
    """The problem of this environment, level (1 to 5) and seed: a pure function of the three."""
    return get_environment(name).problem(level, seed)


def solve(problem: Problem) -> str:
    """A right answer to a problem of an environment."""
    return get_environment(problem.environment).solve(problem).answer
