"""What may fail, how often, and how a policy decides around a replica that has failed.

Infrastructure fails apart from data: a lost replica or verifier is tried again after a pause that
doubles, and says nothing about the group; an answer that cannot be graded is a property of the
group, and its ticket ends. Each has a budget; where it is spent the run ends with an error.
"""

import dataclasses
from typing import Any

from loong_jax.errors import ConfigError, LoongError
from loong_jax.orchestrator import actions as acts
from loong_jax.orchestrator import policy as policies
from loong_jax.orchestrator.state import RunState
from loong_jax.orchestrator.ticket_table import TicketTable
from loong_jax.verifiers.verdict import Verdict

VERIFIER_LOST = ("worker lost", "pool closed")  # reasons that say nothing about the answer


class BudgetSpent(LoongError):
    """More went wrong than a budget allows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultBudget:
    """How much may go wrong before the run ends."""

    replica_losses: int = 5  # of one replica, without a group from it in between
    verifications: int = 3  # of one answer, while its verifier is lost
    failed_tickets: int = 1000  # ungradable or failed, since the last step
    back_off_s: float = 1.0  # before the first repetition; doubles with each in a row
    max_back_off_s: float = 60.0

    def __post_init__(self):
        if min(self.replica_losses, self.verifications, self.failed_tickets) < 1:
            raise ConfigError(f"{self}: every budget must be at least 1, which allows no failure.")
        if not 0 <= self.back_off_s <= self.max_back_off_s:
            raise ConfigError(
                f"back_off_s={self.back_off_s} is not in 0..max_back_off_s={self.max_back_off_s}."
            )

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row, 1 or more."""
        doublings = min(failures - 1, 1000)  # a float holds no 2 ** 1024
        return min(self.back_off_s * 2.0**doublings, self.max_back_off_s)


def is_infrastructure(verdict: Verdict) -> bool:
    """True where the verifier failed and the answer was never judged."""
    return verdict.outcome == "ungradable" and verdict.reason in VERIFIER_LOST


def decide(
    state: RunState, policy: policies.Policy, groups_per_replica: int, now: float
) -> list[acts.Action]:
    """`policy.decide` over the replicas that work; it never hears of the others."""
    if not any(replica.quarantined for replica in state.replicas):
        return policies.decide(state, policy, groups_per_replica, now)
    working = [number for number, r in enumerate(state.replicas) if not r.quarantined]
    if not working:
        return []
    seen_as = {number: place for place, number in enumerate(working)}
    tickets = TicketTable(
        ticket
        if ticket.replica is None
        else dataclasses.replace(ticket, replica=seen_as[ticket.replica])
        for ticket in state.tickets.values()
    )
    seen = dataclasses.replace(
        state, replicas=tuple(state.replicas[number] for number in working), tickets=tickets
    )
    chosen = policies.decide(seen, policy, groups_per_replica, now)
    return [_renumbered(action, working) for action in chosen]


def _renumbered(action: acts.Action, working: list[int]) -> acts.Action:
    changed: dict[str, Any] = {}
    for name, value in action._asdict().items():
        if name in ("replica", "source", "target"):
            changed[name] = working[value]
        elif name == "replicas":
            changed[name] = tuple(working[place] for place in value)
    return action._replace(**changed)


def what_blocks(state: RunState) -> str:
    """What the run waits for, in words, when nothing happens any more."""
    if state.trainer != "idle":
        return f"the trainer is still {state.trainer}"
    decoding = sorted({t.replica for t in state.in_phase("decoding") if t.replica is not None})
    if decoding:
        return f"replicas {decoding} are silent while they decode"
    if waiting := [ticket.number for ticket in state.in_phase("verifying")]:
        return f"no verdict came for tickets {waiting[:8]}"
    if all(replica.quarantined for replica in state.replicas):
        return "every replica is in quarantine"
    if waiting := sorted(state.tickets.versions("queued")):
        return f"no replica takes up versions {waiting} that queued tickets are for"
    return "nobody is at work, and the policy decides nothing"
