"""The verifier pool on Ray workers, and connecting to Ray or starting a lean one on this machine.

Each actor owns one killable worker (worker.py), so that a verifier that hangs costs its own request
and nothing else.
"""

import contextlib
import functools
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from loong_jax import interrupts
from loong_jax.child import ChildLost
from loong_jax.errors import ConfigError, VerifierError
from loong_jax.verifiers import pool, worker
from loong_jax.verifiers.pool import FedPool
from loong_jax.verifiers.worker import VerifierActor, WorkerConfig

logger = logging.getLogger(__name__)

_START_S = 90.0
_NUM_CPUS = 0.1  # that an actor asks of Ray's scheduler: few, so that it fits beside a trainer
_GRACE_S = 30.0  # an actor's time for a batch beyond the requests' deadlines
_CONNECT_S = 10.0  # for a cluster that is named to answer
_MAX_STARTS = 4  # Ray gives up after 30 s, which a busy machine may need for its processes
_HOME = os.fsencode(os.path.dirname(ray.__file__))  # that of the programs it starts
OBJECT_STORE_BYTES = 80 * 2**20  # requests are small: the least that Ray takes is 75 MiB

# Read by Ray when it starts: no statistics sent, and no idle worker started ahead for each CPU.
_LEAN_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_prestart_worker_first_driver": "0",
}


class RayVerifierPool(FedPool):
    """`num_workers` Ray actors that share the waiting requests.

    The pool shuts Ray down on `close` only if it started it. Raises VerifierError where no actor
    can be started.
    """

    def __init__(
        self,
        num_workers: int = 2,
        config: WorkerConfig | None = None,
        *,
        address: str | None = None,
    ):
        self._owns_ray = num_workers > 0 and start_ray(address)
        actor_class: Any = ray.remote(VerifierActor).options(
            num_cpus=_NUM_CPUS, max_restarts=0, max_task_retries=0
        )
        make = lambda: actor_class.remote(config or WorkerConfig())  # noqa: E731
        super().__init__([_RayWorker(make) for _ in range(num_workers)], pool.MAX_BATCH)
        if (why := self.wait_until_ready(_START_S)) is not None:
            self.close(0.0)
            raise VerifierError(
                f"no verifier actor started: {why or f'waited {_START_S:.0f} s'}. Does Ray have "
                f"{_NUM_CPUS} free CPUs, and is loong_jax installed on its workers?"
            )

    def close(self, timeout_s: float = 10.0) -> None:
        super().close(timeout_s)
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()


class _RayWorker:
    """An actor, and another one where it was lost."""

    def __init__(self, make: Callable[[], Any]):
        self._make = make
        self._actor: Any = None
        self._is_ended = False
        self.pid: int | None = None  # known once it is ready
        self.num_lost = 0

    def prepare(self) -> None:
        if self.pid is None and not self._is_ended:
            self.pid = self._asked(self._start, _START_S)

    def _start(self) -> Any:
        self._actor = self._make()
        return self._actor.start.remote()

    def judge(self, requests: Sequence[bytes], deadlines_s: Sequence[float]) -> list[bytes]:
        actor, block = self._actor, worker.pack(requests)
        ask = functools.partial(actor.judge.remote, block, list(deadlines_s))
        return worker.unpack(self._asked(ask, sum(deadlines_s) + _GRACE_S))

    def _asked(self, ask: Callable[[], Any], timeout_s: float) -> Any:
        try:
            return ray.get(ask(), timeout=timeout_s)
        except Exception as error:
            self.stop()
            self.num_lost += 1
            is_late = isinstance(error, TimeoutError)
            why = "it did not answer in time" if is_late else f"{type(error).__name__}: {error}"
            raise ChildLost(why) from None

    def end(self) -> None:
        self._is_ended = True
        if (actor := self._actor) is not None:
            ray.kill(actor)

    def stop(self) -> None:
        if (actor := self._actor) is not None:
            self._actor = self.pid = None
            ray.kill(actor)


# ---- Ray itself


def start_ray(address: str | None = None, num_cpus: int | None = None) -> bool:
    """Connects to Ray at `address` or RAY_ADDRESS, or starts it here where neither is given.

    False if we are connected already, since verifiers and replicas of a process share one Ray.
    ConfigError where that is another one than was asked for, and where nothing answers;
    VerifierError where none starts here, as on a machine that is too busy.

    A local Ray has a small object store, no dashboard, and says nothing. It ends with the thread
    that started it, so start it from the main one. It takes SIGTERM for itself, and would answer
    with pages of frames: the handler that was there stays.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if ray.is_initialized():
        _refuse_other(address)
        return False
    with interrupts.kept():
        _start(address, num_cpus)
    return True


def _start(address: str | None, num_cpus: int | None) -> None:
    for name, value in _LEAN_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is not None and address != "local":
        _refuse_silent(address)
        ray.init(address=address, **quiet)
        return
    for left in reversed(range(_MAX_STARTS)):
        try:
            with _whole_or_ended():
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
            if "timed out during startup" not in str(error):
                raise
            if not left:
                raise VerifierError(
                    f"Ray did not start in {_MAX_STARTS} tries of 30 s each, as on a machine that "
                    f"is too busy (load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs). Try "
                    "again when it is not, or start Ray before the run: ray start --head, and "
                    "RAY_ADDRESS=127.0.0.1:6379."
                ) from error
            logger.warning("Ray did not start in its 30 s and is started again: %s", error)
            ray.shutdown()


@contextlib.contextmanager
def _whole_or_ended() -> Iterator[None]:
    """Ends the processes of a start that failed, which Ray leaves until this process ends."""
    before = _programs()
    try:
        yield
    except BaseException:
        for pid in _programs() - before:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        raise


def _programs(proc: Path = Path("/proc")) -> set[int]:
    """Children of this process that run a program of Ray's."""
    found = set()
    for entry in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid() and _HOME in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
    return found


def _place(address: str) -> tuple[str, int] | None:
    """Host and port of an address, such as "10.0.0.1:6379" or "ray://head:10001"; else None."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _refuse_silent(address: str) -> None:
    """Ray itself would wait for minutes, and then end the process."""
    place = _place(address)
    try:
        if place is not None:
            socket.create_connection(place, timeout=_CONNECT_S).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray answers at address {address!r} within {_CONNECT_S:.0f} s: {error}. Correct "
            "the address (RAY_ADDRESS, where none was given), or start Ray there: ray start --head."
        ) from None


def _refuse_other(address: str | None) -> None:
    place = None if address is None else _place(address)
    if place is None:
        return
    connected = ray.get_runtime_context().gcs_address
    at = _place(connected)
    is_client = str(address).startswith("ray://")  # whose port is another one
    if at is not None and (_ip(place[0]), is_client or place[1]) != (
        _ip(at[0]),
        is_client or at[1],
    ):
        raise ConfigError(
            f"Ray at {address!r} was asked for, and this process is connected to {connected}. One "
            "process has one Ray: give verifiers and replicas the same address."
        )


def _ip(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host
