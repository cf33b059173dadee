"""A trace of some training steps by JAX's profiler, to be seen in TensorBoard or Perfetto."""

import contextlib
import logging
import os
from pathlib import Path

import jax

from loong_jax.errors import ConfigError

VARIABLE = "LOONG_PROFILE"  # how many steps; --profile-steps sets it
SKIPPED = 3  # steps before the trace: they compile

logger = logging.getLogger(__name__)


class StepProfile(contextlib.AbstractContextManager):
    """Traces the steps after the first `SKIPPED` of a stage in this process into `directory`.

    Nothing without the variable. Raises ConfigError where it is no number.
    """

    def __init__(self, directory: Path):
        given = os.environ.get(VARIABLE, "0")
        if not given.isdecimal():
            raise ConfigError(f"{VARIABLE}={given!r} is no number of steps. Give one, such as 3.")
        self._directory, self._num_steps = directory, int(given)
        self._done = 0
        self._runs = False

    def __exit__(self, *_) -> None:
        self._stop()

    def step(self) -> None:
        """Call it at the end of every step."""
        self._done += 1
        if self._num_steps and self._done == SKIPPED:
            jax.profiler.start_trace(str(self._directory))
            self._runs = True
        elif self._done == SKIPPED + self._num_steps:
            self._stop()

    def _stop(self) -> None:
        if self._runs:
            self._runs = False
            jax.profiler.stop_trace()
            logger.info("profile: a trace of training steps is in %s", self._directory)
