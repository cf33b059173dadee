"""Wall time and peak memory of a run over its resumptions, and traces of its steps on request."""

import contextlib
import logging
import os
import time
from pathlib import Path

import jax

from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.report.memory import MemoryMonitor

VARIABLE = "LOONG_PROFILE"  # how many steps; --profile-steps sets it
SKIPPED = 3  # steps before the trace: they compile

logger = logging.getLogger(__name__)


class RunUsage:
    """Wall time and peak memory of a run, kept in `usage.json` over its resumptions."""

    def __init__(self, run_dir: Path):
        self._path = run_dir / "usage.json"
        earlier = json_files.read_json(self._path) if self._path.exists() else {}
        self._earlier_s = earlier.get("wall_s", 0.0)
        self._earlier_gb = earlier.get("peak_gb", 0.0)
        self._started_s = time.monotonic()
        self._memory = MemoryMonitor()

    def __enter__(self) -> "RunUsage":
        self._memory.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._memory.__exit__(*error)
        self.save()

    def stage_peak_gb(self) -> float | None:
        """Peak of the stage that ends, in this process; None where it is not measured."""
        return round(self._memory.stage_peak_gb(), 2) or None

    def save(self) -> None:
        json_files.write_json(
            self._path,
            {
                "wall_s": round(self._earlier_s + time.monotonic() - self._started_s, 1),
                "peak_gb": round(max(self._earlier_gb, self._memory.peak_gb), 2),
            },
        )


class StepProfile(contextlib.AbstractContextManager):
    """A trace by JAX's profiler, for TensorBoard or Perfetto.

    Traces the steps after the first `SKIPPED` of a stage in this process into `directory`.

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
