"""Reports of a group of replicas. Times are seconds of the clock the group was given."""

from collections.abc import Callable
from typing import Any, NamedTuple

from loong_jax.rollout.records import Group

Emit = Callable[[Any], None]  # takes an event, from any thread
# of a replica that was asked to score: the groups, or None where it could not
WhenScored = Callable[[tuple[Group, ...] | None], None]


class GroupGenerated(NamedTuple):
    """All G rollouts of a ticket are written."""

    group: Group


class BlockDecoded(NamedTuple):
    """One block of decode steps, with the prefills that went before it."""

    replica: int
    version: int
    start_s: float
    end_s: float
    num_tokens: int  # written by the policy in this interval
    active_slots: int  # when the block began


class GroupsMigrated(NamedTuple):
    """Running groups moved between two replicas of one version."""

    source: int
    target: int
    ticket_numbers: tuple[int, ...]
    num_tokens_moved: int  # of cache, prompts included
    num_tokens_reprefilled: int  # whose cache could not move


class ReplicaIdle(NamedTuple):
    """The replica has written all it was given."""

    replica: int


class ReplicaFailed(NamedTuple):
    """One replica died with all it was writing; the others go on."""

    replica: int
    error: str
