"""Everything that can happen to a run, as small plain records, and what each does to the state.

An action of the policy (`actions`) or one of the events below. The loop writes each to the journal,
applies it, and only then carries out its effect; replaying the same records from the same state
gives the state that was lived:

    replay(records, state) = apply(... apply(apply(state, records[0]), records[1]) ...)
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from loong_jax.errors import CheckpointError
from loong_jax.orchestrator import actions as acts
from loong_jax.orchestrator import state as states
from loong_jax.orchestrator.state import RunState
from loong_jax.rl.grading import Disposition
from loong_jax.rollout.records import TicketEnd

Place = tuple[int, int, int, int]  # where the arrays of a group are; see `journal.Journal.keep`


class Generated(NamedTuple):
    """All rollouts of the ticket's group are written."""

    ticket: int
    cache_pressure: float  # as the replicas report it now
    place: Place | None


class Verified(NamedTuple):
    ticket: int
    disposition: Disposition
    is_solved: bool  # every rollout is right
    verdicts: tuple[dict[str, Any], ...]  # of its rollouts, in order; empty without a journal


class Scored(NamedTuple):
    tickets: tuple[int, ...]
    places: tuple[Place, ...]  # empty without a journal


class Trained(NamedTuple):
    """The trainer's weights are those of `step` now."""

    step: int
    tickets: tuple[int, ...]
    issue_limit: int


class Published(NamedTuple):
    version: int
    total_steps: int
    checksum: str  # of the weights; empty where the version store has none


class SaveBegun(NamedTuple):
    """A checkpoint is about to be written. Its snapshot is the state before this record."""

    step: int


class RunEnds(NamedTuple):
    """Nothing is left to learn: the step under way is the last one."""

    total_steps: int


class Ended(NamedTuple):
    """Tickets end for a reason outside the policy."""

    tickets: tuple[int, ...]
    how: TicketEnd


class ReplicaLost(NamedTuple):
    """It died or hangs: quarantined, and its groups wait for another one of their version."""

    replica: int
    num_losses: int  # in a row


class ReplicaBack(NamedTuple):
    replica: int


class Reopened(NamedTuple):
    """A new process goes on from here. `lost` tickets had weights that nobody has any more."""

    lost: tuple[int, ...]


Event = (
    Generated
    | Verified
    | Scored
    | Trained
    | Published
    | SaveBegun
    | RunEnds
    | Ended
    | ReplicaLost
    | ReplicaBack
    | Reopened
)
Change = acts.Action | Event


def replay(changes: Iterable[Change], state: RunState) -> RunState:
    """The state after `changes`."""
    return functools.reduce(apply, changes, state)


def apply(state: RunState, change: Change) -> RunState:
    """The state after one change. Pure; knows neither clock nor processes."""
    if isinstance(change, Event):
        return _after_event(state, change)
    return _after_action(state, change)


def _after_action(state: RunState, action: acts.Action) -> RunState:
    match action:
        case acts.Issue(count, version, deferred):
            for _ in range(count):
                state = states.issue(state, state.num_issued, version)
            left = state.num_deferred - (count if deferred else 0)
            return dataclasses.replace(state, num_deferred=left)
        case acts.Dispatch(replica, numbers, _):
            return states.move(state, numbers, "decoding", replica=replica)
        case acts.Assign(replica, version):
            return states.set_replica(state, replica, version=version, draining=False)
        case acts.Drain(replica):
            return states.set_replica(state, replica, draining=True)
        case acts.Migrate(_, target, numbers):
            return states.move(state, numbers, "decoding", replica=target)
        case acts.Swap(replica, version, _):
            return states.set_replica(state, replica, version=version)
        case acts.Lend(replicas):
            return _set_generating(state, replicas, True)
        case acts.Reclaim(replicas):
            return _set_generating(state, replicas, False)
        case acts.Score(numbers, _):
            moved = states.move(state, numbers, "scoring")
            return dataclasses.replace(moved, trainer="scoring")
        case acts.Train(numbers):
            moved = states.move(state, numbers, "leased")
            return dataclasses.replace(moved, trainer="training")
        case acts.EndStale(numbers, afterwards):
            state = states.end(state, numbers, "stale")
            put_back = len(numbers) if afterwards == "defer" else 0
            return dataclasses.replace(state, num_deferred=state.num_deferred + put_back)
        case acts.SetIssueLimit(limit):
            return dataclasses.replace(state, issue_limit=limit)
        case acts.Balanced(at_s):
            # those that the policy hears of, see `faults.decide`
            crew = sum(r.generating and not r.quarantined for r in state.replicas)
            balance = states.Balance(state.newest_version, crew, at_s)
            return dataclasses.replace(state, balance=balance)
        case acts.SetGate(threshold):
            return dataclasses.replace(state, lend_threshold=threshold, gate_step=state.step)


def _after_event(state: RunState, event: Event) -> RunState:
    match event:
        case Generated(number, pressure, _):
            moved = states.move(state, [number], "verifying", replica=None)
            return dataclasses.replace(moved, cache_pressure=pressure)
        case Verified(number, disposition, is_solved):
            if disposition == "keep":
                return states.move(state, [number], "judged")
            return dataclasses.replace(
                states.end(state, [number], disposition),
                num_fruitless=state.num_fruitless + 1,
                num_failed=state.num_failed + (disposition in ("ungradable", "failed")),
                num_solved=state.num_solved + is_solved,
            )
        case Scored(numbers):
            return dataclasses.replace(states.move(state, numbers, "ready"), trainer="idle")
        case Trained(step, numbers, limit):
            return dataclasses.replace(
                states.end(state, numbers, "trained"),
                step=step,
                trainer="publishing",
                issue_limit=limit,
                num_fruitless=0,
                num_failed=0,
                num_solved=0,
            )
        case Published(version, total_steps, _):
            return dataclasses.replace(
                state, newest_version=version, trainer="idle", total_steps=total_steps
            )
        case SaveBegun():
            return state
        case RunEnds(total_steps):
            return dataclasses.replace(state, total_steps=total_steps)
        case Ended(numbers, how):
            return states.end(state, numbers, how)
        case ReplicaLost(replica):
            numbers = state.tickets.decoding_on(replica)
            waiting = states.move(state, numbers, "queued", replica=None)
            return states.set_replica(
                waiting, replica, version=None, draining=False, quarantined=True
            )
        case ReplicaBack(replica):
            return states.set_replica(state, replica, quarantined=False)
        case Reopened(lost):
            return states.rewind(states.end(state, lost, "stale"))


def _set_generating(state: RunState, replicas: tuple[int, ...], generating: bool) -> RunState:
    for replica in replicas:
        state = states.set_replica(state, replica, generating=generating)
    return state


# ---- as JSON ------------------------------------------------------------------------------------

_KINDS: dict[str, type] = {kind.__name__: kind for kind in Change.__args__}


def to_json(change: Change) -> list[Any]:
    """The name of the record and its fields."""
    return [type(change).__name__, *change]


def from_json(line: list[Any]) -> Change:
    """Inverse of `to_json`; CheckpointError for what no release of this format wrote."""
    name, *fields = line
    if name not in _KINDS:
        raise CheckpointError(
            f"a journal record of kind {name!r}; this release knows {sorted(_KINDS)}. Resume with "
            "the release that began the run."
        )
    return _KINDS[name](*map(_tuples, fields))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
