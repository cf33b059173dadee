"""What the orchestrator knows: one immutable state, and how each event changes it.

Tickets live in phases; an ended ticket leaves the table and is only counted:

    queued -> decoding -> verifying -> judged -> scoring -> ready -> leased -> (trained)

`queued` tickets carry the policy version they must be written under. Nothing here touches an array.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from loong_jax.orchestrator.ticket_table import Phase, TicketState, TicketTable
from loong_jax.rollout.records import TICKET_ENDS, TicketEnd

TrainerTask = Literal["idle", "scoring", "training", "publishing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaState:
    version: int | None = None  # None: never assigned
    draining: bool = False  # takes no new ticket, so that it can change version
    elastic: bool = False  # its devices belong to the trainer and can be lent to generation
    generating: bool = True  # False: the trainer has its devices; what it decodes is paused
    quarantined: bool = False  # it failed and is given no work until it is mended


class Balance(NamedTuple):
    """What the last rebalancing saw; another newest version or crew calls for the next."""

    newest_version: int = -1
    num_generating: int = 0  # replicas, those in quarantine apart
    at_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunState:
    """One run at one moment. `step` counts completed updates, so it is the trainer's version."""

    total_steps: int
    step: int = 0
    newest_version: int = 0  # newest published
    trainer: TrainerTask = "idle"
    replicas: tuple[ReplicaState, ...]
    tickets: TicketTable = dataclasses.field(default_factory=TicketTable)  # open ones
    num_issued: int = 0
    ends: Mapping[TicketEnd, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(TICKET_ENDS, 0)
    )
    issue_limit: int = 0  # deterministic mode: tickets below this number may exist
    num_deferred: int = 0  # problems put back for a round of long ones
    balance: Balance = Balance()
    cache_pressure: float = 0.0  # share of its cache that the fullest replica uses
    lend_threshold: float | None = None  # of the elastic gate; None: still the configured one
    gate_step: int = -1  # step the elastic gate decided for last
    num_fruitless: int = 0  # tickets that ended without training since the last step
    num_failed: int = 0  # those of them that were ungradable or failed
    num_solved: int = 0  # those of them with every rollout right

    @property
    def is_finished(self) -> bool:
        return self.step >= self.total_steps and self.trainer == "idle"

    def in_phase(self, *phases: Phase) -> list[TicketState]:
        """Open tickets in any of `phases`, in the order of issue."""
        return self.tickets.in_phase(*phases)

    def num_decoding(self, replica: int) -> int:
        return self.tickets.num_decoding(replica)

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
        state, tickets=state.tickets.changed({number: ticket}), num_issued=number + 1
    )


def move(
    state: RunState, numbers: tuple[int, ...] | list[int], phase: Phase, **changes
) -> RunState:
    """The tickets go on to `phase`."""
    moved = {
        number: dataclasses.replace(state.tickets[number], phase=phase, **changes)
        for number in numbers
    }
    return dataclasses.replace(state, tickets=state.tickets.changed(moved))


def end(state: RunState, numbers: tuple[int, ...] | list[int], how: TicketEnd) -> RunState:
    """The tickets leave the table and are counted under `how`."""
    remaining = state.tickets.changed(dict.fromkeys(numbers))
    ends = {**state.ends, how: state.ends[how] + len(numbers)}
    return dataclasses.replace(state, tickets=remaining, ends=ends)


def set_replica(state: RunState, replica: int, **changes) -> RunState:
    replicas = list(state.replicas)
    replicas[replica] = dataclasses.replace(replicas[replica], **changes)
    return dataclasses.replace(state, replicas=tuple(replicas))


def live_versions(state: RunState) -> set[int]:
    """Versions somebody still needs: hosted, or those of open tickets without log-probabilities."""
    hosted = {replica.version for replica in state.replicas if replica.version is not None}
    waiting = state.tickets.versions("queued", "decoding", "verifying", "judged", "scoring")
    return hosted | set(waiting) | {state.newest_version}


def rewind(state: RunState) -> RunState:
    """The state a new process goes on from: nothing is in anyone's hands.

    Tickets that were decoding wait again under their version, finished groups keep what they have,
    and a step or scoring pass under way did not happen. What was trained is still to be published.
    """
    tickets = TicketTable(
        dataclasses.replace(ticket, phase=_REWOUND.get(ticket.phase, ticket.phase), replica=None)
        for ticket in state.tickets.values()
    )
    replicas = tuple(dataclasses.replace(r, quarantined=False) for r in state.replicas)
    trainer = "publishing" if state.newest_version < state.step else "idle"
    return dataclasses.replace(
        state, tickets=tickets, replicas=replicas, trainer=trainer, balance=Balance()
    )


_REWOUND: dict[Phase, Phase] = {"decoding": "queued", "scoring": "judged", "leased": "ready"}


def to_json(state: RunState) -> dict[str, Any]:
    tickets = {number: dataclasses.asdict(ticket) for number, ticket in state.tickets.items()}
    plain = dataclasses.replace(state, tickets=TicketTable())
    return {**dataclasses.asdict(plain), "tickets": tickets, "balance": list(state.balance)}


def from_json(record: Mapping[str, Any]) -> RunState:
    return RunState(
        **{
            **record,
            "replicas": tuple(ReplicaState(**replica) for replica in record["replicas"]),
            "tickets": TicketTable(TicketState(**t) for t in record["tickets"].values()),
            "ends": dict(record["ends"]),
            "balance": Balance(*record.get("balance", ())),
        }
    )
