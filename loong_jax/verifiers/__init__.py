"""Judging answers: verdicts, verifiers, and the pool that runs them.

Knows: child, environments, errors, interrupts, options, own, problems, sandbox, syntax.
"""

import dataclasses
import importlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from loong_jax.errors import ConfigError, VerifierError
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict

VERIFIERS: dict[str, str] = {
    "code": "loong_jax.verifiers.code.verifier:CodeVerifier",
    "constraints": "loong_jax.verifiers.constraints:ConstraintsVerifier",
    "coq": "loong_jax.verifiers.formal.coq:CoqVerifier",
    "environment": "loong_jax.verifiers.environment:EnvironmentVerifier",
    "judge": "loong_jax.verifiers.judge.verifier:JudgeVerifier",
    "lean": "loong_jax.verifiers.formal.lean:LeanVerifier",
    "logic": "loong_jax.verifiers.environment:EnvironmentVerifier",
    "loongbench": "loong_jax.verifiers.loongbench.verifier:LoongBenchVerifier",
    "math": "loong_jax.verifiers.answers.verifier:MathVerifier",
    "metamath": "loong_jax.verifiers.formal.metamath:MetamathVerifier",
    "resyn": "loong_jax.verifiers.environment:EnvironmentVerifier",
}

__all__ = [
    "VERIFIERS", "OfRecords", "Verdict", "Verifier", "get_verifier", "own_table", "try_all",
]  # fmt: skip


@runtime_checkable
class Verifier(Protocol):
    """Judges whole responses. No answer makes it raise: what it cannot judge is ungradable."""

    def verify(self, problem: Problem, response_text: str) -> Verdict: ...

    def close(self) -> None:
        """Ends what it started, such as a sandbox."""
        ...


class OfRecords:
    """A verifier of records, which are the lines of a file and the arguments of a problem.

    `judged` gives the verdict of a record, whose `answer` is a whole response.
    """

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        return self.verify_record({**problem.arguments, "answer": response_text})

    def verify_record(self, record: Mapping[str, Any]) -> Verdict:
        start = time.perf_counter()
        judged = self.judged(record)
        cost_s = time.perf_counter() - start
        return dataclasses.replace(judged, evidence=judged.evidence[:500], cost_s=cost_s)

    def judged(self, record: Mapping[str, Any]) -> Verdict:
        raise NotImplementedError

    def close(self) -> None:
        """Holds nothing."""


def get_verifier(name: str, *, table: Mapping[str, str] | None = None, **options: Any) -> Verifier:
    """Builds the verifier of this name; `options` are its arguments.

    `table` adds names to ours, each of `module:CLASS` or `FILE.py:CLASS`.
    """
    known = VERIFIERS | dict(table or {})
    if name not in known:
        raise VerifierError(f"verifier {name!r} is unknown. Choose one of {sorted(known)}.")
    if ".py:" in known[name]:
        from loong_jax import own

        contract = own.Contract((), ("verify", "close"), "docs/how-to/add_verifier.md")
        verifier = own.built(known[name], options)
        own.refuse_lacking(verifier, name, contract)
        return verifier
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(**options)


def try_all(table: Mapping[str, str]) -> None:
    """Builds all verifiers of a table: ConfigError for what their files raise."""
    from loong_jax import own

    for name in table:
        own.call(get_verifier(name, table=table), "close")


def own_table(names: Sequence[str]) -> dict[str, str]:
    """Verifiers of your own, each `DIR/FILE.py:CLASS`, by the names `FILE.py:CLASS`."""
    table = {}
    for name in names:
        file, _, kind = name.rpartition(":")
        short = f"{Path(file).name}:{kind}"
        if not file.endswith(".py"):
            raise ConfigError(
                f"verifier={name!r} is not of the form FILE.py:CLASS. Name both, with .py."
            )
        if table.setdefault(short, name) != name:
            raise ConfigError(
                f"two verifiers are named {short!r}: {table[short]} and {name}. Give every file or "
                "class another name."
            )
    return table
