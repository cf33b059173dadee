"""What may fail, how often, and what blocks a run in which nothing happens any more.

Infrastructure fails apart from data: a lost replica or verifier is tried again after a pause that
doubles, and says nothing about the group; an answer that cannot be graded is a property of the
group, and its ticket ends. Each has a budget; where it is spent the run ends with an error.
"""

import dataclasses

from loong_jax.errors import ConfigError, LoongError
from loong_jax.orchestrator.ledger import Ledger
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


def what_blocks(ledger: Ledger) -> str:
    """What the run waits for, in words, when nothing happens any more."""
    if ledger.trainer != "idle":
        return f"the trainer is still {ledger.trainer}"
    busy = [n for n in range(len(ledger.replicas)) if ledger.tickets.num_decoding(n)]
    if busy:
        return f"replicas {busy} are silent while they decode"
    if waiting := [ticket.number for ticket in ledger.tickets.in_phase("verifying")]:
        return f"no verdict came for tickets {waiting[:8]}"
    if not ledger.sets.working:
        return "every replica is in quarantine"
    if waiting := sorted(ledger.tickets.versions("queued")):
        return f"no replica takes up versions {waiting} that queued tickets are for"
    return "nobody is at work, and the policy decides nothing"
