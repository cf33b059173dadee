"""Tickets, groups and ledgers written out by hand."""

from loong_jax.orchestrator.ledger import Ledger, ReplicaState
from loong_jax.orchestrator.tickets import Entry, OpenTickets, TicketSource
from loong_jax.rollout.records import Group, Ticket
from tests.doubles.fake_model import fake_problem
from tests.doubles.fake_world import fake_rollout


def make_ticket(number: int, issue: int = 0) -> Ticket:
    return Ticket(number=number, problem=fake_problem(number), issue=issue)


def make_group(ticket: Ticket, version: int) -> Group:
    return Group(ticket=ticket, version=version, rollouts=(fake_rollout(ticket, 0, version),))


def ledger_of(*tickets, replicas=(0, 0), **fields) -> Ledger:
    """Tickets are (phase, version[, replica]) in the order of issue; replicas are versions, or
    whole states.
    """
    entries = [
        Entry(
            ticket=make_ticket(number),
            phase=phase,
            version=version,
            replica=place[0] if place else None,
            group=make_group(make_ticket(number), version),
        )
        for number, (phase, version, *place) in enumerate(tickets)
    ]
    states = [r if isinstance(r, ReplicaState) else ReplicaState(version=r) for r in replicas]
    defaults = dict(
        source=TicketSource(fake_problem),
        total_steps=10,
        replicas=states,
        tickets=OpenTickets(entries),
        num_issued=len(entries),
    )
    return Ledger(**(defaults | fields))
