"""Budgets of faults, and the ends of a run: too many faults, nothing to learn, a standstill.

Infrastructure fails apart from data: a lost replica or verifier is tried again after a pause that
doubles, and says nothing about the group; an answer that cannot be graded is a property of the
group, and its ticket ends. Each has a budget; where it is spent the run ends with an error.
"""

import dataclasses
from typing import get_args

from loong_jax import own
from loong_jax.errors import ConfigError, LoongError, refuse_below, shown
from loong_jax.orchestrator import changes
from loong_jax.orchestrator.changes import Action
from loong_jax.orchestrator.ledger import Ledger
from loong_jax.orchestrator.protocols import MovesGroups, Policy, SwapsWeights
from loong_jax.orchestrator.tickets import UNLEASED

SATURATED_SHARE = 0.9
MAX_OPEN_STEPS = 100  # steps' worth of tickets that may be open


class BudgetSpent(LoongError):
    """More went wrong than a budget allows."""


class RunStalled(LoongError):
    """No event arrived for longer than the watchdog allows, or nothing trains."""


class WorkerLost(LoongError):
    """A trainer or replica failed in a way its group could not mend."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultBudget:
    """Numbers of faults after which the run ends."""

    replica_losses: int = 5  # of one replica, without a group from it in between
    verifications: int = 3  # of one answer, while its verifier is lost
    failed_tickets: int = 1000  # ungradable or failed, since the last step
    back_off_s: float = 1.0  # before the first repetition; doubles with each in a row
    max_back_off_s: float = 60.0

    def __post_init__(self):
        refuse_below(self, 1, "replica_losses", "verifications", "failed_tickets")
        if not 0 <= self.back_off_s <= self.max_back_off_s:
            raise ConfigError(
                f"back_off_s={self.back_off_s} is not in 0..max_back_off_s={self.max_back_off_s}."
            )

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row, 1 or more."""
        doublings = min(failures - 1, 1000)  # a float holds no 2 ** 1024
        return min(self.back_off_s * 2.0**doublings, self.max_back_off_s)


def what_blocks(ledger: Ledger) -> str:
    """A sentence on the cause of a standstill, where nothing happens any more."""
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
        if all(version in ledger.sets.hosts for version in waiting):
            return "no queued ticket is dispatched to the replicas of its version"
        return f"no replica takes up versions {waiting} that queued tickets are for"
    return "nobody is at work, and the policy decides nothing"


def refuse_standstill(ledger: Ledger, policy: Policy) -> None:
    """Where `policy` decides nothing: raises RunStalled unless somebody is at work or mended, for
    then no event will come.
    """
    is_mended = any(replica.quarantined for replica in ledger.replicas)
    busy = ledger.tickets.count("decoding", "verifying")
    if ledger.trainer == "idle" and not busy and not is_mended:
        remedy = (
            f"Let `decide` of {own.name_of(policy)} issue, dispatch, score or train (a step needs "
            f"{policy.groups_per_step} groups)"
        )
        raise stalled(ledger, "is to come", remedy)


def stalled(ledger: Ledger, since: str, remedy: str) -> RunStalled:
    """The error of a standstill: what the run waits for, and where everything is."""
    counts = ", ".join(f"{ledger.tickets.count(phase)} {phase}" for phase in UNLEASED)
    return RunStalled(
        f"no event {since} at step {ledger.step}: {what_blocks(ledger)}. The trainer is "
        f"{ledger.trainer}, tickets: {counts}; replicas {ledger.replicas}. {remedy}; then the same "
        "command goes on from here. With other settings, name another --run-dir."
    )


def are_solved(ledger: Ledger, solved_after: int) -> bool:
    """True where so many tickets taught nothing since the last step, nearly all of them solved."""
    return (
        ledger.num_fruitless >= solved_after
        and ledger.num_solved >= SATURATED_SHARE * ledger.num_fruitless
        and ledger.trainer in ("idle", "scoring")
    )


