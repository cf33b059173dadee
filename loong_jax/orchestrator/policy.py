"""Who does what next: `decide(state, policy, ...) -> actions`, a pure function.

A policy is a frozen dataclass that decides: `DoraPolicy` here, `dora.MultiVersionPolicy`, and what
others do in `baselines`.

`DoraPolicy` is DORA (arXiv:2509.18883, 3.1.1) for replicas that each host one policy version:

* a response ends under the version it began with, so a replica changes version only when empty;
* each new version is taken up by `replicas_per_version` replicas, those with the oldest one first,
  so generation never stops for a weight update and up to max_staleness + 1 versions decode at once;
* a group is admitted only if it can still be trained within `max_staleness` steps of its version,
  even if every open group is trained before it.

In deterministic mode nothing depends on timing: which tickets exist, under which version each is
written and which groups form a batch are functions of the order of issue alone.
"""

import dataclasses
import math
from typing import Protocol, runtime_checkable

from loong_jax.errors import ConfigError
from loong_jax.orchestrator.actions import (
    Action,
    Assign,
    Dispatch,
    Drain,
    EndStale,
    Issue,
    Score,
    SetIssueLimit,
    Train,
)
from loong_jax.orchestrator.state import RunState


@runtime_checkable
class Policy(Protocol):
    """Settings of a scheduler together with its decisions; a frozen dataclass."""

    @property
    def groups_per_step(self) -> int:
        """P: groups that one step trains on."""
        ...

    @property
    def max_staleness(self) -> int:
        """S: how many steps older than the trainer's weights a trained response may be."""
        ...

    @property
    def mixes_versions(self) -> bool:
        """True where a response may have tokens of several versions; a buffer refuses it else."""
        ...

    @property
    def needs(self) -> tuple[type, ...]:
        """Optional abilities of replicas that its actions ask for, as classes of `protocols`."""
        ...

    def decide(self, state: RunState, groups_per_replica: int, now: float) -> list[Action]:
        """What to do at `now` (seconds of the run's clock). Called again until it is nothing."""
        ...


def decide(
    state: RunState, policy: Policy, groups_per_replica: int, now: float = 0.0
) -> list[Action]:
    """What to do now. The caller carries the actions out in order and asks again."""
    if state.step >= state.total_steps:
        return []
    return policy.decide(state, groups_per_replica, now)


def refuse_unable(policy: Policy, replicas: type, *, where: str) -> None:
    """Before anything runs: raises ConfigError where `replicas` cannot do what `policy` asks for.

    `where` names the setting that holds the policy.
    """
    for ability in policy.needs:
        if not issubclass(replicas, ability):
            methods = [name for name in vars(ability) if not name.startswith("_")]
            raise ConfigError(
                f"{where}={policy!r} asks replicas to {', '.join(methods)}, which "
                f"{replicas.__name__} cannot. Use DoraPolicy, which all replicas can follow, or "
                "MultiVersionPolicy(triggers=None)."
            )


