"""Wall time and peak memory of a run over its resumptions, and traces of its steps on request.

Memory is that of this process and all its descendants, as a sum of proportional set sizes: a page
shared by n processes counts 1/n in each, so the sum is what the tree really occupies; resident set
sizes would count shared libraries and Ray's object store once per worker.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import psutil

from loong_jax.data import json_files
from loong_jax.errors import ConfigError

logger = logging.getLogger(__name__)

GB = 1e9


def proportional_bytes(one: psutil.Process) -> int:
    """Proportional set size; 0 where the system does not tell it."""
    return getattr(one.memory_full_info(), "pss", 0)


def resident_bytes(one: psutil.Process) -> int:
    """Resident set size, which is at least the proportional one."""
    return one.memory_info().rss


def tree_bytes(size_of: Callable[[psutil.Process], int] = proportional_bytes) -> int:
    """Sum over this process and its descendants, save those that end while it looks."""
    total = 0
    for one in (this := psutil.Process(), *_descendants(this)):
        with contextlib.suppress(psutil.Error):
            total += size_of(one)
    return total


def _descendants(this: psutil.Process) -> list[psutil.Process]:
    try:
        return this.children(recursive=True)
    except psutil.AccessDenied:  # the system hides the processes of others (hidepid)
        tree, others = [this], list(psutil.process_iter(["ppid"]))  # None for one that is hidden
        for parent in tree:
            tree += [one for one in others if one.info["ppid"] == parent.pid and one not in tree]
        return tree[1:]


class MemoryMonitor(contextlib.AbstractContextManager):
    """Samples the tree in a background thread and remembers the peak; use as a context manager.

    For a sample the kernel walks all pages of every process, some 50 ms for each GB, so one is
    taken only when resident set sizes, which it knows by heart, have grown by a hundredth since the
    last; a peak shorter than the interval can be missed. Where the system tells no proportional
    set sizes (not Linux), the peak stays 0 and a warning says so once.
    """

    def __init__(self, *, interval_s: float = 2.5):
        self.peak_bytes = self._stage_bytes = 0
        self.num_samples = 0
        self._resident_bytes = 0.0  # up to which there is nothing new to see
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def stage_peak_gb(self) -> float:
        """The peak since the last call, or since the beginning."""
        peak, self._stage_bytes = max(self._stage_bytes, self.sample()), 0
        self._resident_bytes = 0
        return peak / GB

    @property
    def peak_gb(self) -> float:
        """In units of 1e9 bytes."""
        return self.peak_bytes / GB

    def sample(self) -> int:
        """Measures now; returns the bytes and raises the peak."""
        size = tree_bytes()
        self.num_samples += 1
        self.peak_bytes = max(self.peak_bytes, size)
        self._stage_bytes = max(self._stage_bytes, size)
        return size

    def __enter__(self):
        if not self.sample():
            logger.warning(
                "this system tells no proportional set sizes: peak memory is not measured"
            )
            return self
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
            self.sample()

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval_s):
            resident = tree_bytes(resident_bytes)
            if resident > self._resident_bytes:
                self.sample()
                self._resident_bytes = 1.01 * resident


VARIABLE = "LOONG_PROFILE"  # how many steps; --profile-steps sets it
SKIPPED = 3  # steps before the trace: they compile


class RunUsage(MemoryMonitor):
    """Wall time and peak memory of a run, kept in `usage.json` over its resumptions."""

    def __init__(self, run_dir: Path):
        super().__init__()
        self._path, self._started_s = run_dir / "usage.json", time.monotonic()
        self._earlier = {"wall_s": 0.0, "peak_gb": 0.0} | json_files.read_json(self._path, {})

    def __exit__(self, *_) -> None:
        super().__exit__()
        self.save()

    def save(self) -> None:
        wall_s = self._earlier["wall_s"] + time.monotonic() - self._started_s
        peak_gb = max(self._earlier["peak_gb"], self.peak_gb)
        record = {"wall_s": round(wall_s, 1), "peak_gb": round(peak_gb, 2)}
        json_files.write_json(self._path, record)


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

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        self._stop()
        if kind is None and self._num_steps and self._done <= SKIPPED:
            logger.warning(
                "profile: no step was traced: the first %d of a start are not, and %d were done. "
                "Train for more.", SKIPPED, self._done,
            )  # fmt: skip

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
