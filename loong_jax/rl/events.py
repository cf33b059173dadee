"""Events of a trainer. Times are those of the clock it was given, in seconds."""

import dataclasses
from typing import Any

from loong_jax.rollout.records import Group


@dataclasses.dataclass(frozen=True)
class GroupsScored:
    """`behavior_logprob` is filled in; groups in the order they were given."""

    groups: tuple[Group, ...]
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class StepTrained:
    """The trainer's weights are version `step` now."""

    step: int
    metrics: dict[str, Any]
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class VersionPublished:
    version: int
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Saved:
    step: int
    directory: str
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class WorkerFailed:
    """A command was not carried out; the trainer refuses all later ones."""

    where: str
    error: str
