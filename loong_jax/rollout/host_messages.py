"""Messages between a driver and its hosts.

A host is a process with replicas in threads of its own. Commands go to it, reports come from it,
each in the order they were sent. Replicas have the numbers that the orchestrator knows. What
carries them, `multiprocessing` or Ray, turns them into bytes: both ends are processes of one run
that trust each other. None of it is ever stored. A `HostLauncher` starts the processes.
"""

import dataclasses
import functools
import os
import platform
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from loong_jax.rollout.agentic.agent import Agent
from loong_jax.rollout.attempts import MigrationPayload
from loong_jax.rollout.engine import Engine
from loong_jax.rollout.events import BlockDecoded, GroupGenerated
from loong_jax.rollout.local_replicas import ScoreGroup
from loong_jax.rollout.partial import PartialReport
from loong_jax.rollout.records import Group, Rollout, SamplingSettings
from loong_jax.rollout.replica import EncodePrompt


class HostSetup(NamedTuple):
    """What a host needs to begin, in its process: so functions are importable by name."""

    make_engine: Callable[[], Engine]  # called in the host
    group_size: int
    sampling: SamplingSettings
    seed: int
    groups_per_replica: int
    max_staleness: int
    encode_prompt: EncodePrompt | None = None
    make_agent: Callable[[], Agent | None] | None = None  # called in the host
    make_scorer: Callable[[], ScoreGroup] | None = None  # called in the host: the trainer's program
    heartbeat_s: float = 1.0
    report_s: float = 1.0  # how often it tells what it has written: what its death may cost
    first_number: int = 0
    num_replicas: int = 1


# ---- commands -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A method of the host's `LocalReplicaGroup`; nothing is answered."""

    method: str
    arguments: dict[str, Any]


class Give(NamedTuple):
    """Answered by `Given` with the same `move`."""

    move: int
    replica: int
    numbers: tuple[int, ...]


class Score(NamedTuple):
    """Answered by `Scored` with the same `number`."""

    number: int
    replica: int
    groups: tuple[Group, ...]


class Retire(NamedTuple):
    version: int


class Ask(NamedTuple):
    """A message of `publishing`, answered by `Answer` with the same number."""

    number: int
    message: Any


class Close(NamedTuple):
    """The host says its last `Heartbeat` and ends."""

    timeout_s: float


# ---- reports ------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """The engine is made; commands sent before have waited."""

    pid: int
    clock: str  # `monotonic_clock_name` of the host


class Failed(NamedTuple):
    """The host ends on an error of its own, not of one replica."""

    error: str


class Heartbeat(NamedTuple):
    at_s: float  # by the host's clock
    counts: dict[str, int]  # as `LocalReplicaGroup.statistics`
    cache_pressure: float = 0.0  # of the host's fullest replica


class Happened(NamedTuple):
    """An event of `loong_jax.rollout.events`."""

    event: Any


class Wrote(NamedTuple):
    """New parts of responses, and responses that have ended in groups that have not."""

    reports: tuple[PartialReport | Rollout, ...]


class Given(NamedTuple):
    move: int
    payload: MigrationPayload | None  # None: the replica failed before, and has nothing to give


class Scored(NamedTuple):
    number: int
    groups: tuple[Group, ...] | None  # None: it could not be done here


class Answer(NamedTuple):
    number: int
    reply: Any


def shifted(event: Any, by_s: float) -> Any:
    """An event with the times of another clock, which is `by_s` ahead."""
    if not by_s:
        return event
    if isinstance(event, BlockDecoded):
        return event._replace(start_s=event.start_s + by_s, end_s=event.end_s + by_s)
    if isinstance(event, GroupGenerated):
        rollouts = tuple(
            dataclasses.replace(r, started_s=r.started_s + by_s, ended_s=r.ended_s + by_s)
            for r in event.group.rollouts
        )
        return GroupGenerated(event.group.replace_rollouts(rollouts))
    return event


@functools.cache
def monotonic_clock_name() -> str:
    """Equal in two processes only where `time.monotonic` counts from the same moment.

    On Linux that is one boot of one kernel and one time namespace, whatever the containers.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:  # another system, or a kernel without time namespaces
        return platform.node()


# ---- places --------------------------------------------------------------------------------------

Receive = Callable[[Any], None]
Ended = Callable[[str], None]


@runtime_checkable
class Host(Protocol):
    """One process. Messages arrive once and in order, or the host ends."""

    def start(self, receive: Receive, ended: Ended) -> None:
        """Begins to start the process. `receive` is called with each report, `ended` once with the
        reason when no more will come; both in threads of the host.
        """
        ...

    def send(self, message: Any, data: Any = None) -> None:
        """One command, with what `HostLauncher.share` made of its bytes. From any thread. Silent
        where the host has ended: `ended` says it.
        """
        ...

    def kill(self) -> None:
        """Ends the process at once. May be called twice."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the process; false where it goes on."""
        ...


@runtime_checkable
class HostLauncher(Protocol):
    """A kind of place, and how it is reached."""

    def new(self, number: int, setup: HostSetup) -> Host: ...

    def share(self, data: np.ndarray) -> Any:
        """uint8 bytes in the form in which `Host.send` takes them, once for all hosts."""
        ...

    def close(self) -> None:
        """After the last host has ended."""
        ...
