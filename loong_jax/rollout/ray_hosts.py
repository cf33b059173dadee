"""Hosts as Ray actors, each with its own process, JAX and devices; the module that imports ray.

Ray may run the calls of an actor with several threads in any order, so commands are numbered. A
host's reports are what a call returns that waits for them, and that call fails when it dies.
"""

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import ray.exceptions

from loong_jax.rollout.hosts import Ended, HostSetup, Receive
from loong_jax.rollout.ray_host_actor import HostActor
from loong_jax.verifiers.ray_pool import start_ray

_WAIT_S = 5.0  # of one call for reports


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
