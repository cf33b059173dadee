"""Timing of several functions against each other on a machine that may have other things to do."""

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

Run = Callable[[], object]  # returns when its work is done


class Sample(NamedTuple):
    """Seconds of one call, the mean over a burst of calls."""

    wall_s: float
    cpu_s: float  # of all threads of this process


def interleaved(
    runs: Mapping[str, Run], *, budget_s: float, min_rounds: int = 5, burst_s: float = 0.03
) -> dict[str, list[Sample]]:
    """Samples of every run, as many rounds as `budget_s` allows; each round times all of them.

    A sample is a burst of calls of at least `burst_s`, so that waking threads costs little, after a
    pause in which the threads of the run before fall asleep. Rounds go forth and back through the
    runs, so a machine that slows down for a while slows down all of them alike.
    """
    calls = {}
    for name, run in runs.items():
        run()
        run()
        calls[name] = max(1, round(burst_s / max(_burst(run, 1).wall_s, 1e-7)))
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    names, end = list(runs), time.perf_counter() + budget_s
    collecting = gc.isenabled()
    gc.disable()
    try:
        while names and (len(samples[names[0]]) < min_rounds or time.perf_counter() < end):
            for name in names:
                time.sleep(0.01)
                samples[name].append(_burst(runs[name], calls[name]))
            names.reverse()
    finally:
        if collecting:
            gc.enable()
    return samples


def median_s(samples: Sequence[Sample]) -> float:
    """Median wall time of one call, in seconds."""
    return statistics.median(sample.wall_s for sample in samples)


def median_ratio(above: Sequence[Sample], below: Sequence[Sample], clock: str = "wall_s") -> float:
    """Median over the rounds of time above / time below, both of the same round."""
    pairs = zip(above, below, strict=True)
    return statistics.median(getattr(a, clock) / getattr(b, clock) for a, b in pairs)


def family_cpu_s() -> float:
    """CPU seconds of this process and of all that descend from it, to about a hundredth.

    Where the system has no /proc, those of children that have not ended are missing.
    """
    times = os.times()
    total = time.process_time() + times.children_user + times.children_system
    left = children(os.getpid())
    while left:
        pid = left.pop()
        with contextlib.suppress(OSError):  # it may have ended, and is its parent's then
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # its own and those of its children that have ended, user and system
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            left += children(pid)
    return total


def children(pid: int) -> list[int]:
    """Processes that a process has started and not yet seen the end of."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _burst(run: Run, calls: int) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    return Sample((time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls)
