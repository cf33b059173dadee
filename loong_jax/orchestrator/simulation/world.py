"""Replicas, trainer, verifiers, clock and event queue of a simulated run, in one object.

The real loop drives it (`loong_jax.orchestrator.loop`), with the real ledger. Each group is one
record with one placeholder rollout; its lengths are those of the trace.
"""

import collections
import dataclasses
import heapq
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.orchestrator.simulation.model import (
    CostModel,
    LengthTrace,
    Running,
    SimulatedReplica,
)
from loong_jax.problems.verdict import Verdict, correct
from loong_jax.rl import events as rl_events
from loong_jax.rollout import records
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The division of the accelerators."""

    num_accelerators: int
    accelerators_per_replica: int = 4
    slots_per_replica: int = 512  # responses decoded at once
    places_per_slot: float = 4.0  # groups are sent until so many responses per slot; some wait
    num_elastic: int = 0  # replicas on the trainer's devices, at the end of the list
    num_trainer_accelerators: int = 0  # that only train

    def __post_init__(self):
        spare = self.num_accelerators - self.num_trainer_accelerators
        if self.num_replicas < 1 or spare % self.accelerators_per_replica:
            raise ConfigError(
                f"{self.num_accelerators} accelerators less {self.num_trainer_accelerators} for "
                f"training are not replicas of {self.accelerators_per_replica}."
            )
        if not 0 <= self.num_elastic <= self.num_replicas:
            raise ConfigError(f"num_elastic={self.num_elastic} of {self.num_replicas} replicas.")
        if self.num_elastic + self.num_trainer_accelerators < 1:
            raise ConfigError("no accelerator can train: make some elastic, or the trainer's own.")

    @property
    def num_replicas(self) -> int:
        spare = self.num_accelerators - self.num_trainer_accelerators
        return spare // self.accelerators_per_replica


class VirtualTime:
    """A clock, the event queue that moves it, and a trainer that does one command at a time."""

    def __init__(self):
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._delivered: collections.deque[Any] = collections.deque()
        self._trainer_free_s = 0.0

    def clock(self) -> float:
        return self.now

    def put(self, event: Any) -> None:
        self._delivered.append(event)

    def get(self, *, timeout: float) -> Any:
        deadline_s = self.now + timeout
        while not self._delivered:
            if not self._heap or self._heap[0][0] > deadline_s:
                self.now = deadline_s
                raise queue.Empty
            self.now = self._heap[0][0]
            heapq.heappop(self._heap)[2]()
        return self._delivered.popleft()

    def start(self, emit: Callable[[Any], None]) -> None: ...

    def close(self, timeout_s: float) -> None: ...

    def _at(self, time_s: float, happen: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_s, self.now), self._sequence, happen))

    def _command(self, seconds: float, make: Callable[[float, float], Any]) -> float:
        """The trainer's next command, answered by the event `make` of begin and end; its end."""
        start_s = max(self.now, self._trainer_free_s)
        end_s = self._trainer_free_s = start_s + seconds
        self._at(end_s, lambda: self.put(make(start_s, end_s)))
        return end_s


