"""Verifier "loongbench": rows of LoongBench, by the rules of their twelve domains."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers.loongbench import domains
from loong_jax.verifiers.loongbench.compare import compare
from loong_jax.verifiers.loongbench.domains import Row
from loong_jax.verifiers.loongbench.rationales import Execution, RationaleRunner
from loong_jax.verifiers.maths import MathVerifier

MAX_ANSWER_CHARS = 1_000_000
MAX_EVIDENCE_CHARS = 300


class LoongBenchVerifier:
    """Judges answers by the domain of their question.

    Deterministic, and nothing of an answer is executed; rationales are, in the sandbox, and only
    where a record brings one instead of an answer. Containers are read as literals, numbers and
    formulas by the maths verifier, with the tolerance of the domain and of the row.

    Known false classes. Accepts: in physics and chemistry, what rounds to the gold's digits (two at
    least); a tuple for a list; in medicine, what lies within 5 % of a decimal gold. Rejects: a
    second right solution where the gold is one of many (schedules, colourings), prose for a
    container. Ungradable: a rationale whose package is missing, and what the maths verifier
    leaves undecided.
    """

    def __init__(self, *, packages: Path | str | None = None):
        self._maths = MathVerifier()
        self._rationales = RationaleRunner(packages)

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        """Judges a response; `arguments` name the `domain`, perhaps a `tolerance`."""
        if problem.gold is None:
            return verdict.ungradable("no gold", "the problem has no reference answer")
        row = domains.read_row(
            {"domain": "", **problem.arguments, "gold": problem.gold, "question": problem.prompt}
        )
        return self.judge(row, response_text)

    def judge(self, row: Row, answer: str) -> Verdict:
        """Verdict on one answer, which is text; never raises for what it holds."""
        start = time.perf_counter()
        if len(answer) > MAX_ANSWER_CHARS:
            judged = verdict.wrong("format", f"more than {MAX_ANSWER_CHARS} characters")
        else:
            try:
                judged = compare(row, answer, self._maths)
            except RecursionError:
                judged = verdict.ungradable("cost", "nested too deeply")
        return dataclasses.replace(
            judged,
            evidence=judged.evidence[:MAX_EVIDENCE_CHARS],
            cost_s=time.perf_counter() - start,
        )

    def verify_record(self, record: Mapping[str, Any]) -> Verdict:
        """Verdict of one line: a row of LoongBench with an `answer`, or without one.

        Without one its `rationale` is executed and what it prints is judged.
        """
        try:
            row = domains.read_row(record)
        except VerifierError as error:
            return verdict.ungradable("record", str(error))
        answer = record.get("answer")
        if answer is None and row.rationale:
            return self.check_rationale(row)[1]
        if not isinstance(answer, str):
            return verdict.ungradable("record", "answer is missing or no text")
        return self.judge(row, answer)

    def check_rationale(self, row: Row) -> tuple[Execution, Verdict]:
        """Executes the row's rationale and judges what it printed."""
        ran = self._rationales.run(row.rationale, row.packages)
        if ran.missing:
            judged = verdict.ungradable("missing package", ran.missing)
        elif ran.is_ours:
            judged = verdict.ungradable("sandbox", ran.failure)
        elif ran.failure:
            judged = verdict.ungradable("rationale", ran.failure)
        else:
            judged = self.judge(row, ran.output)
        return ran, dataclasses.replace(judged, isolation="namespaces")

    def close(self) -> None:
        self._maths.close()
        self._rationales.close()
