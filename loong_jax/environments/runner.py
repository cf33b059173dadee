"""What code environments run answers with: given to them, or the sandbox of this process."""

import functools
from collections.abc import Callable, Sequence

from loong_jax.verifiers.sandbox import SandboxRunner

Runner = Callable[[Sequence[tuple[str, Sequence[dict[str, int]]]]], Sequence[list[int] | str]]
"""Runs each (expression, assignments) in isolation: its values, one each, or why there are none."""


@functools.cache
def shared() -> SandboxRunner:
    """The one that environments share which were given none; its sandbox starts with a first run.

    It ends with the process. Its runs raise SandboxLost where the sandbox itself fails.
    """
    return SandboxRunner()
