"""Baseline policies of the same scheduler, with which the bench compares DORA.

Where the trainer's devices are elastic (see `ledger.ReplicaState`), a policy generates on all
of them and trains on all of them in turns; where the trainer has devices of its own, both go on at
once, as far as the policy allows. Sources: RollPacker (arXiv:2509.21009) for tail batching,
Kimi k1.5 (arXiv:2501.12599) for partial rollouts; the others are common practice.
"""

import dataclasses

from loong_jax.orchestrator import dora
from loong_jax.orchestrator.changes import Action, Afterwards, Assign, EndStale, Issue, Lend, Swap
from loong_jax.orchestrator.ledger import Ledger
from loong_jax.orchestrator.protocols import Policy, SwapsWeights, check_policy
from loong_jax.orchestrator.tickets import UNFINISHED, Phase


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynchronousPolicy:
    """Generate a batch under the newest weights, train on it, publish, repeat."""

    groups_per_step: int  # P

    max_staleness = 0
    mixes_versions = False
    needs = ()

    def __post_init__(self):
        check_policy(self)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        return in_turns(view, self, max_ahead=1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TailBatchingPolicy:
    """Synchronous, but long responses share rounds of their own (RollPacker).

    A short round starts more groups than it needs and trains on the first P; the problems of the
    others are put back. Once they fill a batch, a long round generates them and waits for all.
    Every response is on-policy. RollPacker also starts more responses per group; this does not.
    """

    groups_per_step: int  # P
    max_ahead: float = 1.25  # groups started in a short round, in batches of P

    max_staleness = 0
    mixes_versions = False
    needs = ()

    def __post_init__(self):
        check_policy(self, self.max_ahead)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        return in_turns(view, self, self.max_ahead)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneStepOffPolicy:
    """While a batch is trained on, the next one is generated under the weights from before it.

    Both are waited for before either goes on, so every batch is one step old. At the start of a
    run the first batch is on-policy.
    """

    groups_per_step: int  # P

    max_staleness = 1
    mixes_versions = False
    needs = ()

    def __post_init__(self):
        check_policy(self)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        if view.trainer == "idle" and view.newest_version == view.step:
            batch = dora.oldest_batch(view, self)
            if batch is not None and not view.tickets.count(*UNFINISHED):
                return dora.train(view, batch)
        if view.trainer == "publishing" or view.newest_version < view.step:
            return []
        queued = view.tickets.versions("queued")
        follow = []  # new weights between two batches; one mended meanwhile, those of the batch
        if queued or not view.tickets.count("decoding"):
            follow = assign_empty(view, min(queued, default=view.newest_version))
        if actions := lend_all(view) + follow:
            return actions
        num_next = len(view.tickets) - view.tickets.count("leased")
        if view.trainer in ("idle", "training") and num_next < self.groups_per_step:
            return [Issue(self.groups_per_step - num_next, view.newest_version)]
        return dora.dispatch(view)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartialRolloutPolicy:
    """New weights interrupt responses, which go on under them: one response, several versions.

    This is the one policy that mixes versions within a response, and it says so:
    `mixes_versions`. A group's age counts from its first token; one that would become too old is
    waited for.
    """

    groups_per_step: int  # P
    max_staleness: int = 2  # S, in steps
    max_ahead: float = 1.5  # groups in flight, in batches of P
    keep_cache: bool = False  # False: interrupted responses are prefilled again; True: stale cache

    mixes_versions = True
    needs = (SwapsWeights,)

    def __post_init__(self):
        check_policy(self, self.max_ahead)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        if view.trainer == "publishing" or view.newest_version < view.step:
            return []
        batch = dora.batch_of_window(view, self)
        if batch is not None:
            return dora.train(view, batch)
        return (
            end_behind(view, "again", "queued")  # after a resume: not a token of them is written
            or lend_all(view) + swap_running(view, keep_cache=self.keep_cache)
            or admit_and_dispatch(view, self, self.max_ahead)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropAndReplacePolicy:
    """New weights end every running response; new prompts take the places.

    One version per response, nothing is prefilled again, and long responses are lost for ever:
    what trains is shorter than what the policy writes.
    """

    groups_per_step: int  # P
    max_staleness: int = 2  # S, in steps
    max_ahead: float = 1.5  # groups in flight, in batches of P

    mixes_versions = False
    needs = ()

    def __post_init__(self):
        check_policy(self, self.max_ahead)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        if view.trainer == "publishing" or view.newest_version < view.step:
            return []
        if actions := dora.end_stale(view, self, "drop"):
            return actions
        batch = dora.oldest_batch(view, self)
        if batch is not None:
            return dora.train(view, batch)
        return (
            end_behind(view, "drop", "queued", "decoding")
            or lend_all(view) + assign_empty(view, view.newest_version)
            or admit_and_dispatch(view, self, self.max_ahead)
        )


def in_turns(view: Ledger, policy: Policy, max_ahead: float) -> list[Action]:
    """All devices write a batch under the newest weights, then all train on it.

    Groups started beyond P are put off for a round of their own, once a batch of them is there.
    """
    if view.trainer != "idle" or view.newest_version < view.step:
        return []
    batch = dora.oldest_batch(view, policy)
    if batch is not None:
        rest = sorted(set(view.tickets) - set(batch))
        if not rest:
            return dora.train(view, batch)
        if any(view.tickets[n].phase in ("verifying", "scoring") for n in rest):
            return []
        return [EndStale(tuple(rest), "defer")]
    if actions := lend_all(view) + assign_empty(view, view.newest_version):
        return actions
    missing = policy.groups_per_step - len(view.tickets)
    if missing <= 0:
        return dora.dispatch(view)
    if not view.tickets and view.source.num_deferred >= policy.groups_per_step:
        return [Issue(missing, view.newest_version, deferred=True)]
    started = int(max_ahead * policy.groups_per_step)
    return [Issue(missing if view.tickets else started, view.newest_version)]


def end_behind(view: Ledger, afterwards: Afterwards, *phases: Phase) -> list[Action]:
    """Ends what is in these phases under versions before the newest."""
    behind = [t.number for t in view.tickets.in_phase(*phases) if t.version < view.newest_version]
    return [EndStale(tuple(behind), afterwards)] if behind else []


def admit_and_dispatch(view: Ledger, policy: Policy, max_ahead: float) -> list[Action]:
    """Keeps `max_ahead` times P groups in flight under the newest version."""
    newest = view.newest_version
    in_flight = view.tickets.count(*UNFINISHED)
    count = min(
        int(max_ahead * policy.groups_per_step) - in_flight,
        dora.room_for(view, policy, newest),
        dora.num_free(view, newest),
    )
    return [Issue(count, newest)] if count > 0 else dora.dispatch(view)


def lend_all(view: Ledger) -> list[Action]:
    taken = view.sets.taken
    return [Lend(taken)] if taken and view.trainer == "idle" else []


def assign_empty(view: Ledger, version: int) -> list[Action]:
    """Every generating replica without work takes up `version`."""
    return [
        Assign(number, version)
        for hosted, numbers in view.sets.hosts.items()
        if hosted != version
        for number in numbers
        if not view.tickets.num_decoding(number)
    ]


def swap_running(view: Ledger, *, keep_cache: bool) -> list[Action]:
    """Every generating replica takes up the newest version, in the middle of its responses."""
    newest = view.newest_version
    return [
        Swap(number, newest, keep_cache)
        if view.tickets.num_decoding(number)
        else Assign(number, newest)
        for hosted, numbers in view.sets.hosts.items()
        if hosted != newest
        for number in numbers
    ]
