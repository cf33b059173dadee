"""DORA: several policy versions decode at once, and a response ends under the one it began with.

Sources: arXiv:2509.18883, 3.1.1 (phases, elastic colocation, standalone generators that compute
log-probabilities) and arXiv:2604.26256 (Algorithm 1, the window of versions). `DoraPolicy` is the
small form, which any replicas can follow; `MultiVersionPolicy` moves running groups and lends the
trainer's devices.
"""

import dataclasses
import math

from loong_jax.errors import ConfigError
from loong_jax.orchestrator import policy as policies
from loong_jax.orchestrator import rebalance
from loong_jax.orchestrator.changes import (
    Action,
    Assign,
    Balanced,
    Drain,
    Issue,
    Lend,
    Migrate,
    Reclaim,
    Score,
    SetGate,
    SetIssueLimit,
)
from loong_jax.orchestrator.ledger import UNFINISHED, Ledger
from loong_jax.orchestrator.policy import OverStale, Policy
from loong_jax.orchestrator.protocols import MovesGroups


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoraPolicy:
    """The small form, for replicas that change version only once they have run empty.

    * Each new version is taken up by `replicas_per_version` replicas, those with the oldest one
      first, so generation never stops for a weight update.
    * A group is admitted only if it can still be trained within `max_staleness` steps of its
      version, even if every open group is trained before it.

    In deterministic mode nothing depends on timing: which tickets exist, under which version each
    is written and which groups form a batch are functions of the order of issue alone.
    """

    groups_per_step: int  # P
    max_staleness: int = 2  # S, in steps
    max_ahead: float = 1.0  # groups open beside those being trained on, in batches of P
    replicas_per_version: int = 1  # that change to a new version; the others follow later ones
    score_at_least: int = 8  # judged groups worth a scoring pass while training cannot start
    deterministic: bool = False

    mixes_versions = False
    needs = ()

    def __post_init__(self):
        policies.check(self)
        if not 0 < self.max_ahead < math.inf or self.replicas_per_version < 1:
            raise ConfigError(
                f"max_ahead={self.max_ahead} must be positive and finite, and replicas_per_version="
                f"{self.replicas_per_version} at least 1, or nothing is generated."
            )

    def decide(self, view: Ledger, now: float) -> list[Action]:
        del now
        admit = _admit_by_order if self.deterministic else _admit_by_staleness
        return (
            policies.end_stale(view, self, "again")
            or _use_trainer(view, self)
            or _turn_replicas(view, self)
            or admit(view, self)
            or policies.dispatch(view)
        )


def _use_trainer(view: Ledger, policy: DoraPolicy) -> list[Action]:
    if view.trainer != "idle":
        return []
    batch = next_batch(view, policy)
    if batch is not None:
        return policies.score_and_train(view, batch)
    judged = tuple(ticket.number for ticket in view.tickets.in_phase("judged"))
    if not policy.deterministic and len(judged) >= policy.score_at_least:
        return [Score(judged)]
    return []


def next_batch(view: Ledger, policy: DoraPolicy) -> tuple[int, ...] | None:
    """The P groups of the next step, or None while they are not all there.

    Deterministic: the first P in the order of issue, once nothing before them is still open.
    Otherwise the oldest versions first among those that are there.
    """
    if policy.deterministic:
        if view.newest_version < view.step:
            return None
        batch = []
        for ticket in view.tickets.values():
            if ticket.phase not in ("judged", "ready"):
                return None
            batch.append(ticket.number)
            if len(batch) == policy.groups_per_step:
                return tuple(batch)
        return None
    return policies.oldest_batch(view, policy)


