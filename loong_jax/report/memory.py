"""Peak memory of this process and all its descendants, as a sum of proportional set sizes.

A page shared by n processes counts 1/n in each, so the sum is what the tree really occupies;
resident set sizes would count shared libraries and Ray's object store once per worker.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

GB = 1e9


def children_of(root: int, proc: Path = Path("/proc")) -> list[int]:
    """`root` and all its descendants, as far as /proc shows them."""
    parent_of: dict[int, int] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                # The command may hold spaces and parentheses; the parent follows its last one.
                parent_of[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except (OSError, IndexError, ValueError):  # it ended while we looked
                continue
    tree, frontier = [root], {root}
    while frontier:
        frontier = {pid for pid, parent in parent_of.items() if parent in frontier} - set(tree)
        tree.extend(sorted(frontier))
    return tree


def proportional_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Proportional set size of one process in bytes; 0 where it has ended or is not ours."""
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Resident set size of one process, at least its proportional one; 0 where it has ended."""
    try:
        return int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def tree_bytes(
    root: int | None = None,
    extra: tuple[int, ...] = (),
    proc: Path = Path("/proc"),
    size_of: Callable[[int, Path], int] = proportional_bytes,
) -> int:
    """Sum over the tree of `root` (this process by default) and of the processes in `extra`."""
    roots = (os.getpid() if root is None else root, *extra)
    pids = {pid for top in roots for pid in children_of(top, proc)}
    return sum(size_of(pid, proc) for pid in pids)


class MemoryMonitor:
    """Samples the tree in a background thread and remembers the peak; use as a context manager.

    For a sample the kernel walks all pages of every process, some 50 ms for each GB, so one is
    taken only when resident set sizes, which it knows by heart, have grown by a hundredth since the
    last; a peak shorter than the interval can be missed. Where /proc has no `smaps_rollup` (not
    Linux), the peak stays 0 and a warning says so once. `extra` holds roots of processes that do
    not descend from this one, such as a Ray that runs as a daemon.
    """

    def __init__(self, *, interval_s: float = 2.5, extra: tuple[int, ...] = ()):
        if not interval_s > 0:
            raise ValueError(f"interval_s={interval_s} must be positive. Two to three is cheap.")
        self.peak_bytes = self._stage_bytes = 0
        self.num_samples = 0
        self._resident_bytes = 0.0  # up to which there is nothing new to see
        self._interval_s = interval_s
        self._extra = extra
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
        size = tree_bytes(extra=self._extra)
        self.num_samples += 1
        self.peak_bytes = max(self.peak_bytes, size)
        self._stage_bytes = max(self._stage_bytes, size)
        return size

    def __enter__(self) -> "MemoryMonitor":
        if not self.sample():
            logger.warning("this system has no /proc/*/smaps_rollup: peak memory is not measured")
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
            try:
                resident = tree_bytes(extra=self._extra, size_of=resident_bytes)
                if resident > self._resident_bytes:
                    self.sample()
                    self._resident_bytes = 1.01 * resident
            except OSError as error:  # /proc changes under us; the next sample tries again
                logger.debug("memory sample failed: %s", error)
