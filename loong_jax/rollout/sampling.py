"""Sampling many problems to the end with one set of weights, as evaluation needs it."""

import functools
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loong_jax.models.parameters import Weights
from loong_jax.problems.problem import Problem
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from loong_jax.rollout.slot_engine import SlotEngine

Progress = Callable[[int, int], None]  # finished groups, all groups


def generate_all(
    engine: SlotEngine,
    params: Weights,
    problems: Sequence[Problem],
    *,
    num_samples: int,
    version: int = 0,
    issues: Sequence[int] | None = None,
    num_threads: int = 1,
    progress: Progress | None = None,
    **settings: Any,
) -> Iterator[Group]:
    """Yields the group of every problem as it completes; `ticket.number` is the problem's index.

    Equal problems draw equal samples unless `issues` (one per problem, default 0) tells them apart.
    Each thread has a replica of its own: on CPU a block of a small model keeps one core busy.
    `settings` are those of `Replica`, `sampling` and `seed` among them.
    """
    assert num_threads >= 1, f"num_threads={num_threads}"
    tickets = [
        Ticket(number=i, problem=problem, issue=issues[i] if issues else 0)
        for i, problem in enumerate(problems)
    ]

    def make_replica() -> Replica:
        replica = Replica(engine, group_size=num_samples, **settings)
        replica.assign(version, params)
        return replica

    if num_threads > 1:
        engine.warm_up(params)  # or each thread would compile
        groups = _in_threads(make_replica, [tickets[i::num_threads] for i in range(num_threads)])
    else:
        groups = _finish(make_replica(), tickets, threading.Event())
    for num_finished, group in enumerate(groups, start=1):
        yield group
        if progress is not None:
            progress(num_finished, len(problems))


def _finish(replica: Replica, tickets: Sequence[Ticket], stop: threading.Event) -> Iterator[Group]:
    """Groups as they end; none after the decode block in which `stop` is set."""
    replica.submit(tickets)
    while not (replica.is_empty or stop.is_set()):
        groups, _ = replica.step()
        yield from groups


def _in_threads(
    make_replica: Callable[[], Replica], shares: Sequence[Sequence[Ticket]]
) -> Iterator[Group]:
    """Groups of all shares as they come; the first error of a thread is raised once all ended."""
    found: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
    stop = threading.Event()

    def work(share: Sequence[Ticket]) -> None:
        try:
            for group in _finish(make_replica(), share, stop):
                found.put(group)
        except Exception:
            stop.set()
            raise
        finally:
            found.put(None)

    with ThreadPoolExecutor(len(shares)) as pool:
        futures = [pool.submit(work, share) for share in shares]
        try:
            for _ in shares:
                yield from iter(found.get, None)
        finally:
            stop.set()
    for future in futures:
        future.result()


class ProblemSampler:
    """`sampler(problems, num_samples, sampling)` gives the rollouts of each problem, in order.

    A problem that comes again gets fresh samples; a sampler with the same seed repeats the
    sequence, so two policies meet the same random numbers.
    """

    def __init__(self, engine: SlotEngine, params: Weights, *, seed: int, **settings: Any):
        """`settings` are further ones of `generate_all`."""
        self._generate = functools.partial(generate_all, engine, params, seed=seed, **settings)
        self._issued: Counter[str] = Counter()

    def __call__(
        self, problems: Sequence[Problem], num_samples: int, sampling: SamplingSettings
    ) -> list[list[Rollout]]:
        issues = []
        for problem in problems:
            issues.append(self._issued[problem.uid])
            self._issued[problem.uid] += 1
        rollouts: list[list[Rollout]] = [[] for _ in problems]
        given = dict(num_samples=num_samples, sampling=sampling, issues=issues)
        for group in self._generate(problems, **given):
            rollouts[group.ticket.number] = list(group.rollouts)
        return rollouts
