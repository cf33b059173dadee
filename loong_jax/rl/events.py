"""Events of a trainer. Times are those of the clock it was given, in seconds."""

from typing import Any, NamedTuple

from loong_jax.rollout.records import Group


class GroupsScored(NamedTuple):
    """`behavior_logprob` is filled in; groups in the order they were given."""

    groups: tuple[Group, ...]
    start_s: float
    end_s: float


class StepTrained(NamedTuple):
    """The trainer's weights are version `step` now."""

    step: int
    metrics: dict[str, Any]
    start_s: float
    end_s: float


class VersionPublished(NamedTuple):
    version: int
    start_s: float
    end_s: float


class Saved(NamedTuple):
    step: int
    directory: str
    start_s: float
    end_s: float


class WorkerFailed(NamedTuple):
    """A command was not carried out; the trainer refuses all later ones."""

    where: str
    error: str
