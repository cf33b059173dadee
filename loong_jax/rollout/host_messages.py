"""What a driver and its hosts say to each other.

A host is a process with replicas in threads of its own. Commands go to it, reports come from it,
each in the order they were sent. Replicas have the numbers that the orchestrator knows. What
carries them, `multiprocessing` or Ray, turns them into bytes: both ends are processes of one run
that trust each other. None of it is ever stored.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from loong_jax.rollout.agentic.agent import Agent
from loong_jax.rollout.attempts import Luggage
from loong_jax.rollout.drafts import Draft, Written
from loong_jax.rollout.engine import Engine
from loong_jax.rollout.events import BlockDecoded, GroupGenerated
from loong_jax.rollout.local_replicas import ScoreGroup
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
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


class Assign(NamedTuple):
    replica: int
    version: int


class Swap(NamedTuple):
    replica: int
    version: int
    keep_cache: bool


class Dispatch(NamedTuple):
    replica: int
    tickets: tuple[Ticket, ...]
    version: int
    drafts: dict[int, Draft]


class Cancel(NamedTuple):
    replica: int
    numbers: tuple[int, ...]


class Pause(NamedTuple):
    replica: int


class Resume(NamedTuple):
    replica: int


class Migrate(NamedTuple):
    """Between two replicas of one host."""

    source: int
    target: int
    numbers: tuple[int, ...]


class Give(NamedTuple):
    """Answered by `Given` with the same `move`."""

    move: int
    replica: int
    numbers: tuple[int, ...]


class Take(NamedTuple):
    replica: int
    source: int
    luggage: Luggage


class Score(NamedTuple):
    """Answered by `Scored` with the same `number`."""

    number: int
    replica: int
    groups: tuple[Group, ...]


class Mend(NamedTuple):
    replica: int


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
    slots_per_replica: int
    clock: str  # `clocks.monotonic_clock_name` of the host


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

    reports: tuple[Written | Rollout, ...]


class Given(NamedTuple):
    move: int
    luggage: Luggage | None  # None: the replica failed before, and has nothing to give


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
