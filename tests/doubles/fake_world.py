"""Replicas, trainer and verifiers that only take (virtual) time, to test the orchestrator.

One object plays all three groups of processes and the clock. Durations come from a seeded
generator, so a seed is a schedule; nothing sleeps and nothing runs in a thread.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from loong_jax.orchestrator.loop import LoopSettings, Orchestrator
from loong_jax.orchestrator.simulation.world import VirtualTime
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict, correct, ungradable, wrong
from loong_jax.rl import events as rl_events
from loong_jax.rl import rewards
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout import records
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
from tests.doubles.problems import made_problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeTimes:
    """Mean durations in virtual seconds; each is drawn between 0.1 and 1.9 times its mean."""

    generate_s: float = 1.0
    verify_s: float = 0.1
    score_s: float = 0.2
    train_s: float = 1.0
    publish_s: float = 0.05
    straggler_share: float = 0.05  # groups that take 20 times as long


class FakeWorld(VirtualTime):
    """ReplicaGroup, TrainerGroup, VerifierPool, event queue and clock in one."""

    def __init__(
        self,
        *,
        seed: int,
        num_replicas: int = 2,
        groups_per_replica: int = 4,
        group_size: int = 4,
        times: FakeTimes | None = None,
        outcome_of: Callable[[str, int, int], str] | None = None,
    ):
        super().__init__()
        self.num_replicas = num_replicas
        self.groups_per_replica = groups_per_replica
        self.hosted: list[int | None] = [None] * num_replicas
        self.decoding: list[set[int]] = [set() for _ in range(num_replicas)]
        self.versions_seen: list[tuple[int, int]] = []  # ticket, version it was written under
        self.trained: list[tuple[int, tuple[tuple[int, int], ...]]] = []  # step, (ticket, version)
        self.saved: list[tuple[int, Mapping[str, Any]]] = []
        self._group_size = group_size
        self._times = times or FakeTimes()
        self._random = random.Random(seed)
        self._outcome_of = outcome_of or (lambda uid, attempt, version: "mixed")

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        self._at(self.now + seconds, happen)

    def _draw(self, mean_s: float) -> float:
        return mean_s * self._random.uniform(0.1, 1.9)

    # ---- ReplicaGroup --------------------------------------------------------------------------

    def assign(self, replica: int, version: int) -> None:
        assert not self.decoding[replica], "a replica changes version only when empty"
        self.hosted[replica] = version

    def dispatch(self, replica: int, tickets: Sequence[Ticket], version: int) -> None:
        assert self.hosted[replica] == version, "version tagged at dispatch is the hosted one"
        for ticket in tickets:
            self.decoding[replica].add(ticket.number)
            assert len(self.decoding[replica]) <= self.groups_per_replica
            is_straggler = self._random.random() < self._times.straggler_share
            seconds = self._draw(self._times.generate_s) * (20 if is_straggler else 1)
            self._after(seconds, lambda t=ticket: self._finish(replica, t, version))

    def _finish(self, replica: int, ticket: Ticket, version: int) -> None:
        if ticket.number not in self.decoding[replica]:
            return  # cancelled
        self.decoding[replica].remove(ticket.number)
        self.versions_seen.append((ticket.number, version))
        rollouts = tuple(
            fake_rollout(ticket, attempt, version) for attempt in range(self._group_size)
        )
        self.put(records.GroupGenerated(Group(ticket=ticket, version=version, rollouts=rollouts)))

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None:
        self.decoding[replica] -= set(ticket_numbers)

    def mend(self, replica: int) -> None: ...

    def cache_pressure(self) -> float:
        return 0.0

    # ---- TrainerGroup --------------------------------------------------------------------------

    def score(self, groups: Sequence[Group]) -> None:
        scored, seconds = tuple(groups), self._draw(self._times.score_s)
        self._command(seconds, lambda s, e: rl_events.GroupsScored(scored, s, e))

    def train(self, step: int, groups: Sequence[Group]) -> None:
        self.trained.append((step, tuple((g.ticket.number, g.version) for g in groups)))
        seconds = self._draw(self._times.train_s)
        self._command(seconds, lambda s, e: rl_events.StepTrained(step, {}, s, e))

    def publish(self, version: int) -> None:
        seconds = self._draw(self._times.publish_s)
        self._command(seconds, lambda s, e: rl_events.VersionPublished(version, s, e))

    def save(self, step: int, control: Mapping[str, Any]) -> None:
        self.saved.append((step, control))
        self._after(0.0, lambda: self.put(rl_events.Saved(step, "", self.now, self.now)))

    # ---- VerifierPool --------------------------------------------------------------------------

    def submit(self, requests: Sequence[Any]) -> list[Future[Verdict]]:
        futures: list[Future[Verdict]] = []
        for request in requests:
            future: Future[Verdict] = Future()
            number, attempt = (int(part) for part in request.key.split("/")[-2:])
            kind = self._outcome_of(request.problem.uid, number, attempt)
            verdict = {
                "right": correct(),
                "wrong": wrong("value"),
                "broken": ungradable("worker lost"),
                "timeout": ungradable("timeout"),
                "mixed": correct() if attempt % 2 else wrong("value"),
            }[kind]
            self._after(
                self._draw(self._times.verify_s), lambda f=future, v=verdict: f.set_result(v)
            )
            futures.append(future)
        return futures


def fake_rollout(ticket: Ticket, attempt: int, version: int) -> Rollout:
    return Rollout(
        ticket=ticket.number,
        attempt=attempt,
        prompt=np.array([1], np.int32),
        tokens=np.array([2], np.int32),
        loss_mask=np.array([True]),
        engine_logprob=np.zeros(1, np.float32),
        behavior_logprob=np.zeros(1, np.float32),
        sampling=SamplingSettings(),
        versions=((0, version),),
        finish_reason="stop",
    )


def problem_at(cursor: int) -> Problem:
    return made_problem(cursor, uid=f"fake/{cursor}", environment="fake", verifier="fake")


class KeptLog:
    """A run's log that keeps everything."""

    def __init__(self):
        self.events: list[Mapping[str, Any]] = []
        self.steps: list[int] = []
        self.metrics: list[Mapping[str, Any]] = []
        self.groups: list[Sequence[Group]] = []  # of each step
        self.dispositions: list[str] = []

    def event(self, record: Mapping[str, Any]) -> None:
        self.events.append(record)

    def step(self, step: int, metrics: Mapping[str, Any], groups: Sequence[Group]) -> None:
        self.steps.append(step)
        self.metrics.append(metrics)
        self.groups.append(groups)

    def judged(self, group: Group, disposition: str) -> None:
        self.dispositions.append(disposition)


def made_loop(settings: Mapping[str, Any], **parts: Any) -> Orchestrator:
    """An orchestrator that rewards by the plain rule and keeps its log, unless it is given others.

    `settings` are fields of `LoopSettings`.
    """
    given = dict(name="test", grade=lambda group: rewards.grade(group, RewardRule()), log=KeptLog())
    return Orchestrator(settings=LoopSettings(**settings), **given | parts)


def loop_in(world: FakeWorld, settings: Mapping[str, Any], **parts: Any) -> Orchestrator:
    """One around such a world, which plays all other parts."""
    played = dict(trainer=world, replicas=world, verifiers=world, clock=world.clock, events=world)
    return made_loop({"stall_timeout_s": 1000.0, **settings}, **played | parts)
