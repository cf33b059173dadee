"""Who does what next: `decide(view, policy, now) -> actions`, a pure function of the ledger.

A policy is a frozen dataclass that decides: that of `dora`, and what others do in `baselines`.
Below its contract stand the decisions that several of them share: lists of actions, empty where
nothing is to be done.
"""

import heapq
import math
from typing import Protocol, runtime_checkable

from loong_jax.errors import ConfigError
from loong_jax.orchestrator.changes import (
    Action,
    Afterwards,
    Assign,
    Dispatch,
    EndStale,
    Lend,
    Reclaim,
    Score,
    Swap,
    Train,
)
from loong_jax.orchestrator.ledger import Ledger
from loong_jax.orchestrator.tickets import UNFINISHED, UNLEASED


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
        """True where a response may have tokens of several versions; the ledger refuses it else."""
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
                f"{replicas.__name__} cannot. Use DoraPolicy(triggers=None), which all can follow."
            )


def check(policy: Policy, over_provision: float = 0.0) -> None:
    """Raises ConfigError for settings under which nothing could be trained."""
    if policy.groups_per_step < 1:
        raise ConfigError(
            f"groups_per_step={policy.groups_per_step} must be at least 1. A step trains on "
            "whole groups."
        )
    if policy.max_staleness < 0:
        raise ConfigError(
            f"max_staleness={policy.max_staleness} must be >= 0. Use 0 for on-policy training."
        )
    if not 0 <= over_provision < math.inf:
        raise ConfigError(
            f"over_provision={over_provision} must be >= 0 and finite: 0.25 keeps a quarter of a "
            "batch more in flight than a step trains on."
        )


# ---- what is too old ----------------------------------------------------------------------------


def end_stale(view: Ledger, policy: Policy, afterwards: Afterwards) -> list[Action]:
    """Groups that no step may use any more: what is still being written is cancelled.

    While a step is being trained, groups outside it will be one step older when they could be.
    """
    age_of = view.step + (view.trainer == "training")
    phases = ("queued", "decoding", "judged", "ready")
    if all(age_of - version <= policy.max_staleness for version in view.tickets.versions(*phases)):
        return []
    stale = tuple(
        ticket.number
        for ticket in view.tickets.in_phase(*phases)
        if age_of - ticket.version > policy.max_staleness
    )
    return [EndStale(stale, afterwards)]


def room_for(view: Ledger, policy: Policy, version: int) -> int:
    """How many more groups under `version` can still be trained within S steps.

    With the oldest trained first, that holds where no more than P groups of this version or an
    older one are open for each step that may still use them. The batch in training is taken.
    """
    underway = view.tickets.versions(*UNLEASED)
    num_before = sum(count for v, count in underway.items() if v <= version)
    next_step = view.step + (view.trainer == "training")
    steps_left = version + policy.max_staleness + 1 - next_step
    return policy.groups_per_step * steps_left - num_before


# ---- training -----------------------------------------------------------------------------------


def oldest_batch(view: Ledger, policy: Policy) -> tuple[int, ...] | None:
    """P groups that are there, oldest versions first, or None."""
    if view.trainer != "idle" or view.tickets.count("ready", "judged") < policy.groups_per_step:
        return None
    there = view.tickets.in_phase("ready", "judged")
    there.sort(key=lambda ticket: (ticket.version, ticket.number))
    return tuple(sorted(ticket.number for ticket in there[: policy.groups_per_step]))


def leaves_too_old(view: Ledger, policy: Policy) -> bool:
    """True where training the oldest P groups now would leave others that come too late.

    Of the groups left, those under version v or older must fit into the v + S - step steps that
    may still use them. For the oldest version none may be left: the window of versions slides only
    when every trajectory of it is in (arXiv:2604.26256). Counts alone, so that waiting is cheap.
    """
    there = view.tickets.versions("ready", "judged")
    underway = view.tickets.versions(*UNFINISHED)
    num_there = num_underway = 0
    for version in sorted(there.keys() | underway.keys()):
        num_there += there[version]
        num_underway += underway[version]
        left = num_underway + max(0, num_there - policy.groups_per_step)
        if left > policy.groups_per_step * max(0, version + policy.max_staleness - view.step):
            return True
    return False


def batch_of_window(view: Ledger, policy: Policy) -> tuple[int, ...] | None:
    """`oldest_batch`, once it leaves nothing behind that would become too old."""
    if view.trainer != "idle" or view.tickets.count("ready", "judged") < policy.groups_per_step:
        return None
    return None if leaves_too_old(view, policy) else oldest_batch(view, policy)


def train(view: Ledger, batch: tuple[int, ...], *, with_generators: bool = False) -> list[Action]:
    """Scores what of the batch is not scored, then trains it; elastic devices come back first."""
    return reclaim_all(view) or score_and_train(view, batch, with_generators=with_generators)


def score_and_train(
    view: Ledger, batch: tuple[int, ...], *, with_generators: bool = False
) -> list[Action]:
    unscored = tuple(n for n in batch if view.tickets[n].phase == "judged")
    return [Score(unscored, with_generators)] if unscored else [Train(batch)]


# ---- replicas -----------------------------------------------------------------------------------


def lend_all(view: Ledger) -> list[Action]:
    taken = view.sets.taken
    return [Lend(taken)] if taken and view.trainer == "idle" else []


def reclaim_all(view: Ledger) -> list[Action]:
    lent = view.sets.lent
    return [Reclaim(lent)] if lent else []


def assign_empty(view: Ledger, version: int) -> list[Action]:
    """Every generating replica without work takes up `version`."""
    return [
        Assign(number, version)
        for hosted, numbers in view.sets.hosts.items()
        if hosted != version
        for number in numbers
        if not view.tickets.num_decoding(number)
    ]


def swap_running(view: Ledger, version: int, *, keep_cache: bool) -> list[Action]:
    """Every generating replica takes up `version`, in the middle of its responses."""
    return [
        Swap(number, version, keep_cache)
        if view.tickets.num_decoding(number)
        else Assign(number, version)
        for hosted, numbers in view.sets.hosts.items()
        if hosted != version
        for number in numbers
    ]


def num_free(view: Ledger, version: int) -> int:
    """Free places of the replicas that host `version`, less what is queued for them."""
    hosts = [n for n in view.sets.hosts.get(version, ()) if not view.replicas[n].draining]
    places = view.groups_per_replica * len(hosts) - view.tickets.num_decoding(*hosts)
    return max(0, places - view.tickets.versions("queued")[version])


def dispatch(view: Ledger) -> list[Action]:
    """Queued tickets go to the least loaded replicas of their version."""
    if not view.tickets.count("queued"):
        return []
    queued: dict[int, list[int]] = {}
    for ticket in view.tickets.in_phase("queued"):
        queued.setdefault(ticket.version, []).append(ticket.number)
    chosen: dict[int, list[int]] = {}
    for version, numbers in queued.items():
        hosts = view.sets.hosts.get(version, ())
        hosts_by_load = [(view.tickets.num_decoding(number), number) for number in hosts]
        heapq.heapify(hosts_by_load)
        for number in numbers:
            if not hosts_by_load or hosts_by_load[0][0] >= view.groups_per_replica:
                break
            load, replica = hosts_by_load[0]
            chosen.setdefault(replica, []).append(number)
            heapq.heapreplace(hosts_by_load, (load + 1, replica))
    return [
        Dispatch(replica, tuple(numbers), view.tickets[numbers[0]].version)
        for replica, numbers in chosen.items()
    ]
