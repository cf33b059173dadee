"""DORA: several policy versions decode at once, and a response ends under the one it began with.

Sources: arXiv:2509.18883, 3.1.1 (phases, elastic colocation, standalone generators that compute
log-probabilities) and arXiv:2604.26256 (Algorithm 1, in `rebalance`; the window of versions).
`decide` is a pure function of the ledger; below DORA stand the decisions that `baselines` and
policies of your own share with it: lists of actions, empty where nothing is to be done.
"""

import dataclasses
import heapq
import itertools
import math
from typing import Any, Literal

from loong_jax import own
from loong_jax.errors import ConfigError, refuse_below, shown
from loong_jax.orchestrator import changes, rebalance
from loong_jax.orchestrator.changes import Action
from loong_jax.orchestrator.ledger import Ledger, ReadOnly
from loong_jax.orchestrator.protocols import MovesGroups, Policy, check_policy
from loong_jax.orchestrator.rebalance import Triggers
from loong_jax.orchestrator.tickets import UNFINISHED, UNLEASED


def decide(view: Ledger, policy: Policy, now: float = 0.0) -> list[Action]:
    """The next actions. The caller carries them out in order and asks again."""
    if view.step >= view.total_steps or not view.sets.working:
        return []
    found = policy.decide(ReadOnly(view), now)
    is_list = isinstance(found, list | tuple) and not isinstance(found, Action)
    if is_list and all(isinstance(action, Action) for action in found):
        return list(found)
    what = "holds what is no action" if is_list else "is no list of actions"
    raise ConfigError(
        f"the policy {own.name_of(policy)} decided {shown(found)}, which {what}. Return a list of "
        "those of docs/how-to/add_scheduler.md, [] where nothing is to be done."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElasticGate:
    """Lends the trainer's devices only where much of the next batch is still to be written.

    The benefit is that share of a batch; each loan makes the next one harder and each refusal
    easier, so the devices do not swing to and fro at the threshold.
    """

    threshold: float = 0.2  # share of the next batch that is missing
    raised_by: float = 0.05  # after a loan
    lowered_by: float = 0.03  # after a refusal
    highest: float = 0.6
    lowest: float = 0.05

    def __post_init__(self):
        if not 0 <= self.lowest <= self.threshold <= self.highest <= 1:
            raise ConfigError(
                f"lowest={self.lowest} <= threshold={self.threshold} <= highest={self.highest} "
                "must hold within [0, 1]: they are shares of a batch."
            )
        refuse_below(self, 0, "raised_by", "lowered_by")

    def decide(self, missing: float, threshold: float) -> tuple[bool, float]:
        """(lend, next threshold); `missing` is a share of a batch, in [0, 1]."""
        if missing > threshold:
            return True, min(self.highest, threshold + self.raised_by)
        return False, max(self.lowest, threshold - self.lowered_by)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoraPolicy:
    """By default what any replicas can follow; `algorithm_1` gives the settings of the paper.

    `over_stale` keeps every trained group within S steps of its version in one of three ways:

    * avoid: a group is admitted only if it can still be trained in time, even if every open group
      is trained before it. No step waits, and little is in flight.
    * wait: a step waits for the groups that would come too late for the next ones, so the window
      of versions slides only when every group of the oldest is in. Nothing is written twice.
    * regenerate: what is too old is cancelled, and its problem issued again.

    In deterministic mode nothing depends on timing: which tickets exist, under which version each
    is written and which groups form a batch are functions of the order of issue alone.
    """

    groups_per_step: int  # P
    max_staleness: int = 2  # S, in steps; S + 1 versions decode at once
    over_stale: Literal["avoid", "wait", "regenerate"] = "avoid"
    # in batches of P: groups in flight; where staleness is avoided, those that wait for the trainer
    # count too. While nothing is trained on, one batch at least.
    max_ahead: float = 1.0
    triggers: Triggers | None = None  # of Algorithm 1; None: replicas change version once empty
    # without triggers: how many are emptied for each new version; None: one share in S + 1 takes it
    # up as they run empty
    replicas_per_version: int | None = 1
    gate: ElasticGate | None = ElasticGate()  # None: devices are lent whenever they are free
    score_at_least: int | None = 8  # judged groups worth a pass before their batch is there
    generators_score: bool = False  # standalone generators help with behaviour log-probabilities
    deterministic: bool = False

    mixes_versions = False

    def __post_init__(self):
        check_policy(self)
        refuse_below(self, 1, "replicas_per_version")
        if not 0 < self.max_ahead < math.inf:
            raise ConfigError(f"max_ahead={self.max_ahead} must be positive and finite. Use 1.0.")
        if self.deterministic and (self.over_stale != "avoid" or self.triggers is not None):
            raise ConfigError(
                f"deterministic=True with over_stale={self.over_stale!r} and triggers="
                f"{self.triggers}: these decide by time. Use over_stale='avoid', triggers=None."
            )

    @property
    def needs(self) -> tuple[type, ...]:
        return () if self.triggers is None else (MovesGroups,)

    def decide(self, view: Ledger, now: float) -> list[Action]:
        stale = [] if self.over_stale == "wait" else end_stale(view, self, "again")
        return (
            stale
            or self._use_trainer(view)
            or self._lend(view)
            or self._let_go(view)
            or self._place_versions(view, now)
            or (self._admit_in_order(view) if self.deterministic else self._admit(view))
            or dispatch(view)
        )

    # ---- the trainer and its devices ------------------------------------------------------------

    def _use_trainer(self, view: Ledger) -> list[Action]:
        batch, lent = self.next_batch(view), view.sets.lent
        if batch is None:
            judged = tuple(ticket.number for ticket in view.tickets.in_phase("judged"))
            may_score = view.trainer == "idle" and not lent and not self.deterministic
            if may_score and len(judged) >= (self.score_at_least or math.inf):
                return [changes.Score(judged, self.generators_score)]
            return []
        if lent and self.triggers is not None:
            return [*rebalance.evacuate(view, lent), changes.Reclaim(lent)]
        return train(view, batch, with_generators=self.generators_score)

    def next_batch(self, view: Ledger) -> tuple[int, ...] | None:
        """The P groups of the next step, or None while they are not all there.

        Deterministic: the first P in the order of issue, once nothing before them is still open.
        Otherwise the oldest versions first among those that are there.
        """
        if self.over_stale == "wait":
            return batch_of_window(view, self)
        if not self.deterministic:
            return oldest_batch(view, self)
        if view.trainer != "idle" or view.newest_version < view.step:
            return None
        first = list(itertools.islice(view.tickets.values(), self.groups_per_step))
        there = [ticket.number for ticket in first if ticket.phase in ("judged", "ready")]
        return tuple(there) if len(there) == self.groups_per_step else None

    def _lend(self, view: Ledger) -> list[Action]:
        """Once a step, after its weights are published, the gate decides about all devices."""
        taken = view.sets.taken
        if not taken or view.trainer != "idle":
            return []
        holds_work = any(view.tickets.num_decoding(number) for number in taken)
        nobody_else = len(taken) == len(view.sets.working)
        if self.gate is None or holds_work or nobody_else:
            return [changes.Lend(taken)]
        there = view.tickets.count("judged", "scoring", "ready")
        missing = max(0.0, 1 - there / self.groups_per_step)
        if view.gate_step == view.step:
            # Refused for this step, but the batch cannot come together without these devices.
            stuck = not view.tickets.count("decoding", "verifying", "scoring")
            return [changes.Lend(taken)] if stuck and missing else []
        threshold = self.gate.threshold if view.lend_threshold is None else view.lend_threshold
        lends, following = self.gate.decide(missing, threshold)
        gate = changes.SetGate(following)
        return [gate, changes.Lend(taken)] if lends else [gate]

    def _let_go(self, view: Ledger) -> list[Action]:
        """Empty replicas whose devices the trainer keeps hold no version that the window has left:
        the version store has room for that of the window alone.
        """
        oldest = view.newest_version - self.max_staleness
        return [
            changes.Assign(number, view.newest_version)
            for number in view.sets.taken
            if (version := view.replicas[number].version) is not None
            and version < oldest
            and not view.tickets.num_decoding(number)
        ]

    # ---- which replica hosts what ---------------------------------------------------------------

    def _place_versions(self, view: Ledger, now: float) -> list[Action]:
        if self.triggers is None:
            return self._turn_replicas(view)
        num_wanted = self._num_wanted(view)
        return rebalance.share_out(view, self.triggers, now, num_wanted=num_wanted)

    def _turn_replicas(self, view: Ledger) -> list[Action]:
        """Empty replicas take up the version they are needed for; others are emptied, oldest
        first, so generation never stops for a weight update.
        """
        queued_versions = set(view.tickets.versions("queued"))
        generating = {number: view.replicas[number] for number in view.sets.generating}
        newest = sum(replica.version == view.newest_version for replica in generating.values())
        share = max(1, round(len(generating) / (self.max_staleness + 1)))
        is_due = self.deterministic or (self.replicas_per_version is None and newest < share)
        for number, replica in generating.items():
            if view.tickets.num_decoding(number) or replica.version in queued_versions:
                continue
            uncovered = queued_versions - {r.version for r in generating.values()}
            if uncovered:
                return [changes.Assign(number, min(uncovered))]
            may_turn = replica.version is None or replica.draining or is_due
            if may_turn and replica.version != view.newest_version:
                return [changes.Assign(number, view.newest_version)]
        draining = sum(replica.draining for replica in generating.values())
        wanted = (self.replicas_per_version or 0) - newest - draining
        oldest_useful = view.newest_version - self.max_staleness + 1
        behind = sorted(
            (replica.version, view.tickets.num_decoding(number), number)
            for number, replica in generating.items()
            if replica.version is not None
            and replica.version < view.newest_version
            and not replica.draining
        )
        return [
            changes.Drain(number)
            for place, (version, _, number) in enumerate(behind)
            if place < wanted or version < oldest_useful
        ]

    # ---- new work -------------------------------------------------------------------------------

    def _num_wanted(self, view: Ledger) -> int:
        """RBS of the paper, in groups."""
        ahead = self.max_ahead if view.tickets.count("leased") else max(self.max_ahead, 1.0)
        return int(ahead * self.groups_per_step)

    def _admit(self, view: Ledger) -> list[Action]:
        """New tickets for free places, newest version first, as far as staleness allows."""
        open_phases = UNLEASED if self.over_stale == "avoid" else UNFINISHED
        wanted = self._num_wanted(view) - view.tickets.count(*open_phases)
        hosted = [version for version in view.sets.hosts if version is not None]
        for version in sorted(hosted, reverse=True):
            room = min(wanted, self._room(view, version))
            if room <= 0:  # then there is none in older versions either
                return []
            count = min(room, num_free(view, version))
            if count > 0:
                return [changes.Issue(count, version)]
        return []

    def _room(self, view: Ledger, version: int) -> int:
        """The number of further groups under `version` that staleness admits.

        Avoided: such a group is trained within step v + S + 1 if at most P * (v + S + 1 - step)
        groups are open when it is admitted, itself and a batch in training included.
        """
        if self.over_stale == "avoid":
            steps_left = version + self.max_staleness + 1 - view.step
            return steps_left * self.groups_per_step - len(view.tickets)
        later = range(version, view.newest_version + 1)
        return min(room_for(view, self, v) for v in later)

    def _admit_in_order(self, view: Ledger) -> list[Action]:
        """Deterministic admission: up to P * (S + 1) tickets past the last one trained.

        When all of them are judged and too few teach anything, exactly the missing number is added.
        """
        if view.newest_version < view.step:
            return []
        if view.num_issued < view.issue_limit:
            return [changes.Issue(view.issue_limit - view.num_issued, view.newest_version)]
        if all(ticket.phase in ("judged", "ready") for ticket in view.tickets.values()):
            missing = self.groups_per_step - len(view.tickets)
            if missing > 0:
                return [changes.SetIssueLimit(view.num_issued + missing)]
        return []


def algorithm_1(groups_per_step: int, max_staleness: int = 2, **others: Any) -> DoraPolicy:
    """DORA as the paper runs it: replicas are shared out by outstanding work, and groups move."""
    settings: dict[str, Any] = {
        "over_stale": "wait",
        "max_ahead": 1.5,
        "triggers": Triggers(),
        "replicas_per_version": None,
        "score_at_least": None,
        "generators_score": True,
        **others,
    }
    return DoraPolicy(groups_per_step=groups_per_step, max_staleness=max_staleness, **settings)


# ---- decisions that policies share ----


def end_stale(view: Ledger, policy: Policy, afterwards: changes.Afterwards) -> list[Action]:
    """Groups that no step may use any more: what is still being written is cancelled.

    While a step is being trained, groups outside it will be one step older when they could be.
    """
    age_of = view.step + (view.trainer == "training")
    phases = ("queued", "decoding", "judged", "ready")
    if all(age_of - version <= policy.max_staleness for version in view.tickets.versions(*phases)):
        return []
    stale = tuple(
        ticket.number
        for ticket in view.tickets.in_phase(*phases)
        if age_of - ticket.version > policy.max_staleness
    )
    return [changes.EndStale(stale, afterwards)]


def room_for(view: Ledger, policy: Policy, version: int) -> int:
    """The number of further groups under `version` that can still be trained within S steps.

    With the oldest trained first, that holds where no more than P groups of this version or an
    older one are open for each step that may still use them. The batch in training is taken.
    """
    underway = view.tickets.versions(*UNLEASED)
    num_before = sum(count for v, count in underway.items() if v <= version)
    next_step = view.step + (view.trainer == "training")
    steps_left = version + policy.max_staleness + 1 - next_step
    return policy.groups_per_step * steps_left - num_before


def oldest_batch(view: Ledger, policy: Policy) -> tuple[int, ...] | None:
    """P groups that are there, oldest versions first, or None."""
    if view.trainer != "idle" or view.tickets.count("ready", "judged") < policy.groups_per_step:
        return None
    there = view.tickets.in_phase("ready", "judged")
    there.sort(key=lambda ticket: (ticket.version, ticket.number))
    return tuple(sorted(ticket.number for ticket in there[: policy.groups_per_step]))


def leaves_too_old(view: Ledger, policy: Policy) -> bool:
    """True where training the oldest P groups now would leave others that come too late.

    Of the groups left, those under version v or older must fit into the v + S - step steps that
    may still use them. For the oldest version none may be left: the window of versions slides only
    when every trajectory of it is in (arXiv:2604.26256). Counts alone, so that waiting is cheap.
    """
    there = view.tickets.versions("ready", "judged")
    underway = view.tickets.versions(*UNFINISHED)
    num_there = num_underway = 0
    for version in sorted(there.keys() | underway.keys()):
        num_there += there[version]
        num_underway += underway[version]
        left = num_underway + max(0, num_there - policy.groups_per_step)
        if left > policy.groups_per_step * max(0, version + policy.max_staleness - view.step):
            return True
    return False


def batch_of_window(view: Ledger, policy: Policy) -> tuple[int, ...] | None:
    """`oldest_batch`, once it leaves nothing behind that would become too old."""
    if view.trainer != "idle" or view.tickets.count("ready", "judged") < policy.groups_per_step:
        return None
    return None if leaves_too_old(view, policy) else oldest_batch(view, policy)


def train(view: Ledger, batch: tuple[int, ...], *, with_generators: bool = False) -> list[Action]:
    """Scores what of the batch is not scored, then trains it; elastic devices come back first."""
    if lent := view.sets.lent:
        return [changes.Reclaim(lent)]
    unscored = tuple(n for n in batch if view.tickets[n].phase == "judged")
    return [changes.Score(unscored, with_generators)] if unscored else [changes.Train(batch)]


def num_free(view: Ledger, version: int) -> int:
    """Free places of the replicas that host `version`, less what is queued for them."""
    hosts = [n for n in view.sets.hosts.get(version, ()) if not view.replicas[n].draining]
    places = view.groups_per_replica * len(hosts) - view.tickets.num_decoding(*hosts)
    return max(0, places - view.tickets.versions("queued")[version])


def dispatch(view: Ledger) -> list[Action]:
    """Queued tickets go to the least loaded replicas of their version."""
    if not view.tickets.count("queued"):
        return []
    queued: dict[int, list[int]] = {}
    for ticket in view.tickets.in_phase("queued"):
        queued.setdefault(ticket.version, []).append(ticket.number)
    chosen: dict[int, list[int]] = {}
    for version, numbers in queued.items():
        hosts = view.sets.hosts.get(version, ())
        hosts_by_load = [(view.tickets.num_decoding(number), number) for number in hosts]
        heapq.heapify(hosts_by_load)
        for number in numbers:
            if not hosts_by_load or hosts_by_load[0][0] >= view.groups_per_replica:
                break
            load, replica = hosts_by_load[0]
            chosen.setdefault(replica, []).append(number)
            heapq.heapreplace(hosts_by_load, (load + 1, replica))
    return [
        changes.Dispatch(replica, tuple(numbers), view.tickets[numbers[0]].version)
        for replica, numbers in chosen.items()
    ]
