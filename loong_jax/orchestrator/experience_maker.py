"""Generators that help the trainer with behaviour log-probabilities: the Experience-Maker phase.

Before a step, standalone generators stop decoding after their current block and run the trainer's
program on a part of the batch (arXiv:2509.18883, 3.1.1). Each group is scored on its own under its
own version, so who does it changes nothing but rounding. What a generator cannot do, because it
fails or lacks the version, the trainer does.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from loong_jax.orchestrator.protocols import Emit, TrainerGroup
from loong_jax.rl.events import GroupsScored, WorkerFailed
from loong_jax.rollout.records import Group, WhenScored

TRAINER = None  # the trainer's share, by the name of its owner


@runtime_checkable
class Scorers(Protocol):
    """Replicas that can run the trainer's program."""

    def scorers(self, version: int) -> Sequence[int]:
        """Replicas that could score groups of this version now."""
        ...

    def score(self, replica: int, groups: Sequence[Group], then: WhenScored) -> None:
        """Calls `then`, once and from any thread, with the groups scored, or with None."""
        ...


class TrainerWithGenerators:
    """A trainer group whose `score_everywhere` shares the work with the generators."""

    def __init__(self, trainer: TrainerGroup, generators: Scorers):
        self._trainer, self._generators = trainer, generators
        self.score, self.train, self.publish = trainer.score, trainer.train, trainer.publish
        self.save, self.close = trainer.save, trainer.close
        self._say: Emit  # from `start` on
        self.num_scored = {"trainer": 0, "generators": 0}  # groups, since the start
        self._lock = threading.Lock()  # of the batch that is scored everywhere:
        self._order: list[int] = []
        self._scored: dict[int, Group] = {}
        self._times: list[tuple[float, float]] = []
        self._num_missing = 0  # parts of it

    def start(self, emit: Emit) -> None:
        self._say = emit
        self._trainer.start(self._on_event)

    def score_everywhere(self, groups: Sequence[Group]) -> None:
        """Scores groups on trainer and generators; one event for all of them."""
        versions = {group.version for group in groups}
        shares = share_out(groups, {v: self._generators.scorers(v) for v in versions})
        own = shares.pop(TRAINER)
        with self._lock:
            self._order = [group.ticket.number for group in groups]
            self._scored, self._times, self._num_missing = {}, [], 1 + len(shares)
        for replica, part in shares.items():
            assert replica is not None
            self._generators.score(replica, part, functools.partial(self._on_scored, part))
        self._trainer.score(own)

    # ---- answers, from any thread ---------------------------------------------------------------

    def _on_event(self, event: Any) -> None:
        if self._num_missing > 0 and isinstance(event, GroupsScored):
            self._add(event.groups, "trainer", (event.start_s, event.end_s))
            return
        if isinstance(event, WorkerFailed):
            self._num_missing = 0
        self._say(event)

    def _on_scored(self, part: Sequence[Group], found: tuple[Group, ...] | None) -> None:
        if found is None:
            self._trainer.score(part)  # answered as its own share is
        else:
            self._add(found, "generators")

    def _add(self, groups: Sequence[Group], by: str, *times: tuple[float, float]) -> None:
        """One part of the batch; the last one makes the event of the whole."""
        with self._lock:
            self.num_scored[by] += len(groups)
            self._scored |= {group.ticket.number: group for group in groups}
            self._times += times
            self._num_missing -= 1
            if self._num_missing:
                return
        starts, ends = zip(*self._times, strict=True)
        scored = tuple(self._scored[number] for number in self._order)
        self._say(GroupsScored(scored, min(starts), max(ends)))


def share_out(
    groups: Sequence[Group], can: Mapping[int, Sequence[int]]
) -> dict[int | None, list[Group]]:
    """Groups by who scores them, None being the trainer: the longest first, each to whoever has
    the fewest tokens. `can` names the replicas by version. The longest group is the trainer's.
    """
    load: dict[int | None, int] = {TRAINER: 0}
    shares: dict[int | None, list[Group]] = {TRAINER: []}
    for group in sorted(groups, key=lambda g: (-num_tokens(g), g.ticket.number)):
        able = [TRAINER, *can[group.version]]
        owner = min(able, key=lambda who: (load.get(who, 0), -1 if who is None else who))
        load[owner] = load.get(owner, 0) + num_tokens(group)
        shares.setdefault(owner, []).append(group)
    return shares


def num_tokens(group: Group) -> int:
    """The number of tokens in prompts and responses."""
    return sum(len(r.prompt) + len(r.tokens) for r in group.rollouts)
