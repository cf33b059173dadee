"""The policy and the three groups of processes that an orchestrator drives, as protocols.

Each group has a local form (threads of this process) and may have a Ray form. None of their calls
waits for work to be done: they return at once and report through `emit`, from their own threads.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from loong_jax import own
from loong_jax.errors import ConfigError
from loong_jax.orchestrator.changes import Action
from loong_jax.orchestrator.ledger import Ledger
from loong_jax.rl.rewards import Disposition
from loong_jax.rollout.records import Emit, Group, Ticket

Grade = Callable[[Group], tuple[Group, Disposition]]


@runtime_checkable
class Policy(Protocol):
    """Settings of a scheduler together with its decisions; a frozen dataclass."""

    @property
    def groups_per_step(self) -> int:
        """P: groups that one step trains on."""
        ...

    @property
    def max_staleness(self) -> int:
        """S: how many steps older than the trainer's weights a trained response may be."""
        ...

    @property
    def mixes_versions(self) -> bool:
        """True where a response may have tokens of several versions; the ledger refuses it else."""
        ...

    @property
    def needs(self) -> tuple[type, ...]:
        """Optional abilities of replicas that its actions ask for, as classes of `protocols`."""
        ...

    def decide(self, view: Ledger, now: float) -> list[Action]:
        """The actions at `now` (seconds of the run's clock). Called again until there is none."""
        ...


def refuse_unable(policy: Policy, replicas: type, *, where: str) -> None:
    """Before anything runs: raises ConfigError where `replicas` cannot do what `policy` asks for.

    `where` names the setting that holds the policy.
    """
    for ability in policy.needs:
        if not issubclass(replicas, ability):
            methods = [name for name in vars(ability) if not name.startswith("_")]
            raise ConfigError(
                f"{where}={own.name_of(policy)} asks replicas to {', '.join(methods)}, which "
                f"{replicas.__name__} cannot. Use DoraPolicy(triggers=None), which all can follow."
            )


def _is_at_least(value: Any, least: int) -> bool:
    return isinstance(value, int) and value >= least


def check_policy(policy: Policy, max_ahead: float = 1.0) -> None:
    """Raises ConfigError for settings under which nothing could be trained."""
    name, needs = own.name_of(policy), policy.needs
    are_classes = isinstance(needs, tuple | list) and all(isinstance(one, type) for one in needs)
    for setting, holds, rule in (
        ("groups_per_step", _is_at_least(policy.groups_per_step, 1), "a whole number from 1 on"),
        ("max_staleness", _is_at_least(policy.max_staleness, 0), "a whole number from 0 on"),
        ("mixes_versions", isinstance(policy.mixes_versions, bool), "True or False"),
        ("needs", are_classes, "a tuple of classes of `protocols`, as MovesGroups"),
    ):
        if not holds:
            value = getattr(policy, setting)
            raise ConfigError(f"{setting}={value!r} of {name} is not {rule}. Give one.")
    if not 1 <= max_ahead < math.inf:
        raise ConfigError(
            f"max_ahead={max_ahead} must be >= 1 and finite: 1.25 keeps a quarter of a batch more "
            "in flight than a step trains on."
        )


@runtime_checkable
class ReplicaGroup(Protocol):
    """Engines that each host one policy version. Emits events of `loong_jax.rollout.records`."""

    num_replicas: int
    groups_per_replica: int  # how many groups of G rollouts one replica decodes at once

    def start(self, emit: Emit) -> None: ...

    def assign(self, replica: int, version: int) -> None:
        """The empty replica takes the weights of `version` from the version store."""
        ...

    def dispatch(self, replica: int, tickets: Sequence[Ticket], version: int) -> None: ...

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None: ...

    def mend(self, replica: int) -> None:
        """A new, empty replica in the place of one that emitted `ReplicaFailed`; `assign` gives it
        a version.
        """
        ...

    def cache_pressure(self) -> float:
        """Share of its cache, in [0, 1], that the fullest generating replica uses."""
        ...

    def close(self, timeout_s: float) -> None: ...


@runtime_checkable
class MovesGroups(Protocol):
    """Optional, for rebalancing."""

    def migrate(self, source: int, target: int, ticket_numbers: Sequence[int]) -> None:
        """Running groups move with their cache between two replicas of one version.

        Answered by `GroupsMigrated`. A group whose cache cannot move is prefilled again from its
        partial response, and counted there.
        """
        ...


@runtime_checkable
class SwapsWeights(Protocol):
    """Optional, for partial rollouts."""

    def swap(self, replica: int, version: int, *, keep_cache: bool) -> None:
        """Running groups go on under `version`, on their old cache or after a new prefill."""
        ...


@runtime_checkable
class LendsDevices(Protocol):
    """Optional, for elastic colocation: some replicas live on the trainer's devices."""

    elastic_replicas: Sequence[int]

    def lend(self, replicas: Sequence[int]) -> None:
        """Lends devices to replicas, which generate; groups that were paused with them go on."""
        ...

    def reclaim(self, replicas: Sequence[int]) -> None:
        """Pauses replicas with what they decode; the trainer's next command has their devices."""
        ...


@runtime_checkable
class ScoresEverywhere(Protocol):
    """Optional, of a trainer: standalone generators help it with log-probabilities."""

    def score_everywhere(self, groups: Sequence[Group]) -> None:
        """`TrainerGroup.score`; generators pause and run the trainer's program meanwhile."""
        ...


@runtime_checkable
class TrainerGroup(Protocol):
    """Executes a totally ordered list of commands. Emits the events of `loong_jax.rl.events`."""

    def start(self, emit: Emit) -> None: ...

    def score(self, groups: Sequence[Group]) -> None:
        """Behaviour log-probabilities of `groups`, each under its own policy version."""
        ...

    def train(self, step: int, groups: Sequence[Group]) -> None: ...

    def publish(self, version: int) -> None: ...

    def save(self, step: int, control: Mapping[str, Any]) -> None:
        """Saves weights and optimizer together with `control`, as one atomic checkpoint.

        `Saved` follows once it stands.
        """
        ...

    def close(self, timeout_s: float) -> None: ...


@runtime_checkable
class Versions(Protocol):
    """The part of the version store that an orchestrator uses; see `loong_jax.rollout.versions`."""

    def numbers(self) -> tuple[int, ...]: ...

    def retire(self, version: int) -> bool:
        """No new work asks for `version`; it goes with its last holder."""
        ...

    def checksum(self, version: int) -> str:
        """The checksum of the weights of a living version; empty where there is none."""
        ...


@runtime_checkable
class RunLog(Protocol):
    """The log of a run's events; see `loong_jax.report.metrics_log`."""

    def event(self, record: Mapping[str, Any]) -> None: ...

    def step(self, step: int, metrics: Mapping[str, Any], groups: Sequence[Group]) -> None: ...

    def judged(self, group: Group, disposition: Disposition) -> None: ...


@runtime_checkable
class EventQueue(Protocol):
    """`queue.Queue` on a real clock; a virtual clock delivers its next event instead of waiting."""

    def put(self, event: Any, /) -> None: ...

    def get(self, *, timeout: float) -> Any:
        """Raises `queue.Empty` after `timeout` seconds without an event."""
        ...
