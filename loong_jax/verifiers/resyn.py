"""Verifier "resyn": the module that posed a problem judges the answer, inside the sandbox.

The answer enters as data of one call in a process of its own; what comes out is one truth value,
read outside. The process holds the state of the problem and no answer but this one. Deterministic,
as admission found the module to be. Accepts falsely what the module's own rule accepts: packages
are gated for that before they reward. Ungradable: a module that raises or is too slow, a sandbox
that fails, a problem without a module.
"""

import dataclasses
import time
from typing import TYPE_CHECKING

from loong_jax.environments import modules
from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.verifiers import extract, verdict
from loong_jax.verifiers.verdict import IsolationTier, Verdict

if TYPE_CHECKING:
    from loong_jax.environments.problem import Problem

MAX_EVIDENCE_CHARS = 300


class ResynVerifier:
    """Judges problems whose arguments hold `module`, a source, and `state`, a JSON value."""

    def __init__(self, *, min_tier: IsolationTier = "namespaces"):
        self._runner = ModuleRunner(min_tier=min_tier)

    def verify(self, problem: "Problem", response_text: str) -> Verdict:
        """Judges a whole response, tags included."""
        start = time.perf_counter()
        answer = extract.extract_answer(response_text)
        source = problem.arguments.get("module")
        if isinstance(answer, Verdict):
            judged = answer
        elif not isinstance(source, str) or "state" not in problem.arguments:
            judged = verdict.ungradable("problem", "its arguments hold no module and state")
        else:
            state = problem.arguments["state"]
            judged = modules.judge(self._runner, Module(source), state, answer)
        return dataclasses.replace(
            judged,
            evidence=judged.evidence[:MAX_EVIDENCE_CHARS],
            cost_s=time.perf_counter() - start,
        )

    def close(self) -> None:
        self._runner.close()
