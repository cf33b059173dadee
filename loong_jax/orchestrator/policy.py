"""Who does what next: `decide(view, policy, ...) -> actions`, a pure function.

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
from loong_jax.orchestrator import choices
from loong_jax.orchestrator.changes import (
    Action,
    Assign,
    Drain,
    Issue,
    Score,
    SetIssueLimit,
)
from loong_jax.orchestrator.ledger import Ledger


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

    def decide(self, view: Ledger, now: float) -> list[Action]:
        """What to do at `now` (seconds of the run's clock). Called again until it is nothing."""
        ...


def decide(view: Ledger, policy: Policy, now: float = 0.0) -> list[Action]:
    """What to do now. The caller carries the actions out in order and asks again."""
    if view.step >= view.total_steps or not view.sets.working:
        return []
    return policy.decide(view, now)


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
        choices.check(groups_per_step=self.groups_per_step, max_staleness=self.max_staleness)
        if not 0 < self.max_ahead < math.inf or self.replicas_per_version < 1:
            raise ConfigError(
                f"max_ahead={self.max_ahead} must be positive and finite, and replicas_per_version="
                f"{self.replicas_per_version} at least 1, or nothing is generated."
            )

    def decide(self, view: Ledger, now: float) -> list[Action]:
        del now
        admit = _admit_by_order if self.deterministic else _admit_by_staleness
        return (
            choices.end_stale(view, self.max_staleness, "again")
            or _use_trainer(view, self)
            or _turn_replicas(view, self)
            or admit(view, self)
            or choices.dispatch(view)
        )


def _use_trainer(view: Ledger, policy: DoraPolicy) -> list[Action]:
    if view.trainer != "idle":
        return []
    batch = next_batch(view, policy)
    if batch is not None:
        return choices.score_and_train(view, batch)
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
    return choices.oldest_batch(view, policy.groups_per_step)


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
    by_version = sorted(
        (n for n in view.sets.working if view.replicas[n].version is not None),
        key=lambda number: -(view.replicas[number].version or 0),
    )
    num_open = len(view.tickets)
    num_leased = view.tickets.count("leased")
    queued = view.tickets.versions("queued")
    ahead = policy.max_ahead if num_leased else max(policy.max_ahead, 1.0)
    for number in by_version:
        replica = view.replicas[number]
        assert replica.version is not None
        if replica.draining:
            continue
        free = view.groups_per_replica - view.tickets.num_decoding(number) - queued[replica.version]
        steps_left = replica.version + policy.max_staleness + 1 - view.step
        bound = min(
            steps_left * policy.groups_per_step,
            int(ahead * policy.groups_per_step) + num_leased,
        )
        count = min(free, bound - num_open)
        if count > 0:
            return [Issue(count, replica.version)]
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
