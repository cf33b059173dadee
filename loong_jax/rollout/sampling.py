"""Sampling many problems to the end with one set of weights, as evaluation needs it."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from loong_jax.environments.problem import Problem
from loong_jax.rollout.engine import Engine, Params
from loong_jax.rollout.records import Group, Rollout, SamplingSettings, Ticket
from loong_jax.rollout.replica import EncodePrompt, Replica

Progress = Callable[[int, int], None]  # finished groups, all groups


def generate_all(
    engine: Engine,
    params: Params,
    problems: Sequence[Problem],
    *,
    num_samples: int,
    sampling: SamplingSettings,
    seed: int,
    version: int = 0,
    issues: Sequence[int] | None = None,
    encode_prompt: EncodePrompt | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Group]:
    """Yields the group of every problem as it completes; `ticket.number` is the problem's index.

    Equal problems draw equal samples unless `issues` (one per problem, default 0) tells them apart.
    """
    replica = Replica(
        engine,
        group_size=num_samples,
        sampling=sampling,
        seed=seed,
        encode_prompt=encode_prompt,
        clock=clock,
    )
    replica.assign(version, params)
    replica.submit(
        Ticket(number=i, problem=problem, issue=issues[i] if issues else 0)
        for i, problem in enumerate(problems)
    )
    num_finished = 0
    while not replica.is_empty:
        groups, _ = replica.step()
        yield from groups
        num_finished += len(groups)
        if progress is not None and groups:
            progress(num_finished, len(problems))


class ProblemSampler:
    """`sampler(problems, num_samples, sampling)` gives the rollouts of each problem, in order.

    A problem that comes again gets fresh samples; a sampler with the same seed repeats the
    sequence, so two policies meet the same random numbers.
    """

    def __init__(
        self,
        engine: Engine,
        params: Params,
        *,
        seed: int,
        version: int = 0,
        encode_prompt: EncodePrompt | None = None,
        progress: Progress | None = None,
    ):
        self._engine, self._params = engine, params
        self._seed, self._version = seed, version
        self._encode, self._progress = encode_prompt, progress
        self._issued: Counter[str] = Counter()

    def __call__(
        self, problems: Sequence[Problem], num_samples: int, sampling: SamplingSettings
    ) -> list[list[Rollout]]:
        issues = []
        for problem in problems:
            issues.append(self._issued[problem.uid])
            self._issued[problem.uid] += 1
        rollouts: list[list[Rollout]] = [[] for _ in problems]
        for group in generate_all(
            self._engine,
            self._params,
            problems,
            num_samples=num_samples,
            sampling=sampling,
            seed=self._seed,
            version=self._version,
            issues=issues,
            encode_prompt=self._encode,
            progress=self._progress,
        ):
            rollouts[group.ticket.number] = list(group.rollouts)
        return rollouts
