"""What the orchestrator knows: one immutable state, and how each event changes it.

Tickets live in phases; an ended ticket leaves the table and is only counted:

    queued -> decoding -> verifying -> judged -> scoring -> ready -> leased -> (trained)

`queued` tickets carry the policy version they must be written under. Nothing here touches an array.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from loong_jax.rollout.records import TICKET_ENDS, TicketEnd

Phase = Literal["queued", "decoding", "verifying", "judged", "scoring", "ready", "leased"]
TrainerTask = Literal["idle", "scoring", "training", "publishing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TicketState:
    number: int
    phase: Phase
    version: int  # policy version the group is, or must be, written under
    replica: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaState:
    version: int | None = None  # None: never assigned
    draining: bool = False  # takes no new ticket, so that it can change version


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunState:
    """One run at one moment. `step` counts completed updates, so it is the trainer's version."""

    total_steps: int
    step: int = 0
    newest_version: int = 0  # newest published
    trainer: TrainerTask = "idle"
    replicas: tuple[ReplicaState, ...]
    tickets: Mapping[int, TicketState] = dataclasses.field(default_factory=dict)  # open ones
    num_issued: int = 0
    ends: Mapping[TicketEnd, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(TICKET_ENDS, 0)
    )
    issue_limit: int = 0  # deterministic mode: tickets below this number may exist

    @property
    def is_finished(self) -> bool:
        return self.step >= self.total_steps and self.trainer == "idle"

    def in_phase(self, *phases: Phase) -> list[TicketState]:
        """Open tickets in any of `phases`, in the order of issue."""
        return sorted(
            (t for t in self.tickets.values() if t.phase in phases), key=lambda t: t.number
        )

    def num_decoding(self, replica: int) -> int:
        return sum(t.phase == "decoding" and t.replica == replica for t in self.tickets.values())

    def counts(self) -> dict[str, int]:
        """Tickets issued and ended, by end; raises where they do not add up with the open ones."""
        ended = sum(self.ends.values())
        if self.num_issued != ended + len(self.tickets):
            raise AssertionError(
                f"{self.num_issued} tickets issued, but {ended} ended and {len(self.tickets)} open"
            )
        return {"issued": self.num_issued, **self.ends}


def issue(state: RunState, number: int, version: int) -> RunState:
    """A new ticket joins the queue, to be written under `version`."""
    if number != state.num_issued:
        raise AssertionError(f"ticket {number} issued out of order; next is {state.num_issued}")
    ticket = TicketState(number=number, phase="queued", version=version)
    return dataclasses.replace(
        state, tickets={**state.tickets, number: ticket}, num_issued=number + 1
    )


def move(
    state: RunState, numbers: tuple[int, ...] | list[int], phase: Phase, **changes
) -> RunState:
    """The tickets go on to `phase`."""
    moved = {
        number: dataclasses.replace(state.tickets[number], phase=phase, **changes)
        for number in numbers
    }
    return dataclasses.replace(state, tickets={**state.tickets, **moved})


def end(state: RunState, numbers: tuple[int, ...] | list[int], how: TicketEnd) -> RunState:
    """The tickets leave the table and are counted under `how`."""
    remaining = dict(state.tickets)
    for number in numbers:
        del remaining[number]
    ends = {**state.ends, how: state.ends[how] + len(numbers)}
    return dataclasses.replace(state, tickets=remaining, ends=ends)


def set_replica(state: RunState, replica: int, **changes) -> RunState:
    replicas = list(state.replicas)
    replicas[replica] = dataclasses.replace(replicas[replica], **changes)
    return dataclasses.replace(state, replicas=tuple(replicas))


def live_versions(state: RunState) -> set[int]:
    """Versions somebody still needs: hosted, or those of open tickets without log-probabilities."""
    hosted = {replica.version for replica in state.replicas if replica.version is not None}
    waiting = {t.version for t in state.tickets.values() if t.phase not in ("ready", "leased")}
    return hosted | waiting | {state.newest_version}


def rewind(state: RunState) -> RunState:
    """The state a resumed run starts from: what was in flight is queued again under its version.

    Groups that were `ready` come back from the checkpoint's buffer; all others are written anew,
    and with the same keys they come out the same.
    """
    tickets = {
        number: ticket
        if ticket.phase == "ready"
        else dataclasses.replace(ticket, phase="queued", replica=None)
        for number, ticket in state.tickets.items()
    }
    return dataclasses.replace(state, tickets=tickets, trainer="idle")


def to_json(state: RunState) -> dict:
    return dataclasses.asdict(state)


def from_json(record: Mapping) -> RunState:
    return RunState(
        **{
            **record,
            "replicas": tuple(ReplicaState(**replica) for replica in record["replicas"]),
            "tickets": {int(k): TicketState(**v) for k, v in record["tickets"].items()},
            "ends": dict(record["ends"]),
        }
    )
