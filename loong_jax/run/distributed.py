"""Several processes as one program: how they meet, who reports, and when all stop together.

On TPU every host runs the same command and JAX finds the others by itself. Elsewhere each process
is told where process 0 listens, how many there are and which one it is. One process alone needs
none of this, and nothing here changes for it.
"""

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from loong_jax import process
from loong_jax.errors import ConfigError, LoongError

PREEMPTED = 42  # exit status of a run that was told to stop and has saved: start it again
MEET_TIMEOUT_S = 600
LOST_AFTER_S = 100  # a process that has not been heard of for so long ends the others
ENVIRONMENT = {  # field of Processes -> variable that stands in for it
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "count": "JAX_NUM_PROCESSES",
    "index": "JAX_PROCESS_ID",
}
_MESSAGE_BYTES = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes of a run, and this one's index. On TPU leave all of it out."""

    coordinator: str | None = None  # host:port of process 0; else JAX_COORDINATOR_ADDRESS
    count: int | None = None  # of processes; else JAX_NUM_PROCESSES
    index: int | None = None  # of this process, from 0; else JAX_PROCESS_ID


ALONE_OR_TPU = Processes()


def initialize(processes: Processes = ALONE_OR_TPU) -> None:
    """Meets the other processes; call it before anything asks JAX for a device.

    Does nothing for a process on its own, for one that has met the others, and where JAX's platform
    is not the TPU and no count of processes is given, as in compilation ahead of time.

    Raises ConfigError when the settings do not name one process among several.
    """
    if jax.distributed.is_initialized():
        return
    arguments = initialize_arguments(processes, os.environ, has_tpu=process.has_tpu())
    if arguments is None:
        return
    if arguments:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        **arguments,
        initialization_timeout=MEET_TIMEOUT_S,
        heartbeat_timeout_seconds=LOST_AFTER_S,
    )
    say(f"{jax.local_device_count()} of {jax.device_count()} devices are here")


def initialize_arguments(
    processes: Processes, environment: Mapping[str, str], *, has_tpu: bool
) -> dict[str, Any] | None:
    """Arguments of `jax.distributed.initialize`: {} to detect them, None to do without."""
    given = dataclasses.asdict(processes)
    for field, variable in ENVIRONMENT.items():
        if given[field] is None and (value := environment.get(variable)):
            if field != "coordinator" and not value.isdecimal():
                raise ConfigError(f"{variable}={value!r} is no whole number. Give one.")
            given[field] = value if field == "coordinator" else int(value)
    if all(value is None for value in given.values()):
        platforms = environment.get("JAX_PLATFORMS", "")
        return {} if has_tpu and (not platforms or "tpu" in platforms.split(",")) else None
    if given["count"] == 1:
        return None
    if missing := [ENVIRONMENT[field] for field, value in given.items() if value is None]:
        raise ConfigError(
            f"{', '.join(missing)} is missing: a process among several needs "
            f"{', '.join(ENVIRONMENT.values())}. Set all three, or none on TPU."
        )
    if not 0 <= given["index"] < given["count"]:
        raise ConfigError(
            f"process {given['index']} is not one of 0..{given['count'] - 1}. Correct "
            f"{ENVIRONMENT['index']} or {ENVIRONMENT['count']}."
        )
    names = ("coordinator_address", "num_processes", "process_id")
    return dict(zip(names, given.values(), strict=True))


def shutdown() -> None:
    """Leaves the others, all of whom must do the same. After an error leave it out: they are told
    by our absence."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def is_first() -> bool:
    """True in the one process that writes reports."""
    return jax.process_index() == 0


def say(message: str) -> None:
    """Prints a line that names this process; in a run of one process just the line."""
    count = jax.process_count()
    print(f"[{jax.process_index()}/{count}] {message}" if count > 1 else message, flush=True)


def first_does(work: Callable[[], object]) -> None:
    """Runs `work` in process 0 alone. What it raises there, every other process raises too, as a
    LoongError: none waits for one that is gone."""
    error: Exception | None = None
    try:
        if is_first():
            work()
    except Exception as raised:
        error = raised
    if jax.process_count() > 1:
        text = f"{type(error).__name__}: {error}" if error else ""
        padded = text.encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0")
        heard = multihost_utils.broadcast_one_to_all(np.frombuffer(padded, np.uint8))
        if told := bytes(heard).rstrip(b"\0").decode(errors="replace"):
            error = error or LoongError(f"process 0 failed with {told}")
    if error is not None:
        raise error


def all_agree(claim: bool) -> bool:
    """True where the claim holds in every process; each of them must ask."""
    return bool(np.all(multihost_utils.process_allgather(np.asarray(claim))))


def meet(where: str) -> None:
    """Waits for all processes, for up to `MEET_TIMEOUT_S`, without a device.

    Processes that compile are ready at different times, and on CPU a collective gives up on the
    others after 30 s: meet between the two.
    """
    multihost.get_barrier_sync_fn()(key=where, timeout_ms=MEET_TIMEOUT_S * 1000)


class Preemption:
    """A stop that all processes agree on; use as a context manager.

    SIGTERM to any process, as a cloud sends before it takes a machine away, makes `reached` true
    at one and the same step everywhere, the first that no process has passed.
    """

    def __init__(self):
        self._told = False
        self._before: Any = None

    def __enter__(self) -> "Preemption":
        if not jax.distributed.is_initialized():  # else JAX itself listens
            self._before = signal.signal(signal.SIGTERM, self._tell)
        return self

    def __exit__(self, *_) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _tell(self, *_) -> None:
        self._told = True

    def reached(self, step: int) -> bool:
        """Must be asked after every step, by every process."""
        return self._told or multihost_utils.reached_preemption_sync_point(step)
