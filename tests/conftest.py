"""Every test runs on eight CPU devices, with shapes and types of annotations checked.

The settings must stand before JAX is imported. Compiled programs are kept between runs in the
user's cache directory; set JAX_COMPILATION_CACHE_DIR to keep them elsewhere.
"""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_flags = os.environ.get("XLA_FLAGS", "")
# Tiny programs run once: compiling them without LLVM's optimizations takes half the time.
for _flag in ("--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0"):
    if _flag.split("=")[0] not in _flags:
        _flags = f"{_flags} {_flag}".strip()
os.environ["XLA_FLAGS"] = _flags
_cache_home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(_cache_home) / "loong_jax" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import jax  # noqa: E402
import jaxtyping  # noqa: E402

# An int is a fine float, as everywhere in Python.
jaxtyping.install_import_hook(
    "loong_jax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)

jax.config.update("jax_numpy_rank_promotion", "raise")
