"""Verifier "loongbench": rows of LoongBench, by the rules of their twelve domains."""

import dataclasses
import itertools
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers.answers import MathVerifier, extract
from loong_jax.verifiers.loongbench import domains, literals, quantities
from loong_jax.verifiers.loongbench.domains import Row
from loong_jax.verifiers.loongbench.quantities import Quantity
from loong_jax.verifiers.loongbench.rationales import Execution, RationaleRunner

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


# ---- one answer against one gold


MAX_CANDIDATES = 3
_LITERAL = re.compile(r"\s*(?:[\[({]|[A-Za-z][\w.]*\()")


def compare(row: Row, answer: str, maths: MathVerifier) -> Verdict:
    """Verdict on `answer`, a whole response or what a rationale printed."""
    if not answer.strip():
        return verdict.wrong("no answer", "the response is empty")
    if row.domain.is_text:
        return _lines(row.gold, answer)
    if " ".join(row.gold.split()) == " ".join(extract.statement(answer).split()):
        return verdict.correct("exact (whole)")
    gold = None if row.domain.is_maths else read_literal(row.gold)
    if isinstance(gold, dict | list | literals.Unordered):
        judged = _structure(row, gold, answer)
        if judged is not None:
            return judged
    quantity = quantities.read(row.gold)
    if quantity is not None and row.domain.rounds_to is not None:
        judged = _quantity(row, quantity, answer) or _formula(row, quantity, answer, maths)
        if judged is not None:
            return judged
    return maths.judge(
        row.gold,
        answer,
        kind="choice" if row.domain.is_choice else None,
        tolerance=allowed(row, quantity),
        question=row.question,
    )


def allowed(row: Row, gold: Quantity | None) -> float:
    """The permitted distance of a number from the gold, in the gold's own unit."""
    if gold is None:
        return row.tolerance
    domain = row.domain
    is_decimal = gold.is_decimal or gold.shift != 0
    share = domain.relative_of_decimals if is_decimal else 0.0
    limits = [row.tolerance, share * float(abs(gold.value))]
    if domain.rounds_to is not None and gold.digits:
        limits.append(quantities.rounding(gold, domain.rounds_to))
    return max(limits)


def read_literal(text: str) -> Any:
    if not _LITERAL.match(text):
        return None
    try:
        return literals.read(text)
    except literals.NotALiteral:
        return None


def _structure(row: Row, gold: Any, answer: str) -> Verdict | None:
    """Verdict where the answer is a literal too; None leaves it to the maths verifier."""
    limits = {"relative": row.domain.relative_of_decimals, "absolute": row.tolerance}
    for span in _candidates(answer):
        value = read_literal(span)
        if value is None:
            continue
        evidence = f"literal: {span[:120]} for {row.gold[:120]}"
        if literals.equal(gold, value, **limits):
            return verdict.correct(evidence)
        if isinstance(value, dict) == isinstance(gold, dict):
            return verdict.wrong("value", evidence)
    if isinstance(gold, dict):
        return verdict.wrong("type", "no dict where one belongs")
    return None


def _quantity(row: Row, gold: Quantity, answer: str) -> Verdict | None:
    """Verdict where the answer is a number with or without a unit; None where it is not."""
    for span in _candidates(answer):
        value = quantities.read(span)
        if value is None:
            continue
        evidence = f"quantity: {span[:120]} for {row.gold[:120]}"
        if quantities.agree(gold, value, allowed(row, gold)):
            return verdict.correct(evidence)
        return verdict.wrong("value", evidence)
    return None


def _formula(row: Row, gold: Quantity, answer: str, maths: MathVerifier) -> Verdict | None:
    """Verdict where the number is a formula, such as `5.12*pi cm^3`; in the gold's unit."""
    for span in _candidates(answer):
        parts = quantities.split(span)
        if parts is None or gold.unit is None or parts[1].dimensions != gold.unit.dimensions:
            continue
        ratio = parts[1].factor / gold.unit.factor
        scaled = parts[0] if ratio == 1 else f"({parts[0]})*({ratio})"
        return maths.judge(str(gold.value), scaled, tolerance=allowed(row, gold))
    return None


def _candidates(answer: str) -> list[str]:
    """The answer as a whole, then the spans that the response marks."""
    marked = itertools.islice(extract.spans(answer), MAX_CANDIDATES)
    spans = [extract.statement(answer), *(span.text for span in marked)]
    return list(dict.fromkeys(span.strip().strip("`$").strip() for span in spans))


def _lines(gold: str, answer: str) -> Verdict:
    """Compares a program's output line by line, save for space at the ends."""
    wanted = [line.rstrip() for line in gold.strip().splitlines()]
    given = [line.rstrip() for line in extract.statement(answer).strip().splitlines()]
    if wanted == given:
        return verdict.correct(f"{len(wanted)} equal lines")
    pairs = zip(wanted, given, strict=False)
    at = next((n for n, (w, g) in enumerate(pairs) if w != g), min(len(wanted), len(given)))
    return verdict.wrong("value", f"line {at + 1} differs; {len(given)} of {len(wanted)} lines")
