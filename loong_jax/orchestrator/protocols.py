"""The three groups of processes an orchestrator drives, as protocols.

Each has a local form (threads of this process) and may have a Ray form. None of their calls waits
for work to be done: they return at once and report through `emit`, from their own threads.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from loong_jax.rollout.records import Group, Ticket
from loong_jax.verifiers.verdict import Verdict

Emit = Callable[[Any], None]


@runtime_checkable
class ReplicaGroup(Protocol):
    """Engines that each host one policy version. Emits the events of `loong_jax.rollout.events`."""

    num_replicas: int
    groups_per_replica: int  # how many groups of G rollouts one replica decodes at once

    def start(self, emit: Emit) -> None: ...

    def assign(self, replica: int, version: int) -> None:
        """The empty replica takes the weights of `version` from the version store."""
        ...

    def dispatch(self, replica: int, tickets: Sequence[Ticket], version: int) -> None: ...

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None: ...

    def close(self, timeout_s: float) -> None: ...


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
        """Saves weights and optimizer together with `control`, as one atomic checkpoint."""
        ...

    def close(self, timeout_s: float) -> None: ...


@runtime_checkable
class VerifierPool(Protocol):
    def submit(self, requests: Sequence[Any]) -> list[Future[Verdict]]: ...

    def close(self, timeout_s: float) -> None: ...


@runtime_checkable
class Versions(Protocol):
    """The part of the version store that an orchestrator uses; see `loong_jax.rollout.versions`."""

    def numbers(self) -> tuple[int, ...]: ...

    def retire(self, version: int) -> bool:
        """No new work asks for `version`; it goes with its last holder."""
        ...
