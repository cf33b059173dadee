"""Everything that can happen to a run, as small plain records.

A policy decides the actions; events of replicas, verifiers and the trainer bring the rest. The loop
writes each record to the journal, enters it in the ledger, and only then carries out its effect, so
the same records bring a ledger to where it was.
"""

from typing import Any, Literal, NamedTuple

from loong_jax.rl.rewards import Disposition
from loong_jax.rollout.records import TicketEnd

Place = tuple[int, int, int, int]  # where the arrays of a group are; see `journal.Journal.keep`
Afterwards = Literal["again", "defer", "drop"]

# ---- what a policy decides; carried out in order, and then it is asked again --------------------


class Issue(NamedTuple):
    """Open `count` new tickets, to be written under `version`."""

    count: int
    version: int
    deferred: bool = False  # problems that were put back, instead of the next of the stream


class Dispatch(NamedTuple):
    replica: int
    tickets: tuple[int, ...]
    version: int


class Assign(NamedTuple):
    """The empty replica takes up `version`."""

    replica: int
    version: int


class Drain(NamedTuple):
    """The replica takes no new ticket until it is empty."""

    replica: int


class Migrate(NamedTuple):
    """Running groups go on at another replica that hosts the same version."""

    source: int
    target: int
    tickets: tuple[int, ...]


class Swap(NamedTuple):
    """The replica's running groups go on under `version`: one response has several versions."""

    replica: int
    version: int
    keep_cache: bool  # False: prompt and response so far are prefilled again


class Lend(NamedTuple):
    """Elastic replicas generate; what they had paused goes on."""

    replicas: tuple[int, ...]


class Reclaim(NamedTuple):
    """The trainer takes the devices of elastic replicas back; what they decode is paused."""

    replicas: tuple[int, ...]


class Score(NamedTuple):
    tickets: tuple[int, ...]
    with_generators: bool = False  # they pause and run the trainer's program meanwhile


class Train(NamedTuple):
    tickets: tuple[int, ...]


class EndStale(NamedTuple):
    """These tickets are not trained on; what becomes of their problems says `afterwards`."""

    tickets: tuple[int, ...]
    afterwards: Afterwards = "again"


class SetIssueLimit(NamedTuple):
    limit: int


class Balanced(NamedTuple):
    """The actions before this one rebalanced replicas and versions, at `at_s` of the clock."""

    at_s: float


class SetGate(NamedTuple):
    """The elastic gate has decided for this step; `threshold` holds from now on."""

    threshold: float


ReplicaAction = Dispatch | Assign | Drain | Migrate | Swap | Lend | Reclaim
TicketAction = Issue | Score | Train | EndStale | SetIssueLimit | Balanced | SetGate
Action = ReplicaAction | TicketAction


# ---- what else happens --------------------------------------------------------------------------


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
    """A replica died or hangs: quarantined; its groups wait for another one of their version."""

    replica: int
    num_losses: int  # in a row


class ReplicaBack(NamedTuple):
    replica: int


class Reopened(NamedTuple):
    """A new process goes on from here. `lost` tickets had weights that nobody has any more."""

    lost: tuple[int, ...]


GroupEvent = Generated | Verified | Scored | Trained | Published
RunEvent = SaveBegun | RunEnds | Ended | ReplicaLost | ReplicaBack | Reopened
Event = GroupEvent | RunEvent
Change = Action | Event
