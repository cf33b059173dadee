"""Decisions that several policies share: lists of actions, empty where nothing is to be done."""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from loong_jax.errors import ConfigError
from loong_jax.orchestrator.actions import (
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
from loong_jax.orchestrator.state import ReplicaState, RunState

OverStale = Literal["regenerate", "wait"]


def check(*, groups_per_step: int, max_staleness: int = 0, over_provision: float = 0.0) -> None:
    """Raises ConfigError for settings under which nothing could be trained."""
    if groups_per_step < 1:
        raise ConfigError(
            f"groups_per_step={groups_per_step} must be at least 1. A step trains on whole groups."
        )
    if max_staleness < 0:
        raise ConfigError(
            f"max_staleness={max_staleness} must be >= 0. Use 0 for on-policy training."
        )
    if not 0 <= over_provision < math.inf:
        raise ConfigError(
            f"over_provision={over_provision} must be >= 0 and finite: 0.25 keeps a quarter of a "
            "batch more in flight than a step trains on."
        )


# ---- what is too old ----------------------------------------------------------------------------


def end_stale(state: RunState, max_staleness: int, afterwards: Afterwards) -> list[Action]:
    """Groups that no step may use any more: what is still being written is cancelled.

    While a step is being trained, groups outside it will be one step older when they could be.
    """
    age_of = state.step + (state.trainer == "training")
    phases = ("queued", "decoding", "judged", "ready")
    if all(age_of - version <= max_staleness for version in state.tickets.versions(*phases)):
        return []
    stale = tuple(
        ticket.number
        for ticket in state.in_phase(*phases)
        if age_of - ticket.version > max_staleness
    )
    return [EndStale(stale, afterwards)]


def room_for(state: RunState, version: int, *, groups_per_step: int, max_staleness: int) -> int:
    """How many more groups under `version` can still be trained within `max_staleness` steps.

    With the oldest trained first, that holds where no more than P groups of this version or an
    older one are open for each step that may still use them. The batch in training is taken.
    """
    underway = state.tickets.versions(
        "queued", "decoding", "verifying", "judged", "scoring", "ready"
    )
    num_before = sum(count for v, count in underway.items() if v <= version)
    next_step = state.step + (state.trainer == "training")
    return groups_per_step * (version + max_staleness + 1 - next_step) - num_before


# ---- training -----------------------------------------------------------------------------------


def oldest_batch(state: RunState, groups_per_step: int) -> tuple[int, ...] | None:
    """P groups that are there, oldest versions first, or None."""
    if state.trainer != "idle" or state.tickets.count("ready", "judged") < groups_per_step:
        return None
    there = state.in_phase("ready", "judged")
    there.sort(key=lambda ticket: (ticket.version, ticket.number))
    return tuple(sorted(ticket.number for ticket in there[:groups_per_step]))


def leaves_too_old(state: RunState, *, groups_per_step: int, max_staleness: int) -> bool:
    """True where training the oldest P groups now would leave others that come too late.

    Of the groups left, those under version v or older must fit into the v + S - step steps that
    may still use them. For the oldest version none may be left: the window of versions slides only
    when every trajectory of it is in (arXiv:2604.26256). Counts alone, so that waiting is cheap.
    """
    there = state.tickets.versions("ready", "judged")
    underway = state.tickets.versions("queued", "decoding", "verifying", "scoring")
    num_there = num_underway = 0
    for version in sorted(there.keys() | underway.keys()):
        num_there += there[version]
        num_underway += underway[version]
        left = num_underway + max(0, num_there - groups_per_step)
        if left > groups_per_step * max(0, version + max_staleness - state.step):
            return True
    return False


def batch_of_window(
    state: RunState, *, groups_per_step: int, max_staleness: int
) -> tuple[int, ...] | None:
    """`oldest_batch`, once it leaves nothing behind that would become too old."""
    if state.trainer != "idle" or state.tickets.count("ready", "judged") < groups_per_step:
        return None
    if leaves_too_old(state, groups_per_step=groups_per_step, max_staleness=max_staleness):
        return None
    return oldest_batch(state, groups_per_step)


def train(
    state: RunState, batch: tuple[int, ...], *, with_generators: bool = False
) -> list[Action]:
    """Scores what of the batch is not scored, then trains it; elastic devices come back first."""
    if actions := reclaim_all(state):
        return actions
    unscored = tuple(n for n in batch if state.tickets[n].phase == "judged")
    return [Score(unscored, with_generators)] if unscored else [Train(batch)]


# ---- replicas -----------------------------------------------------------------------------------


class Crews(NamedTuple):
    """Numbers of replicas, by what they do."""

    generating: tuple[int, ...]
    lent: tuple[int, ...]  # generating, on the trainer's devices
    taken: tuple[int, ...]  # not generating: the trainer has their devices
    hosts: Mapping[int | None, Sequence[int]]  # version -> generating ones


def crews(state: RunState) -> Crews:
    """Looks at all replicas; remembers the last answer, since they change far less than tickets."""
    global _last_crews
    replicas, answer = _last_crews
    if replicas is not state.replicas:
        pairs = tuple(enumerate(state.replicas))
        hosts: dict[int | None, list[int]] = {}
        generating = tuple(number for number, replica in pairs if replica.generating)
        for number in generating:
            hosts.setdefault(state.replicas[number].version, []).append(number)
        answer = Crews(
            generating=generating,
            lent=tuple(n for n in generating if state.replicas[n].elastic),
            taken=tuple(number for number, replica in pairs if not replica.generating),
            hosts=hosts,
        )
        _last_crews = state.replicas, answer
    return answer


_last_crews: tuple[tuple[ReplicaState, ...], Crews] = ((), Crews((), (), (), {}))


def lend_all(state: RunState) -> list[Action]:
    taken = crews(state).taken
    return [Lend(taken)] if taken and state.trainer == "idle" else []


def reclaim_all(state: RunState) -> list[Action]:
    lent = crews(state).lent
    return [Reclaim(lent)] if lent else []


def assign_empty(state: RunState, version: int) -> list[Action]:
    """Every generating replica without work takes up `version`."""
    return [
        Assign(number, version)
        for hosted, numbers in crews(state).hosts.items()
        if hosted != version
        for number in numbers
        if not state.num_decoding(number)
    ]


def swap_running(state: RunState, version: int, *, keep_cache: bool) -> list[Action]:
    """Every generating replica takes up `version`, in the middle of its responses."""
    return [
        Swap(number, version, keep_cache) if state.num_decoding(number) else Assign(number, version)
        for hosted, numbers in crews(state).hosts.items()
        if hosted != version
        for number in numbers
    ]


def num_free(state: RunState, groups_per_replica: int, version: int) -> int:
    """Free places of the replicas that host `version`, less what is queued for them."""
    hosts = [n for n in crews(state).hosts.get(version, ()) if not state.replicas[n].draining]
    places = groups_per_replica * len(hosts) - state.tickets.num_decoding(*hosts)
    return max(0, places - state.tickets.versions("queued")[version])


def dispatch(state: RunState, groups_per_replica: int) -> list[Action]:
    """Queued tickets go to the least loaded replicas of their version."""
    if not state.tickets.count("queued"):
        return []
    queued: dict[int, list[int]] = {}
    for ticket in state.in_phase("queued"):
        queued.setdefault(ticket.version, []).append(ticket.number)
    chosen: dict[int, list[int]] = {}
    for version, numbers in queued.items():
        hosts = crews(state).hosts.get(version, ())
        crew = [(state.num_decoding(number), number) for number in hosts]
        heapq.heapify(crew)
        for number in numbers:
            if not crew or crew[0][0] >= groups_per_replica:
                break
            load, replica = crew[0]
            chosen.setdefault(replica, []).append(number)
            heapq.heapreplace(crew, (load + 1, replica))
    return [
        Dispatch(replica, tuple(numbers), state.tickets[numbers[0]].version)
        for replica, numbers in chosen.items()
    ]
