"""Verifier "environment": the environment that posed the problem judges the answer.

Deterministic, without a reference answer; nothing of an answer is evaluated outside the sandbox. It
has two older ids: `logic`, of puzzles, and `resyn`, of packaged modules. Its limits and false
classes are those of the environment. An answer that does not have the form its prompt states is
wrong with reason `format` (ReSyn rewards the form in the same way): a right answer in another form
is wrong, and a module accepts what its own rule accepts. Ungradable: a problem that cannot be read,
a module that raises or is too slow, a sandbox that fails.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any

from loong_jax import environments
from loong_jax.environments.environment import name_in
from loong_jax.environments.modules import Module, ModuleEnvironment, ModuleRunner
from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import IsolationTier, Verdict
from loong_jax.sandbox import Limits, Sandbox, SandboxLost

MAX_EVIDENCE_CHARS = 500


class EnvironmentVerifier:
    """Judges by the environment, or the module, that a problem's arguments name; safe in threads.

    `limits` are those of one program as plain numbers, such as {"cpu_s": 0.5}. The tier that a
    program ran at is in its verdict; where `min_tier` cannot be had, VerifierError is raised here.
    Modules, which are foreign code, never run below `namespaces`.
    """

    def __init__(
        self, *, limits: dict[str, Any] | None = None, min_tier: IsolationTier = "process"
    ):
        self._sandbox = Sandbox(Limits(**(limits or {})), min_tier=min_tier)
        self._modules: ModuleRunner | None = None
        self._environments: dict[str, Any] = {}

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        """Judges a whole response, tags included; VerifierError for an unknown environment."""
        start, num_runs = time.perf_counter(), self._sandbox.num_runs
        judge = self._environment(problem)
        if judge is None or "state" not in problem.arguments:
            judged = verdict.ungradable("problem", "its arguments hold no environment and state")
        else:
            extracted = verdict.extract_answer if judge.is_marked else verdict.answer_span
            judged = _judged(judge, problem, extracted(response_text))
        ran = self._sandbox.num_runs > num_runs
        return dataclasses.replace(
            judged,
            evidence=judged.evidence[:MAX_EVIDENCE_CHARS],
            isolation=self._sandbox.tier if ran else judged.isolation,
            cost_s=time.perf_counter() - start,
        )

    def verify_record(self, record: Mapping[str, Any]) -> Verdict:
        """Verdict of one line of `loong verify logic`.

        That is {"task", "level", "seed", "answer"}, which draws the problem again, or {"problem",
        "answer"} with the problem itself, as `Problem.to_json` writes it.
        """
        answer = record.get("answer")
        if not isinstance(answer, str):
            return verdict.ungradable("record", "answer is missing or no text")
        if "problem" in record:
            given = record["problem"]
            arguments = given.get("arguments") if isinstance(given, dict) else None
            if not isinstance(arguments, dict):
                return verdict.ungradable("record", "problem holds no arguments")
            return self._verify_arguments(arguments, answer)
        name, level, seed = (record.get(key) for key in ("task", "level", "seed"))
        if not isinstance(name, str) or name not in environments.ENVIRONMENTS:
            known = ", ".join(sorted(environments.ENVIRONMENTS))
            return verdict.ungradable("record", f"task {name!r} is not one of {known}")
        if type(level) is not int or level not in environments.LEVELS or type(seed) is not int:
            return verdict.ungradable("record", f"level={level!r}, seed={seed!r} draw no problem")
        return self._verify_arguments(_drawn(name, level, seed), answer)

    def close(self) -> None:
        self._sandbox.close()
        if self._modules is not None:
            self._modules.close()

    def _verify_arguments(self, arguments: Mapping[str, Any], answer: str) -> Verdict:
        problem = Problem(
            uid="record", domain="logic", environment="record", level=1, seed=0, canonical="",
            prompt="", verifier="environment", arguments=arguments,
        )  # fmt: skip
        try:
            return self.verify(problem, answer)
        except VerifierError as error:
            return verdict.ungradable("problem", str(error))

    def _environment(self, problem: Problem) -> Any:
        """None where the arguments name none."""
        arguments = problem.arguments
        if "module" in arguments:
            self._modules = self._modules or ModuleRunner()
            module = Module(str(arguments["module"]))
            return ModuleEnvironment(module=module, name=problem.environment, runner=self._modules)
        if (named := name_in(arguments)) is None:
            return None
        name = str(named)
        if name not in self._environments:
            try:
                made = environments.get_environment(name, run=self._sandbox.values)
            except ValueError as error:
                raise VerifierError(
                    f"problem {problem.uid}: {error} Was it made by another version?"
                ) from error
            self._environments[name] = made
        return self._environments[name]


def _judged(judge: Any, problem: Problem, answer: str | Verdict) -> Verdict:
    if isinstance(answer, Verdict):
        return answer
    try:
        return judge.verify(problem, answer)
    except SandboxLost as error:
        return verdict.ungradable("sandbox", str(error))
    except Exception as error:  # whatever a broken state makes of our code is no answer's
        return verdict.ungradable("problem", f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=4096)
def _drawn(name: str, level: int, seed: int) -> Mapping[str, Any]:
    return environments.get_environment(name).problem(level, seed).arguments
