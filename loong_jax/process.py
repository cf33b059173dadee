"""Settings of a process: before JAX and Ray are imported, memory that is kept, and logging.

Knows: errors.
"""

import contextlib
import ctypes
import glob
import importlib.metadata
import importlib.util
import logging
import os
import platform
import sys
from pathlib import Path
from typing import Any, TextIO

from loong_jax.errors import ConfigError


def compile_cache_dir() -> Path:
    """The directory of XLA's compiled programs between runs: JAX's own variable decides if set."""
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "loong_jax" / "jax"


def has_tpu() -> bool:
    """True if a TPU is attached; starts no backend."""
    devices = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return bool(devices) and importlib.util.find_spec("libtpu") is not None


def _only_compiles_for_tpu() -> bool:
    """True if libtpu is installed but neither a TPU nor another accelerator's plugin is there.

    On machines of Google's cloud, TPU or not, JAX is left to look for itself.
    """
    if importlib.util.find_spec("libtpu") is None or has_tpu():
        return False
    if _has_plugin():
        return False
    return not any(_vendor(device) == "0x1ae0" for device in glob.glob("/sys/bus/pci/devices/*"))


def _has_plugin() -> bool:
    """True if a plugin for another accelerator is installed."""
    found = importlib.util.find_spec("jax_plugins")
    return bool(found or importlib.metadata.entry_points(group="jax_plugins"))


def computes_on_cpu() -> bool:
    """True if JAX will find nothing but the CPU; starts no backend."""
    platforms = os.environ.get("JAX_PLATFORMS")
    return platforms == "cpu" if platforms else not (has_tpu() or _has_plugin())


def _vendor(device: str) -> str:
    with contextlib.suppress(OSError):
        return Path(device, "vendor").read_text().strip()
    return ""


def processor() -> str:
    """The processor's name where Linux tells it, else its architecture."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def num_cores() -> int:
    """Cores that this process may use, by affinity and by its cgroup's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


def prepare() -> None:
    """Sets defaults in this process's environment; what the user has set stays.

    Compiled programs are kept on disk, so a second run starts faster, and Ray sends no statistics.
    Where libtpu is only there to compile for TPUs, JAX is told so: it would look for one, and print
    pages of warnings when it finds none.
    """
    if _only_compiles_for_tpu():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(compile_cache_dir()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


# glibc's mallopt parameters, from malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -3, -4, -8


def keep_freed_memory(*, one_arena: bool = False) -> None:
    """Lets glibc's malloc keep what is freed, for processes that compute on CPU.

    XLA allocates the temporaries of a program anew each time it runs. By default large ones come
    from the kernel, zeroed page by page at first touch; kept ones are simply used again. The main
    thread keeps up to 512 MB in pieces of up to 128 MB, any other what fits into the 64 MB of its
    arena. `one_arena` for all threads holds any number of any size, until `give_back_memory`: what
    each `free` does there makes small ones slower (a decode step of a miniature 1.3 to 2 times).
    To be called before JAX starts its threads, else theirs are left as they are. Does nothing on
    other systems.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if one_arena:
            mallopt(_M_ARENA_MAX, 1)
            mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_MMAP_THRESHOLD, 2**27)
        mallopt(_M_TRIM_THRESHOLD, -1 if one_arena else 2**29)  # -1: never
        mallopt(_M_TOP_PAD, 2**26)


def give_back_memory() -> None:
    """Returns freed pages to the kernel, which pieces of many sizes leave between them in time."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


# ---- logging: one handler to standard error for every command and every process of ours

LOG_VARIABLE = "LOONG_LOG"
LOG_LEVELS = ("debug", "info", "warning", "error")


def start_logging(level: str | None = None) -> None:
    """Shows what our modules log from `level` on, else from LOONG_LOG or info; others' warnings.

    The level holds for processes that this one starts too. Raises ConfigError for another word.
    """
    level = (level or os.environ.get(LOG_VARIABLE) or "info").lower()
    if level not in LOG_LEVELS:
        raise ConfigError(
            f"{level!r} is no level of logging. Give --log-level or {LOG_VARIABLE} one of "
            f"{', '.join(LOG_LEVELS)}."
        )
    os.environ[LOG_VARIABLE] = level
    logging.getLogger("loong_jax").setLevel(level.upper())
    root = logging.getLogger()
    if not any(isinstance(handler, _ToStandardError) for handler in root.handlers):
        handler = _ToStandardError()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        root.addHandler(handler)


class _ToStandardError(logging.StreamHandler):
    """Writes to what `sys.stderr` is at the time: a live display puts lines above itself there."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None:
        pass