def refuse_fruitless(ledger: Ledger, max_failed: int, max_tickets_per_step: int) -> None:
    """Raises where so many tickets since the last step failed, or taught nothing."""
    since = f"since step {ledger.step}"
    said = f"Ends so far: {dict(ledger.ends)}. Look at the verdicts in rollouts/"
    if ledger.num_failed >= max_failed:
        raise BudgetSpent(
            f"{ledger.num_failed} tickets {since} could not be graded or failed, as many as "
            f"failed_tickets allows. {said}: their reasons say what the verifier misses. Responses "
            "that were all cut off at the limit of tokens cannot be graded either: then raise it."
        )
    if ledger.num_fruitless >= max_tickets_per_step:
        raise RunStalled(
            f"{ledger.num_fruitless} tickets in a row {since} could not train. {said}. All groups "
            "are all right or all wrong, or the verifier fails: choose other levels, a larger "
            "group, or more steps of SFT where answers have no right form."
        )


def refuse_action(action: Action, ledger: Ledger, policy: Policy) -> None:
    """Raises ConfigError for what the policy said that it would not do, or what is none of it."""
    given, num_replicas = action._asdict(), len(ledger.replicas)
    lists = given.get("replicas", ()), given.get("tickets", ())
    are_tuples = all(isinstance(numbers, tuple | list) for numbers in lists)
    ones = [given[name] for name in ("replica", "source", "target") if name in given]
    replicas, tickets = ([*ones, *lists[0]], lists[1]) if are_tuples else ((), ())
    odd = [n for n in replicas if type(n) is not int or not 0 <= n < num_replicas]
    unknown = [n for n in tickets if type(n) is not int or n not in ledger.tickets]
    match action:
        case _ if not are_tuples:
            fault = "`tickets` and `replicas` are tuples of numbers."
        case _ if odd:
            fault = f"{odd[0]!r} is no replica: they are numbered 0 to {num_replicas - 1}, by int."
        case changes.Lend() | changes.Reclaim() if not all(
            ledger.replicas[number].elastic for number in replicas
        ):
            fault = "only replicas that are `elastic` are lent."
        case changes.Train() | changes.Score() if ledger.trainer != "idle":
            fault = f"the trainer is {ledger.trainer}. Wait until view.trainer is 'idle'."
        case changes.Train(numbers) if len(numbers) != policy.groups_per_step:
            fault = f"a step trains on {policy.groups_per_step} groups. Give groups_per_step."
        case changes.Migrate() if MovesGroups not in policy.needs:
            fault = "its `needs` lack MovesGroups. Add it."
        case changes.Swap() if SwapsWeights not in policy.needs or not policy.mixes_versions:
            fault = "its `needs` lack SwapsWeights, or it does not say that it mixes_versions."
        case changes.EndStale(_, after) if after not in get_args(changes.Afterwards):
            fault = f"afterwards is one of {', '.join(get_args(changes.Afterwards))}."
        case changes.Dispatch(replica, _, version) if ledger.replicas[replica].version != version:
            fault = f"that replica hosts version {ledger.replicas[replica].version}."
        case changes.Issue(_, version) if version > ledger.newest_version:
            fault = f"no version is published after {ledger.newest_version}. Issue under that one."
        case _ if unknown:
            fault = f"{unknown[0]!r} is no open ticket: they are named by `number`, an int."
        case _:
            return
    raise ConfigError(f"the policy {own.name_of(policy)} decided {shown(action, 120)}: {fault}")


def refuse_excess(action: Action, ledger: Ledger, policy: Policy, most_a_step: int) -> None:
    """Raises ConfigError for a count that is none, or more tickets than may be open."""
    num_open = len(ledger.tickets)
    most = max(most_a_step, MAX_OPEN_STEPS * policy.groups_per_step)
    if not isinstance(action, changes.Issue):
        return
    if not (isinstance(action.count, int) and 0 < action.count <= most - num_open):
        raise ConfigError(
            f"the policy {own.name_of(policy)} decided {action} where {num_open} tickets are open: "
            f"its count is no whole number from 1 to what is left of the {most} that may be open "
            "at a time. Issue what `groups_per_step` still lacks."
        )
