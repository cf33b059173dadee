"""Verifier "environment": the environment that posed the problem judges the answer.

Deterministic, without a reference answer. Its limits and false classes are those of the
environment; answers of code environments run in the sandbox and nowhere else.
"""

import dataclasses
import time
from typing import Any

from loong_jax import environments
from loong_jax.environments.problem import Problem
from loong_jax.errors import VerifierError
from loong_jax.verifiers import extract, verdict
from loong_jax.verifiers.sandbox import Limits, SandboxLost, SandboxRunner
from loong_jax.verifiers.verdict import IsolationTier, Verdict

MAX_EVIDENCE_CHARS = 500


class EnvironmentVerifier:
    """Judges by `problem.arguments["environment"]`; a code environment is given our sandbox.

    `limits` are those of one program as plain numbers, such as {"cpu_s": 0.5}. The tier that a
    program ran at is in its verdict; where `min_tier` cannot be had, VerifierError is raised here.
    """

    def __init__(
        self,
        *,
        limits: dict[str, Any] | None = None,
        min_tier: IsolationTier = "process",
        runner: SandboxRunner | None = None,
    ):
        self._runner = runner or SandboxRunner(Limits(**(limits or {})), min_tier)
        self._environments: dict[str, Any] = {}

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        """Judges a whole response, tags included; VerifierError for an unknown environment."""
        start, num_runs = time.perf_counter(), self._runner.num_runs
        judge = self._environment(problem)
        answer = extract.extract_answer(response_text)
        if isinstance(answer, Verdict):
            judged = answer
        else:
            try:
                judged = judge.verify(problem, answer)
            except SandboxLost as error:
                judged = verdict.ungradable("sandbox", str(error))
        ran = self._runner.num_runs > num_runs
        return dataclasses.replace(
            judged,
            evidence=judged.evidence[:MAX_EVIDENCE_CHARS],
            isolation=self._runner.tier if ran else "none",
            cost_s=time.perf_counter() - start,
        )

    def close(self) -> None:
        self._runner.close()

    def _environment(self, problem: Problem) -> Any:
        name = str(problem.arguments.get("environment"))
        if name not in self._environments:
            kind = environments.kind_of(name)
            if kind is None:
                raise VerifierError(
                    f"problem {problem.uid} names environment {name!r}, which is not one of "
                    f"{sorted(environments.ENVIRONMENTS)}. Was it made by another version?"
                )
            takes_runner = any(field.name == "run" for field in dataclasses.fields(kind))
            settings = {"run": self._runner} if takes_runner else {}
            self._environments[name] = environments.get_environment(name, **settings)
        return self._environments[name]
