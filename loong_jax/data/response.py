"""The form of a response by its documented name; it stands in problems/response.py."""

from loong_jax.problems.response import *  # noqa: F403
