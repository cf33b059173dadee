"""Tickets, groups and ledgers written out by hand."""

import numpy as np

from loong_jax.orchestrator.ledger import Ledger, ReplicaState
from loong_jax.orchestrator.tickets import Entry, OpenTickets, TicketSource
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
from tests.doubles.fake_model import fake_problem


def make_ticket(number: int, issue: int = 0) -> Ticket:
    return Ticket(number=number, problem=fake_problem(number), issue=issue)


def make_group(ticket: Ticket, version: int) -> Group:
    rollout = Rollout(
        ticket=ticket.number,
        attempt=0,
        prompt=np.array([1], np.int32),
        tokens=np.array([ticket.number % 100, 2], np.int32),
        loss_mask=np.ones(2, bool),
        engine_logprob=np.zeros(2, np.float32),
        sampling=SamplingSettings(),
        versions=((0, version),),
        finish_reason="stop",
    )
    return Group(ticket=ticket, version=version, rollouts=(rollout,))


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
