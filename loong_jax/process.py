"""What a process sets before JAX and Ray are imported, and where compiled programs are kept."""

import os
from pathlib import Path


def compile_cache_dir() -> Path:
    """Where XLA's compiled programs are kept between runs: JAX's own variable decides if set."""
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "loong_jax" / "jax"


def prepare() -> None:
    """Sets defaults in this process's environment; what the user has set stays.

    Compiled programs are kept on disk, so a second run starts faster, and Ray sends no statistics.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(compile_cache_dir()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
