"""Hosts as processes of this machine, reached through a pair of sockets.

The child is started afresh, not forked, so it has its own JAX with its own threads and devices. It
ends by itself when its driver does. `python -m loong_jax.rollout.process_hosts FD` is its inside.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from loong_jax import logs
from loong_jax.errors import ConfigError
from loong_jax.rollout import hosts as messages
from loong_jax.rollout.hosts import Ended, HostSetup, Receive
from loong_jax.rollout.replica_host import ReplicaHost

SINGLE_THREADED = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "OMP_NUM_THREADS": "1",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessLauncher:
    """Starts the hosts of one machine as processes."""

    # added to the environment of the hosts; XLA_FLAGS are added to those that this process has
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cores: tuple[int, ...] | None = None  # host i runs on core cores[i % len] alone; None: anywhere
    devices_per_process: int = (
        0  # accelerators that a host sees, those of no other; 0: all there are
    )
    first_device: int = 0  # of the first host; those before are the driver's

    def __post_init__(self):
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        if self.cores is not None and not (self.cores and set(self.cores) <= allowed):
            raise ConfigError(
                f"cores={self.cores} are not among those of this process, {sorted(allowed)}. "
                "Choose some of them, or None."
            )

    def new(self, number: int, setup: HostSetup) -> "ProcessHost":
        core = self.cores[number % len(self.cores)] if self.cores else None
        environment = dict(self.environment)
        if self.devices_per_process:
            first = self.first_device + number * self.devices_per_process
            own = visible_devices(first, self.devices_per_process)
            flags = environment.get("XLA_FLAGS", "")
            environment |= own | {"XLA_FLAGS": f"{flags} {own['XLA_FLAGS']}".strip()}
        return ProcessHost(number, setup, environment, core)

    def share(self, data: np.ndarray) -> np.ndarray:
        return data

    def close(self) -> None: ...


_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}  # of chips beside each other


@functools.cache
def listed_devices() -> str:
    """CUDA_VISIBLE_DEVICES as this process was given it: it may leave some to others later."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def visible_devices(first: int, count: int) -> dict[str, str]:
    """The environment of a process that is to see `count` accelerators of a machine, from number
    `first` on of those that this process may see; of CPU devices it is their number.

    Raises ConfigError where this process may not see as many.
    """
    chosen = list(range(first, first + count))
    if listed := listed_devices():
        names = listed.split(",")
        if first + count > len(names):
            raise ConfigError(
                f"a process is to see devices {first} to {first + count - 1} of "
                f"CUDA_VISIBLE_DEVICES={listed}, which names {len(names)}. Ask for fewer "
                "processes, or fewer devices of each."
            )
        cuda = ",".join(names[number] for number in chosen)
    else:
        cuda = ",".join(map(str, chosen))
    tpu = {}
    if count in _TPU_BOUNDS:  # no other number of chips lies together, while GPUs need not
        tpu = {
            "TPU_VISIBLE_CHIPS": ",".join(map(str, chosen)),
            "TPU_CHIPS_PER_PROCESS_BOUNDS": _TPU_BOUNDS[count],
            "TPU_PROCESS_BOUNDS": "1,1,1",
        }
    flags = f"--xla_force_host_platform_device_count={count}"
    return {"CUDA_VISIBLE_DEVICES": cuda, "XLA_FLAGS": flags} | tpu


_GOODBYE_S = 5.0  # for a process that has closed its end to end itself


class ProcessHost:
    """One child process, and the thread that reads what it says."""

    def __init__(
        self, number: int, setup: HostSetup, environment: Mapping[str, str], core: int | None
    ):
        self._number, self._setup, self._core = number, setup, core
        self._environment = environment
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._sending = threading.Lock()
        self._starting = threading.Lock()
        self._is_killed = False

    def start(self, receive: Receive, ended: Ended) -> None:
        ours, theirs = socket.socketpair()
        with self._starting, theirs:
            if not self._is_killed:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(theirs.fileno())],
                    env=self._child_environment(),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        if self._process is None:
            ours.close()
            ended("it was killed before it had started")
            return
        self._connection = Connection(ours.detach())
        threading.Thread(
            target=self._read,
            args=(receive, ended),
            name=f"host-{self._number}-reports",
            daemon=True,
        ).start()
        self._write(self._core)
        self._write(self._setup)

    def send(self, message: Any, data: np.ndarray | None = None) -> None:
        self._write((message, data is not None), data)

    def kill(self) -> None:
        with self._starting:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def join(self, timeout_s: float) -> bool:
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _write(self, message: Any, data: np.ndarray | None = None) -> None:
        assert self._connection is not None
        # an error means that the child has ended, which the reader sees
        with self._sending, contextlib.suppress(OSError):
            self._connection.send(message)
            if data is not None:
                self._connection.send_bytes(data.data)

    def _read(self, receive: Receive, ended: Ended) -> None:
        assert self._connection is not None
        assert self._process is not None
        with contextlib.suppress(EOFError, OSError):
            while True:
                receive(self._connection.recv())
        if not self.join(_GOODBYE_S):
            self._process.kill()  # it cannot be heard any more
        status = self._process.wait()
        ended(
            f"its process was ended by {signal.Signals(-status).name}"
            if status < 0
            else f"its process ended with status {status}; its standard error says why"
        )

    def _child_environment(self) -> dict[str, str]:
        environment = {**os.environ, **self._environment}
        own, added = os.environ.get("XLA_FLAGS", ""), self._environment.get("XLA_FLAGS", "")
        if own or added:
            environment["XLA_FLAGS"] = f"{own} {added}".strip()
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        return environment


# ---- inside the child -------------------------------------------------------------------------


def main(file_number: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to a group, they are the driver's
        signal.signal(number, signal.SIG_IGN)
    logs.start()
    connection = Connection(file_number)
    core = connection.recv()
    if core is not None:
        os.sched_setaffinity(0, {core})  # before JAX looks for devices
    setup = connection.recv()
    lock = threading.Lock()

    def send(report: Any) -> None:
        with lock:
            try:
                connection.send(report)
            except OSError:
                os._exit(1)  # the driver is gone

    try:
        host = ReplicaHost(setup, send)
        host.start()
        while True:
            message, has_data = connection.recv()
            data = np.frombuffer(connection.recv_bytes(), np.uint8) if has_data else None
            if not host.handle(message, data):
                break
    except EOFError:
        pass  # the driver is gone
    except Exception as error:
        traceback.print_exc()
        send(messages.Failed(f"{type(error).__name__}: {error}"))
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
