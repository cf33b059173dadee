"""Scoring and judging that take no time: no array is touched, no process asked."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from loong_jax.problems.verdict import Verdict
from loong_jax.rollout.records import Group
from loong_jax.verifiers.pool import VerifierRequest


def scored_as_sampled(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with their engine log-probabilities for behaviour ones."""
    return tuple(
        group.replace_rollouts(
            tuple(
                dataclasses.replace(rollout, behavior_logprob=rollout.engine_logprob)
                for rollout in group.rollouts
            )
        )
        for group in groups
    )


class AtOnce:
    """A pool that judges in the calling thread."""

    def __init__(self, judge: Callable[[VerifierRequest], Verdict]):
        self.judge = judge
        self.seen: list[str] = []  # texts of responses

    def submit(self, requests: Sequence[VerifierRequest]) -> list[Future[Verdict]]:
        futures: list[Future[Verdict]] = [Future() for _ in requests]
        for future, request in zip(futures, requests, strict=True):
            self.seen.append(request.response_text)
            future.set_result(self.judge(request))
        return futures

    def close(self, timeout_s: float) -> None: ...
