"""Whole batches of responses to the verifier pool, as evaluation asks for them."""

import time
from collections.abc import Sequence

from loong_jax.environments import Problem
from loong_jax.orchestrator.protocols import VerifierPool
from loong_jax.rollout.records import Rollout
from loong_jax.verifiers.pool import VerifierRequest
from loong_jax.verifiers.verdict import Verdict

DEADLINE_S, TIMEOUT_S = 20.0, 600.0  # of one verdict, of a batch


class Judge:
    """`judge(problems, rollouts)` gives the verdict on each rollout, in order.

    `judge.of_texts(problems, texts)` gives those on whole responses. `name` begins the keys of its
    requests: judges that share a pool have different ones.
    """

    def __init__(
        self, pool: VerifierPool, deadline_s: float = DEADLINE_S, *, name: str = "evaluation"
    ):
        self._pool, self._deadline_s, self._name = pool, deadline_s, name
        self._num_batches = 0

    def __call__(self, problems: Sequence[Problem], rollouts: Sequence[Rollout]) -> list[Verdict]:
        return self.of_texts(problems, [rollout.text for rollout in rollouts])

    def of_texts(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        self._num_batches += 1
        futures = self._pool.submit(
            [
                VerifierRequest(
                    key=f"{self._name}/{self._num_batches}/{index}",
                    problem=problem,
                    response_text=text,
                    deadline_s=self._deadline_s,
                )
                for index, (problem, text) in enumerate(zip(problems, texts, strict=True))
            ]
        )
        deadline = time.monotonic() + TIMEOUT_S
        return [future.result(max(deadline - time.monotonic(), 0.1)) for future in futures]
