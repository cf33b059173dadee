"""Replay of whole groups: what a step has trained, to be read again by one of the next steps.

A re-read is counted and changes no ticket: it ended as trained and stays so. A group is read again
within the bound of staleness alone, at most `max_reads` times, and it carries the log-probabilities
under its own version since it was scored, so no old weights are kept for it. Which groups a step
reads again depends on the seed, the step and what was trained before, and on nothing else.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.rollout import records
from loong_jax.rollout.records import Group


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupReuse:
    """The share of a step that was trained on before; by default none.

    A step trains on the `groups_per_step` fresh groups of its scheduler and, where enough are young
    enough, on as many old ones as make up `share` of them all.
    """

    share: float = 0.0  # of a step's groups, in [0, 1)
    max_reads: int = 1  # of a group, beside its first

    def __post_init__(self):
        if not 0 <= self.share < 1:
            raise ConfigError(
                f"share={self.share} is not in [0, 1). Use 0.25 for a step of which a quarter was "
                "trained before, 0 for none."
            )
        refuse_below(self, 1, "max_reads")
        if self.num_old(1) > self.max_reads + 1e-9:
            raise ConfigError(
                f"share={self.share} needs every group {self.num_old(1):.2g} times more, and "
                f"max_reads={self.max_reads}. Raise max_reads or lower share."
            )

    def num_old(self, num_fresh: int) -> float:
        """The number of old groups that join `num_fresh` fresh ones, before rounding."""
        return num_fresh * self.share / (1 - self.share)

    def refuse_without(self, max_staleness: int) -> None:
        """Raises ConfigError where the bound of staleness leaves nothing to be read again."""
        if self.share and max_staleness < 1:
            raise ConfigError(
                f"reuse.share={self.share} with max_staleness={max_staleness}: what a step has "
                "trained is one step old for the next. Raise max_staleness or set share=0."
            )


class TrainedGroups:
    """Trained groups that may be trained on again, in the order of their tickets."""

    def __init__(self, reuse: GroupReuse, *, seed: int, max_staleness: int):
        reuse.refuse_without(max_staleness)
        self.num_reads = 0  # over the run
        self._reuse, self._seed, self._max_staleness = reuse, seed, max_staleness
        self._kept: dict[int, tuple[Group, int]] = {}  # ticket number -> group, times read again

    def pick(self, num_fresh: int, trainer_version: int) -> tuple[Group, ...]:
        """Old groups to join `num_fresh` fresh ones in the step from `trainer_version`.

        Drawn without replacement, all that may be read with equal chances. Changes nothing: that
        is for `after_step`, once the step has happened.
        """
        wanted = round(self._reuse.num_old(num_fresh))
        readable = self._readable(trainer_version)
        if not wanted or not readable:
            return ()
        young = [group for _, (group, _) in sorted(readable.items())]
        draw = np.random.default_rng([self._seed, trainer_version])
        order = draw.permutation(len(young))[:wanted]
        return tuple(young[place] for place in sorted(order.tolist()))

    def after_step(
        self, fresh: Iterable[Group], again: Iterable[Group], trainer_version: int
    ) -> None:
        """A step from `trainer_version` has trained on `fresh` groups, and on others once more.

        What no later step may read is dropped.
        """
        for group in again:
            known, reads = self._kept[group.ticket.number]
            self._kept[group.ticket.number] = known, reads + 1
            self.num_reads += 1
        self._kept |= {group.ticket.number: (group, 0) for group in fresh}
        self._kept = self._readable(trainer_version + 1)

    def _readable(self, trainer_version: int) -> dict[int, tuple[Group, int]]:
        """Those that the step from `trainer_version` may read."""
        oldest = trainer_version - self._max_staleness
        return {
            number: (group, reads)
            for number, (group, reads) in self._kept.items()
            if group.version >= oldest and reads < self._reuse.max_reads
        }

    def __len__(self) -> int:
        return len(self._kept)

    def snapshot(self) -> dict[str, Any]:
        kept = [[records.group_to_plain(group), reads] for group, reads in self._kept.values()]
        return {"num_reads": self.num_reads, "kept": kept}

    def restore(self, record: Mapping[str, Any]) -> None:
        self.num_reads = record["num_reads"]
        read_back = ((records.group_from_plain(group), reads) for group, reads in record["kept"])
        self._kept = {group.ticket.number: (group, reads) for group, reads in read_back}
