"""Hosts as Ray actors, each with its own process, JAX and devices; the module that imports ray.

Ray may run the calls of an actor with several threads in any order, so commands are numbered. A
host's reports are what a call returns that waits for them, and that call fails when it dies.
"""

import itertools
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import ray.exceptions

from loong_jax.rollout import hosts as messages
from loong_jax.rollout.hosts import Ended, HostSetup, Receive
from loong_jax.rollout.replica_host import ReplicaHost
from loong_jax.verifiers.ray_start import start_ray

_WAIT_S = 5.0  # of one call for reports


class HostActor:
    """The inside of an actor: carries out commands by their numbers, in whatever order they come.

    The first report is that the engine is made, or why it is not; None is the last one.
    """

    def __init__(self):
        self._reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._early: dict[int, tuple[Any, np.ndarray | None]] = {}
        self._next = 0
        self._host: ReplicaHost | None = None

    def start(self, setup: HostSetup) -> list[Any]:
        with self._lock:
            try:
                self._host = ReplicaHost(setup, self._reports.put)
                self._host.start()
            except Exception as error:
                self._fail(error)
            self._carry_out()
        return self.reports(0.0)

    def handle(self, number: int, message: Any, data: np.ndarray | None) -> None:
        with self._lock:
            self._early[number] = message, data
            self._carry_out()

    def reports(self, timeout_s: float) -> list[Any]:
        """Reports so far, or the first that comes within so long."""
        found: list[Any] = []
        deadline_s = time.monotonic() + timeout_s
        try:
            while not found or not self._reports.empty():
                found.append(self._reports.get(timeout=max(0.0, deadline_s - time.monotonic())))
        except queue.Empty:
            pass
        return found

    def _carry_out(self) -> None:
        while self._host is not None and self._next in self._early:
            message, data = self._early.pop(self._next)
            self._next += 1
            try:
                if not self._host.handle(message, data):
                    self._reports.put(None)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._host = None
        self._reports.put(messages.Failed(f"{type(error).__name__}: {error}"))
        self._reports.put(None)


class RayLauncher:
    """Starts hosts on Ray; each takes `num_cpus` and `resources`, such as {"TPU": 4}.

    Connects to Ray at `address`, or starts one on this machine where there is none, from the
    calling thread; `close` shuts down what was started here.
    """

    def __init__(
        self,
        *,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        address: str | None = None,
    ):
        self._owns_ray = start_ray(address)
        self._actor_class = ray.remote(HostActor).options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=dict(resources or {}),
            runtime_env={"env_vars": dict(environment)} if environment else None,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=4,  # reports, commands, and what comes before its turn
        )

    def new(self, number: int, setup: HostSetup) -> "RayHost":
        return RayHost(number, self._actor_class.remote, setup)

    def share(self, data: np.ndarray) -> ray.ObjectRef:
        """Put into the object store once; hosts of a machine read the same memory."""
        return ray.put(data)

    def close(self) -> None:
        if self._owns_ray:
            ray.shutdown()
            self._owns_ray = False


class RayHost:
    """One actor, and the thread that reads what it says."""

    def __init__(self, number: int, make_actor: Any, setup: HostSetup):
        self._number, self._make_actor, self._setup = number, make_actor, setup
        self._actor: Any = None
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._is_killed = False
        self._thread: threading.Thread | None = None

    def start(self, receive: Receive, ended: Ended) -> None:
        with self._sending:
            self._actor = self._make_actor()
            if self._is_killed:
                ray.kill(self._actor)
        self._thread = threading.Thread(
            target=self._read,
            args=(receive, ended),
            name=f"host-{self._number}-reports",
            daemon=True,
        )
        self._thread.start()

    def send(self, message: Any, data: Any = None) -> None:
        with self._sending:
            self._actor.handle.remote(next(self._numbers), message, data)

    def kill(self) -> None:
        with self._sending:
            self._is_killed = True
            if self._actor is not None:
                ray.kill(self._actor)

    def join(self, timeout_s: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _read(self, receive: Receive, ended: Ended) -> None:
        why = "it was closed"
        call = self._actor.start.remote(self._setup)
        try:
            while True:
                try:
                    reports = ray.get(call, timeout=_WAIT_S)
                except ray.exceptions.GetTimeoutError:
                    continue  # whoever waits for the host decides how long
                for report in reports or ():
                    if report is None:
                        return
                    receive(report)
                call = self._actor.reports.remote(_WAIT_S)
        except ray.exceptions.RayError as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
        finally:
            ray.kill(self._actor)
            ended(why)
