"""Connecting to Ray, or starting a lean one on this machine."""

import logging
import os
from typing import Any

import ray

from loong_jax import interrupts

logger = logging.getLogger(__name__)

_MAX_STARTS = 4  # Ray gives up after 30 s, which a busy machine may need for its processes
OBJECT_STORE_BYTES = 80 * 2**20  # requests are small: the least that Ray takes is 75 MiB

# Read by Ray when it starts: no statistics sent, and no idle worker started ahead for each CPU.
_LEAN_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_prestart_worker_first_driver": "0",
}


def start_ray(address: str | None = None, num_cpus: int | None = None) -> bool:
    """Connects to Ray, or starts it here when `address` is None; False if we are connected already.

    A local Ray has a small object store, no dashboard, and says nothing. It ends with the thread
    that started it, so start it from the main one. It takes SIGTERM for itself, and would answer
    with pages of frames: the handler that was there stays.
    """
    if ray.is_initialized():
        return False
    with interrupts.kept():
        _start(address, num_cpus)
    return True


def _start(address: str | None, num_cpus: int | None) -> None:
    for name, value in _LEAN_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is not None:
        ray.init(address=address, **quiet)
        return
    for left in reversed(range(_MAX_STARTS)):
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus or os.cpu_count(),
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
            break
        except Exception as error:  # Ray has no class for this one
            if not left or "timed out during startup" not in str(error):
                raise
            logger.warning("Ray did not start in its 30 s and is started again: %s", error)
            ray.shutdown()
