"""A problem by its earlier name; it stands in problems/problem.py."""

from loong_jax.problems.problem import *  # noqa: F403
