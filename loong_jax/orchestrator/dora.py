"""DORA at full size: several versions decode at once and work moves between replicas.

Sources: arXiv:2509.18883, 3.1.1 (phases, elastic colocation, standalone generators that compute
log-probabilities) and arXiv:2604.26256 (Algorithm 1, the window of versions). `policy.DoraPolicy`
is the small form for one machine, where a replica changes version only once it has run empty.
"""

import dataclasses

from loong_jax.errors import ConfigError
from loong_jax.orchestrator import choices, rebalance
from loong_jax.orchestrator.changes import (
    Action,
    Assign,
    Balanced,
    Issue,
    Lend,
    Migrate,
    Reclaim,
    SetGate,
)
from loong_jax.orchestrator.choices import OverStale
from loong_jax.orchestrator.ledger import UNFINISHED, Ledger
from loong_jax.orchestrator.protocols import MovesGroups


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triggers:
    """When replicas are shared out anew. A weight update always does, and so does
    a change of those that generate."""

    period_s: float = 60.0
    cache_pressure: float = 0.9  # share of the fullest replica's cache
    least_gap_s: float = 5.0  # between two that pressure asked for

    def __post_init__(self):
        if not (self.period_s > 0 and self.least_gap_s > 0 and 0 < self.cache_pressure <= 1):
            raise ConfigError(
                f"period_s={self.period_s} and least_gap_s={self.least_gap_s} must be positive and "
                f"cache_pressure={self.cache_pressure} in (0, 1]."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElasticGate:
    """Lends the trainer's devices only where much of the next batch is still to be written.

    The benefit is that share of a batch; each loan makes the next one harder and each refusal
    easier, so the devices do not swing to and fro at the threshold.
    """

    threshold: float = 0.2  # share of the next batch that is missing
    raised_by: float = 0.05  # after a loan
    lowered_by: float = 0.03  # after a refusal
    highest: float = 0.6
    lowest: float = 0.05

    def __post_init__(self):
        if not 0 <= self.lowest <= self.threshold <= self.highest <= 1:
            raise ConfigError(
                f"lowest={self.lowest} <= threshold={self.threshold} <= highest={self.highest} "
                "must hold within [0, 1]: they are shares of a batch."
            )
        if self.raised_by < 0 or self.lowered_by < 0:
            raise ConfigError(
                f"raised_by={self.raised_by} and lowered_by={self.lowered_by} must be >= 0."
            )

    def decide(self, missing: float, threshold: float) -> tuple[bool, float]:
        """Whether to lend, and the next threshold. `missing` is a share of a batch, in [0, 1]."""
        if missing > threshold:
            return True, min(self.highest, threshold + self.raised_by)
        return False, max(self.lowest, threshold - self.lowered_by)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiVersionPolicy:
    """DORA with Algorithm 1. Several fields switch one of its ideas off, for comparison."""

    groups_per_step: int  # P
    max_staleness: int = 2  # S, in steps; S + 1 versions decode at once
    over_stale: OverStale = "wait"  # for the oldest version, or "regenerate" what is too old
    over_provision: float = 0.5  # groups in flight beyond P, in batches
    triggers: Triggers | None = Triggers()  # None: replicas change version only once empty
    gate: ElasticGate | None = ElasticGate()  # None: devices are lent whenever they are free
    generators_score: bool = True  # standalone generators help with behaviour log-probabilities

    mixes_versions = False

    def __post_init__(self):
        choices.check(
            groups_per_step=self.groups_per_step,
            max_staleness=self.max_staleness,
            over_provision=self.over_provision,
        )

    @property
    def needs(self) -> tuple[type, ...]:
        return () if self.triggers is None else (MovesGroups,)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        if self.over_stale == "regenerate" and (
            actions := choices.end_stale(view, self.max_staleness, "again")
        ):
            return actions
        return (
            self._use_trainer(view)
            or self._lend(view)
            or self._let_go(view)
            or self._place(view, now)
            or self._admit(view)
            or choices.dispatch(view)
        )

    def _use_trainer(self, view: Ledger) -> list[Action]:
        if self.over_stale == "wait":
            batch = choices.batch_of_window(
                view, groups_per_step=self.groups_per_step, max_staleness=self.max_staleness
            )
        else:
            batch = choices.oldest_batch(view, self.groups_per_step)
        if batch is None:
            return []
        lent = view.sets.lent
        if lent and self.triggers is not None:
            return [*rebalance.evacuate(view, lent), Reclaim(lent)]
        return choices.train(view, batch, with_generators=self.generators_score)

    def _lend(self, view: Ledger) -> list[Action]:
        """Once a step, after its weights are published, the gate decides about all devices."""
        taken = view.sets.taken
        if not taken or view.trainer != "idle":
            return []
        holds_work = any(view.tickets.num_decoding(number) for number in taken)
        nobody_else = len(taken) == len(view.sets.working)
        if self.gate is None or holds_work or nobody_else:
            return [Lend(taken)]
        there = view.tickets.count("judged", "scoring", "ready")
        missing = max(0.0, 1 - there / self.groups_per_step)
        if view.gate_step == view.step:
            # Refused for this step, but the batch cannot come together without these devices.
            stuck = not view.tickets.count("decoding", "verifying", "scoring")
            return [Lend(taken)] if stuck and missing else []
        threshold = self.gate.threshold if view.lend_threshold is None else view.lend_threshold
        lends, following = self.gate.decide(missing, threshold)
        return [SetGate(following), Lend(taken)] if lends else [SetGate(following)]

    def _let_go(self, view: Ledger) -> list[Action]:
        """Empty replicas whose devices the trainer keeps hold no version that the window has left:
        the version store has room for that of the window alone.
        """
        oldest = view.newest_version - self.max_staleness
        return [
            Assign(number, view.newest_version)
            for number in view.sets.taken
            if (version := view.replicas[number].version) is not None
            and version < oldest
            and not view.tickets.num_decoding(number)
        ]

    # ---- which replica hosts what ---------------------------------------------------------------

    def _place(self, view: Ledger, now: float) -> list[Action]:
        if self.triggers is None:
            return self._turn_empty(view)
        generating = view.sets.generating
        update = (view.newest_version, len(generating)) != view.balance[:2]
        waited_s = now - view.balance.at_s
        pressed = view.cache_pressure > self.triggers.cache_pressure
        is_due = waited_s >= self.triggers.period_s or (
            pressed and waited_s >= self.triggers.least_gap_s
        )
        if not generating or not (update or is_due or self._is_uncovered(view)):
            return []
        injected = max(0, self._num_wanted - view.tickets.count(*UNFINISHED))
        actions = rebalance.repartition(view, generating, injected=injected)
        moves = any(isinstance(action, Assign | Migrate) for action in actions)
        return [*actions, Balanced(now)] if update or is_due or moves else []

    def _is_uncovered(self, view: Ledger) -> bool:
        """True where queued groups have no replica of their version (after a resume)."""
        hosted = view.sets.hosts
        return any(version not in hosted for version in view.tickets.versions("queued"))

    def _turn_empty(self, view: Ledger) -> list[Action]:
        """Static: one share in S + 1 of the replicas takes up each new version, once empty."""
        queued = view.tickets.versions("queued")
        generating = view.sets.generating
        hosted = [view.replicas[number].version for number in generating]
        uncovered = [version for version in sorted(queued) if version not in hosted]
        share = max(1, round(len(generating) / (self.max_staleness + 1)))
        num_newest = hosted.count(view.newest_version)
        oldest_useful = view.newest_version - self.max_staleness + 1
        actions: list[Action] = []
        for number in sorted(generating, key=lambda n: (view.replicas[n].version or 0, n)):
            version = view.replicas[number].version
            is_busy = view.tickets.num_decoding(number) or version in queued
            if is_busy or version == view.newest_version:
                continue
            if uncovered:
                actions.append(Assign(number, uncovered.pop(0)))
            elif version is None or num_newest < share or version < oldest_useful:
                actions.append(Assign(number, view.newest_version))
                num_newest += 1
        return actions

    # ---- new work -------------------------------------------------------------------------------

    @property
    def _num_wanted(self) -> int:
        """RBS of the paper, in groups."""
        return int((1 + self.over_provision) * self.groups_per_step)

    def _admit(self, view: Ledger) -> list[Action]:
        """The newest version first; idle places of older ones are filled where age allows."""
        wanted = self._num_wanted - view.tickets.count(*UNFINISHED)
        if wanted <= 0:
            return []
        hosted = [version for version in view.sets.hosts if version is not None]
        for version in sorted(hosted, reverse=True):
            if self.triggers is None and not self._takes_work(view, version):
                continue
            room = min(
                choices.room_for(
                    view,
                    later,
                    groups_per_step=self.groups_per_step,
                    max_staleness=self.max_staleness,
                )
                for later in range(version, view.newest_version + 1)
            )
            if room <= 0:  # then there is none in older versions either
                return []
            count = min(wanted, room, choices.num_free(view, version))
            if count > 0:
                return [Issue(count, version)]
        return []

    def _takes_work(self, view: Ledger, version: int) -> bool:
        """Static replicas that have to turn take nothing new, or they would never be empty."""
        if version == view.newest_version:
            return True
        generating = view.sets.generating
        share = max(1, round(len(generating) / (self.max_staleness + 1)))
        num_newest = sum(view.replicas[n].version == view.newest_version for n in generating)
        oldest = min(v for n in generating if (v := view.replicas[n].version) is not None)
        is_due = version == oldest and num_newest < share
        return not is_due and version > view.newest_version - self.max_staleness