def refuse_idle_loans(policy: Policy, num_elastic: int, *, where: str) -> None:
    """Raises ConfigError for elastic replicas under a policy that never lends or reclaims."""
    if num_elastic and isinstance(policy, DoraPolicy):
        raise ConfigError(
            f"num_elastic={num_elastic}, but {where}={policy!r} never takes devices back. Use "
            "MultiVersionPolicy, whose `gate` decides about loans, or num_elastic=0."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoraPolicy:
    """Settings of the scheduler."""

    groups_per_step: int  # P
    max_staleness: int = 2  # S, in steps
    max_ahead: float = 1.0  # groups open beside those being trained on, in batches of P
    replicas_per_version: int = 1  # that change to a new version; the others follow later ones
    score_at_least: int = 8  # judged groups worth a scoring pass while training cannot start
    deterministic: bool = False

    mixes_versions = False
    needs = ()

    def __post_init__(self):
        if self.groups_per_step < 1:
            raise ConfigError(
                f"groups_per_step={self.groups_per_step} must be at least 1. A step trains on "
                "whole groups."
            )
        if self.max_staleness < 0:
            raise ConfigError(
                f"max_staleness={self.max_staleness} must be >= 0. Use 0 for on-policy training."
            )
        if not 0 < self.max_ahead < math.inf or self.replicas_per_version < 1:
            raise ConfigError(
                f"max_ahead={self.max_ahead} must be positive and finite, and replicas_per_version="
                f"{self.replicas_per_version} at least 1, or nothing is generated."
            )

    def decide(self, state: RunState, groups_per_replica: int, now: float) -> list[Action]:
        del now
        admit = _admit_by_order if self.deterministic else _admit_by_staleness
        for actions in (
            _end_stale(state, self),
            _use_trainer(state, self),
            _turn_replicas(state, self),
            admit(state, self, groups_per_replica),
            _dispatch(state, groups_per_replica),
        ):
            if actions:
                return actions
        return []


def _end_stale(state: RunState, policy: DoraPolicy) -> list[Action]:
    """Groups that no step may use any more: what is still being written is cancelled."""
    phases = ("queued", "decoding", "judged", "ready")
    if all(state.step - v <= policy.max_staleness for v in state.tickets.versions(*phases)):
        return []
    stale = [
        ticket.number
        for ticket in state.in_phase(*phases)
        if state.step - ticket.version > policy.max_staleness
    ]
    return [EndStale(tuple(stale))]


def _use_trainer(state: RunState, policy: DoraPolicy) -> list[Action]:
    if state.trainer != "idle":
        return []
    batch = next_batch(state, policy)
    if batch is not None:
        unscored = tuple(n for n in batch if state.tickets[n].phase == "judged")
        return [Score(unscored)] if unscored else [Train(batch)]
    judged = tuple(ticket.number for ticket in state.in_phase("judged"))
    if not policy.deterministic and len(judged) >= policy.score_at_least:
        return [Score(judged)]
    return []


def next_batch(state: RunState, policy: DoraPolicy) -> tuple[int, ...] | None:
    """The P groups of the next step, or None while they are not all there.

    Deterministic: the first P in the order of issue, once nothing before them is still open.
    Otherwise the oldest versions first among those that are there.
    """
    if policy.deterministic:
        if state.newest_version < state.step:
            return None
        batch = []
        for ticket in sorted(state.tickets.values(), key=lambda t: t.number):
            if ticket.phase not in ("judged", "ready"):
                return None
            batch.append(ticket.number)
            if len(batch) == policy.groups_per_step:
                return tuple(batch)
        return None
    there = state.in_phase("ready", "judged")
    if len(there) < policy.groups_per_step:
        return None
    there.sort(key=lambda ticket: (ticket.version, ticket.number))
    return tuple(sorted(ticket.number for ticket in there[: policy.groups_per_step]))


def _turn_replicas(state: RunState, policy: DoraPolicy) -> list[Action]:
    """Empty replicas take up the version they are needed for; others are emptied, oldest first."""
    queued_versions = set(state.tickets.versions("queued"))
    for number, replica in enumerate(state.replicas):
        if state.num_decoding(number) or replica.version in queued_versions:
            continue
        uncovered = queued_versions - {r.version for r in state.replicas}
        if uncovered:
            return [Assign(number, min(uncovered))]
        may_turn = replica.version is None or replica.draining or policy.deterministic
        if may_turn and replica.version != state.newest_version:
            return [Assign(number, state.newest_version)]
    draining = sum(replica.draining for replica in state.replicas)
    newest = sum(replica.version == state.newest_version for replica in state.replicas)
    wanted = policy.replicas_per_version - newest - draining
    oldest_useful = state.newest_version - policy.max_staleness + 1
    behind = sorted(
        (replica.version, state.num_decoding(number), number)
        for number, replica in enumerate(state.replicas)
        if replica.version is not None
        and replica.version < state.newest_version
        and not replica.draining
    )
    return [
        Drain(number)
        for place, (version, _, number) in enumerate(behind)
        if place < wanted or version < oldest_useful
    ]


def _admit_by_staleness(
    state: RunState, policy: DoraPolicy, groups_per_replica: int
) -> list[Action]:
    """New tickets for free places, newest version first, as far as staleness allows.

    A group written under version v is trained within step v + S + 1 if at most
    P * (v + S + 1 - step) groups are open when it is admitted, itself and a batch in training
    included. While the trainer waits for a batch, one whole batch may always be open.
    """
    by_version = sorted(
        (number for number, r in enumerate(state.replicas) if r.version is not None),
        key=lambda number: -(state.replicas[number].version or 0),
    )
    num_open = len(state.tickets)
    num_leased = state.tickets.count("leased")
    queued = state.tickets.versions("queued")
    ahead = policy.max_ahead if num_leased else max(policy.max_ahead, 1.0)
    for number in by_version:
        replica = state.replicas[number]
        assert replica.version is not None
        if replica.draining:
            continue
        free = groups_per_replica - state.num_decoding(number) - queued[replica.version]
        steps_left = replica.version + policy.max_staleness + 1 - state.step
        bound = min(
            steps_left * policy.groups_per_step,
            int(ahead * policy.groups_per_step) + num_leased,
        )
        count = min(free, bound - num_open)
        if count > 0:
            return [Issue(count, replica.version)]
    return []


def _admit_by_order(state: RunState, policy: DoraPolicy, groups_per_replica: int) -> list[Action]:
    """Deterministic admission: up to P * (S + 1) tickets past the last one trained.

    When all of them are judged and too few teach anything, exactly the missing number is added.
    """
    del groups_per_replica
    if state.newest_version < state.step:
        return []
    if state.num_issued < state.issue_limit:
        return [Issue(state.issue_limit - state.num_issued, state.newest_version)]
    if all(ticket.phase in ("judged", "ready") for ticket in state.tickets.values()):
        missing = policy.groups_per_step - len(state.tickets)
        if missing > 0:
            return [SetIssueLimit(state.num_issued + missing)]
    return []


def _dispatch(state: RunState, groups_per_replica: int) -> list[Action]:
    actions: list[Action] = []
    queued = state.in_phase("queued")
    for number, replica in enumerate(state.replicas):
        free = groups_per_replica - state.num_decoding(number)
        mine = [ticket.number for ticket in queued if ticket.version == replica.version][
            : max(free, 0)
        ]
        if mine and replica.version is not None:
            actions.append(Dispatch(number, tuple(mine), replica.version))
            taken = set(mine)
            queued = [ticket for ticket in queued if ticket.number not in taken]
    return actions