class SimulatedWorld(VirtualTime):
    """ReplicaGroup with every optional ability, TrainerGroup, VerifierPool, queue and clock."""

    def __init__(
        self,
        *,
        layout: Layout,
        trace: LengthTrace,
        cost: CostModel,
        reuses_cache: bool = True,
    ):
        """`reuses_cache` false: a group that moves is prefilled again."""
        super().__init__()
        self.layout = layout
        self.trace = trace
        self.cost = cost
        self.num_replicas = layout.num_replicas
        self.groups_per_replica = max(
            1, round(layout.places_per_slot * layout.slots_per_replica / trace.group_size)
        )
        self.elastic_replicas = tuple(
            range(layout.num_replicas - layout.num_elastic, layout.num_replicas)
        )
        self.replicas = [
            SimulatedReplica(cost, layout.slots_per_replica) for _ in range(layout.num_replicas)
        ]
        self.versions_of: dict[int, list[int]] = {}  # ticket -> versions of its tokens, in order
        self.trained: list[tuple[float, int, tuple[Group, ...]]] = []  # begin, step, groups
        self.marks: list[dict[str, float]] = []  # totals at the end of each step
        self.totals: collections.Counter[str] = collections.Counter()
        self._reuses_cache = reuses_cache
        self._tickets: dict[int, Ticket] = {}

    # ---- ReplicaGroup ---------------------------------------------------------------------------

    def assign(self, replica: int, version: int) -> None:
        host = self._reach(replica)
        assert not host.tickets(), "a replica changes version only when empty"
        host.version = version
        host.hold(self.now, self.cost.assign_s)
        self.totals["weight_bytes"] += int(self.cost.weight_bytes)

    def dispatch(self, replica: int, tickets: Sequence[Ticket], version: int) -> None:
        host = self._reach(replica)
        assert host.version == version, "the version tagged at dispatch is the hosted one"
        assert not host.is_paused, "no work is sent to devices that train"
        for ticket in tickets:
            lengths = self.trace.lengths(problem_number(ticket), ticket.issue)
            self._tickets[ticket.number] = ticket
            self.versions_of[ticket.number] = [version]
            responses = [Running(i, 0, float(length)) for i, length in enumerate(lengths)]
            host.add(ticket.number, self.trace.prompt_tokens, responses)
            host.hold(self.now, self.trace.prompt_tokens * self.cost.prefill_token_s)
        assert len(host.tickets()) <= self.groups_per_replica, "more groups than slots"
        self._set_alarm(replica)

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None:
        host = self._reach(replica)
        for number in set(ticket_numbers) & set(host.tickets()):
            _, responses = host.remove(number)
            lengths = self._lengths(number)
            left = sum(response.left for response in responses)
            self.totals["tokens_wasted"] += int(lengths.sum() - left)
        self._set_alarm(replica)

    def migrate(self, source: int, target: int, ticket_numbers: Sequence[int]) -> None:
        origin, host = self._reach(source), self._reach(target)
        assert origin.version == host.version, "groups move between replicas of one version"
        numbers = tuple(number for number in ticket_numbers if number in set(origin.tickets()))
        num_tokens = 0
        for number in numbers:
            prompt, responses = origin.remove(number)
            host.add(number, prompt, responses)
            num_tokens += prompt + sum(response.written for response in responses)
        moved, again = (num_tokens, 0) if self._reuses_cache else (0, num_tokens)
        seconds = moved * self.cost.cache_token_bytes / self.cost.move_bytes_per_s
        host.hold(self.now, seconds + again * self.cost.prefill_token_s)
        self.totals["tokens_moved"] += moved
        self.totals["tokens_reprefilled"] += again
        self._set_alarm(source)
        self._set_alarm(target)
        self.put(records.GroupsMigrated(source, target, numbers, moved, again))

    def swap(self, replica: int, version: int, *, keep_cache: bool) -> None:
        host = self._reach(replica)
        host.version = version
        for number in host.tickets():
            self.versions_of[number].append(version)
        again = 0 if keep_cache else int(host.context)
        host.hold(self.now, self.cost.assign_s + again * self.cost.prefill_token_s)
        self.totals["tokens_reprefilled"] += again
        self.totals["weight_bytes"] += int(self.cost.weight_bytes)
        self._set_alarm(replica)

    def lend(self, replicas: Sequence[int]) -> None:
        for replica in replicas:
            host = self._reach(replica)
            host.is_paused = False
            host.hold(self.now, self.cost.switch_s)
            self._set_alarm(replica)

    def reclaim(self, replicas: Sequence[int]) -> None:
        for replica in replicas:
            host = self._reach(replica)
            host.is_paused = True
            host.epoch += 1
        self._trainer_free_s = max(self._trainer_free_s, self.now) + self.cost.switch_s

    def mend(self, replica: int) -> None:
        """No replica fails here."""

    def cache_pressure(self) -> float:
        fullest = max([replica.context for replica in self.replicas])
        return fullest / self.cost.cache_capacity_tokens

    # ---- TrainerGroup ---------------------------------------------------------------------------

    def score(self, groups: Sequence[Group]) -> None:
        self._score(groups, self._trainer_devices())

    def score_everywhere(self, groups: Sequence[Group]) -> None:
        """Generators that are not the trainer's stop for as long as it takes."""
        seconds = self._score(groups, self.layout.num_accelerators)
        for number, replica in enumerate(self.replicas):
            if not replica.is_paused:
                self._reach(number).hold(self.now, seconds)
                self._set_alarm(number)

    def train(self, step: int, groups: Sequence[Group]) -> None:
        self.trained.append((self.now, step, tuple(groups)))
        tokens = sum(int(self._lengths(group.ticket.number).sum()) for group in groups)
        share = (1 - self.cost.score_share) * self.cost.train_device_s
        devices = self._trainer_devices()
        seconds = self.cost.step_fixed_s + share * tokens / devices

        def finished(start: float, end: float) -> rl_events.StepTrained:
            self._mark(step, tokens)
            return rl_events.StepTrained(step=step, metrics={}, start_s=start, end_s=end)

        self._count_trainer(self._command(seconds, finished), seconds, devices)

    def publish(self, version: int) -> None:
        seconds = self.cost.publish_s
        end_s = self._command(seconds, lambda s, e: rl_events.VersionPublished(version, s, e))
        self._count_trainer(end_s, seconds, self._trainer_devices())

    def save(self, step: int, control: Mapping[str, Any]) -> None:
        """Nothing is saved, at once."""
        self._at(self.now, lambda: self.put(rl_events.Saved(step, "", self.now, self.now)))

    def _score(self, groups: Sequence[Group], devices: int) -> float:
        scored = tuple(groups)
        tokens = sum(int(self._lengths(group.ticket.number).sum()) for group in scored)
        seconds = self.cost.score_share * self.cost.train_device_s * tokens / devices
        end_s = self._command(seconds, lambda s, e: rl_events.GroupsScored(scored, s, e))
        self._count_trainer(end_s, seconds, self._trainer_devices())
        return seconds

    def _count_trainer(self, end_s: float, seconds: float, devices: int) -> None:
        self.totals["trainer_device_ms"] += int(1e3 * seconds * devices)
        self.totals["trainer_ms"] += int(1e3 * (end_s - self.now))

    def _trainer_devices(self) -> int:
        taken = sum(self.replicas[number].is_paused for number in self.elastic_replicas)
        devices = self.layout.num_trainer_accelerators
        return max(1, devices + taken * self.layout.accelerators_per_replica)

    def _mark(self, step: int, tokens: int) -> None:
        for number in range(self.num_replicas):
            self._set_alarm(number, reach=True)
        busy_s = sum(r.busy_s for r in self.replicas) * self.layout.accelerators_per_replica
        self.marks.append(
            {
                "step": step,
                "at_s": self.now,
                "tokens": tokens,
                "busy_device_s": busy_s + self.totals["trainer_device_ms"] / 1e3,
                "slot_s": sum(replica.slot_s for replica in self.replicas),
                "tokens_decoded": sum(replica.num_tokens for replica in self.replicas),
                **self.totals,
            }
        )

    # ---- VerifierPool ---------------------------------------------------------------------------

    def submit(self, requests: Sequence[Any]) -> list[Future[Verdict]]:
        futures: list[Future[Verdict]] = []
        for _ in requests:
            future: Future[Verdict] = Future()
            self._at(self.now + self.cost.verify_s, lambda f=future: f.set_result(correct()))
            futures.append(future)
        return futures

    # ---- parts ----------------------------------------------------------------------------------

    def _reach(self, replica: int) -> Any:
        """The replica, brought to the present; what ended on the way is reported.

        A `SimulatedReplica`, or what stands for one.
        """
        host = self.replicas[replica]
        for number in host.advance(self.now):
            ticket, version = self._tickets[number], self.versions_of[number][0]
            group = Group(ticket=ticket, version=version, rollouts=(placeholder(number, version),))
            self.put(records.GroupGenerated(group))
        return host

    def _set_alarm(self, replica: int, *, reach: bool = False) -> None:
        host = self._reach(replica) if reach else self.replicas[replica]
        host.epoch += 1
        end_s = host.next_end_s()
        if end_s is not None:

            def ring(epoch: int = host.epoch) -> None:
                if self.replicas[replica].epoch == epoch:
                    self._set_alarm(replica, reach=True)

            self._at(end_s, ring)

    def _lengths(self, number: int) -> np.ndarray:
        ticket = self._tickets[number]
        return self.trace.lengths(problem_number(ticket), ticket.issue)


def problem_number(ticket: Ticket) -> int:
    return ticket.problem.seed


def placeholder(ticket: int, version: int) -> Rollout:
    """Stands for the G rollouts of a group, whose tokens nobody looks at."""
    return dataclasses.replace(_PLACEHOLDER, ticket=ticket, versions=((0, version),))


_PLACEHOLDER = Rollout(
    ticket=0,
    attempt=0,
    prompt=np.zeros(0, np.int32),
    tokens=np.zeros(0, np.int32),
    loss_mask=np.zeros(0, bool),
    engine_logprob=np.zeros(0, np.float32),
    behavior_logprob=np.zeros(0, np.float32),
    sampling=SamplingSettings(),
    versions=((0, 0),),
    finish_reason="stop",
)