def _turn_replicas(view: Ledger, policy: DoraPolicy) -> list[Action]:
    """Empty replicas take up the version they are needed for; others are emptied, oldest first."""
    queued_versions = set(view.tickets.versions("queued"))
    working = {number: view.replicas[number] for number in view.sets.working}
    for number, replica in working.items():
        if view.tickets.num_decoding(number) or replica.version in queued_versions:
            continue
        uncovered = queued_versions - {r.version for r in working.values()}
        if uncovered:
            return [Assign(number, min(uncovered))]
        may_turn = replica.version is None or replica.draining or policy.deterministic
        if may_turn and replica.version != view.newest_version:
            return [Assign(number, view.newest_version)]
    draining = sum(replica.draining for replica in working.values())
    newest = sum(replica.version == view.newest_version for replica in working.values())
    wanted = policy.replicas_per_version - newest - draining
    oldest_useful = view.newest_version - policy.max_staleness + 1
    behind = sorted(
        (replica.version, view.tickets.num_decoding(number), number)
        for number, replica in working.items()
        if replica.version is not None
        and replica.version < view.newest_version
        and not replica.draining
    )
    return [
        Drain(number)
        for place, (version, _, number) in enumerate(behind)
        if place < wanted or version < oldest_useful
    ]


def _admit_by_staleness(view: Ledger, policy: DoraPolicy) -> list[Action]:
    """New tickets for free places, newest version first, as far as staleness allows.

    A group written under version v is trained within step v + S + 1 if at most
    P * (v + S + 1 - step) groups are open when it is admitted, itself and a batch in training
    included. While the trainer waits for a batch, one whole batch may always be open.
    """
    num_leased = view.tickets.count("leased")
    ahead = policy.max_ahead if num_leased else max(policy.max_ahead, 1.0)
    most = int(ahead * policy.groups_per_step) + num_leased
    hosted = [version for version in view.sets.hosts if version is not None]
    for version in sorted(hosted, reverse=True):
        steps_left = version + policy.max_staleness + 1 - view.step
        num_open = min(steps_left * policy.groups_per_step, most)
        count = min(policies.num_free(view, version), num_open - len(view.tickets))
        if count > 0:
            return [Issue(count, version)]
    return []


def _admit_by_order(view: Ledger, policy: DoraPolicy) -> list[Action]:
    """Deterministic admission: up to P * (S + 1) tickets past the last one trained.

    When all of them are judged and too few teach anything, exactly the missing number is added.
    """
    if view.newest_version < view.step:
        return []
    if view.num_issued < view.issue_limit:
        return [Issue(view.issue_limit - view.num_issued, view.newest_version)]
    if all(ticket.phase in ("judged", "ready") for ticket in view.tickets.values()):
        missing = policy.groups_per_step - len(view.tickets)
        if missing > 0:
            return [SetIssueLimit(view.num_issued + missing)]
    return []


def refuse_idle_loans(policy: Policy, num_elastic: int, *, where: str) -> None:
    """Raises ConfigError for elastic replicas under a policy that never lends or reclaims."""
    if num_elastic and isinstance(policy, DoraPolicy):
        raise ConfigError(
            f"num_elastic={num_elastic}, but {where}={policy!r} never takes devices back. Use "
            "MultiVersionPolicy, whose `gate` decides about loans, or num_elastic=0."
        )


# ---- Algorithm 1 and elastic devices -------------------------------------------------------------


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
        policies.check(self, self.over_provision)

    @property
    def needs(self) -> tuple[type, ...]:
        return () if self.triggers is None else (MovesGroups,)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        if self.over_stale == "regenerate" and (actions := policies.end_stale(view, self, "again")):
            return actions
        return (
            self._use_trainer(view)
            or self._lend(view)
            or self._let_go(view)
            or self._place(view, now)
            or self._admit(view)
            or policies.dispatch(view)
        )

    def _use_trainer(self, view: Ledger) -> list[Action]:
        if self.over_stale == "wait":
            batch = policies.batch_of_window(view, self)
        else:
            batch = policies.oldest_batch(view, self)
        if batch is None:
            return []
        lent = view.sets.lent
        if lent and self.triggers is not None:
            return [*rebalance.evacuate(view, lent), Reclaim(lent)]
        return policies.train(view, batch, with_generators=self.generators_score)

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
                policies.room_for(view, self, later)
                for later in range(version, view.newest_version + 1)
            )
            if room <= 0:  # then there is none in older versions either
                return []
            count = min(wanted, room, policies.num_free(view, version))
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
