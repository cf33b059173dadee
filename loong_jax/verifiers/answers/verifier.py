"""Verifier "math": compares the answer a response states with a typed gold."""

import dataclasses
import math
import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers.answers import gold, judging
from loong_jax.verifiers.maths.expression import CostError
from loong_jax.verifiers.maths.symbolic import SymbolicLost, SymbolicServer
from loong_jax.verifiers.maths.values import LONG_DIGITS, Tolerance

MAX_EVIDENCE_CHARS = 300
_SETTLED = frozenset({"no answer", "no gold", "format"})  # nothing is there to be compared
MAX_RESPONSE_CHARS = 500_000  # far beyond any response that was meant to be read


class MathVerifier:
    """Judges mathematical answers by rules.

    Deterministic unless a judge is configured, and safe in threads. Nothing of a text is ever
    evaluated: our own parser builds a tree, and only known arithmetic runs on it, within a budget.

    Known false classes. Accepts: a wrong unit where the gold has none; log for ln; the only
    number of an unboxed sentence that is about something else. Rejects: decimals of fewer than
    ten digits for values they only approximate; languages whose words it does not know. Ungradable:
    what costs too much, what the parser does not know, conventions (28 % for a gold 28).
    """

    def __init__(
        self,
        *,
        relative_tolerance: float = 0.0,
        absolute_tolerance: float = 0.0,
        rounded_digits: int = LONG_DIGITS,
        digits_as_written: bool = False,
        symbolic_cpu_s: float = 0.5,
        judge: Mapping[str, Any] | None = None,
    ):
        """Starts the process of sympy, which takes half a second in the background.

        A decimal of at least `rounded_digits` significant digits stands for what it rounds: with 4,
        0.3333 answers 1/3. Zeros at its end say nothing, so that 2.50 answers 2.5, unless
        `digits_as_written`: then two decimals are the same only with as many digits.
        `symbolic_cpu_s` is its CPU time for one verdict; where it is not ready in some seconds, or
        gets no processor, the verdict is ungradable with reason `symbolic`. `judge` holds settings
        of JudgeVerifier, asked about what the rules do not accept.
        """
        if relative_tolerance < 0 or absolute_tolerance < 0:
            raise VerifierError(
                f"relative_tolerance={relative_tolerance}, absolute_tolerance={absolute_tolerance} "
                "are not both at least 0. Leave them out to compare exactly."
            )
        if rounded_digits < 1:
            raise VerifierError(
                f"rounded_digits={rounded_digits} is below 1. Leave it out for {LONG_DIGITS}."
            )
        self._tolerance = Tolerance(
            relative=Fraction(str(relative_tolerance)),
            absolute=Fraction(str(absolute_tolerance)),
            digits=rounded_digits,
            as_written=digits_as_written,
        )
        self._symbolic = SymbolicServer(cpu_s=symbolic_cpu_s)
        self._last_rung = None
        if judge is not None:
            from loong_jax.verifiers.judge import JudgeVerifier  # reads answers as this room does

            self._last_rung = JudgeVerifier(**judge)

    def verify(self, problem: Problem, response_text: str) -> Verdict:
        """Judges a response to `problem.gold`; its arguments may give `type` and `tolerance`."""
        options = _options(problem.arguments)
        return self.judge(problem.gold, response_text, question=problem.prompt, **options)

    def judge(
        self,
        gold_text: str | None,
        answer_text: str,
        *,
        kind: str | None = None,
        tolerance: float | None = None,
        question: str = "",
    ) -> Verdict:
        """Verdict on one pair; never raises for what a text holds.

        `tolerance` is absolute. `question` settles conventions: who asks for a number in base 5 or
        a percentage takes it without its mark; as a probability 1:3 may be odds, else it is 1/3.
        """
        start, words = time.perf_counter(), ("base", "percent", "probability")
        own = self._tolerance
        if tolerance:
            own = dataclasses.replace(own, absolute=Fraction(str(tolerance)))
        settings = {
            "tolerance": own,
            "symbolic": self._symbolic.budget(),
            "conventions": frozenset(word for word in words if word in question.lower()),
        }
        try:
            judged = _refused(gold_text, answer_text) or judging.verdict_of(
                gold.read_gold(str(gold_text), kind), answer_text, kind, settings
            )
        except (CostError, RecursionError) as error:
            judged = verdict.ungradable("cost", str(error))
        except SymbolicLost as error:
            judged = verdict.ungradable("symbolic", str(error))
        is_open = not judged.is_correct and judged.reason not in _SETTLED
        if self._last_rung is not None and is_open and gold_text is not None:
            judged = self._last_rung.rescue(judged, question, gold_text, answer_text)
        return dataclasses.replace(
            judged,
            evidence=judged.evidence[:MAX_EVIDENCE_CHARS],
            cost_s=time.perf_counter() - start,
        )

    def verify_record(self, record: Mapping[str, Any]) -> Verdict:
        """Verdict of a line: `gold`, `answer`, and perhaps `type`, `tolerance` and `question`."""
        gold_text, answer_text = record.get("gold"), record.get("answer")
        if not isinstance(gold_text, (str, int, float)) or isinstance(gold_text, bool):
            return verdict.ungradable("record", "gold is missing or no text")
        if isinstance(gold_text, float) and not math.isfinite(gold_text):
            return verdict.ungradable("record", f"gold={gold_text} is no number")
        if not isinstance(answer_text, str):
            return verdict.ungradable("record", "answer is missing or no text")
        try:
            options = _options(record)
        except VerifierError as error:
            return verdict.ungradable("record", str(error))
        question = record.get("question")
        options["question"] = question if isinstance(question, str) else ""
        return self.judge(str(gold_text), answer_text, **options)

    def close(self) -> None:
        self._symbolic.close()
        if self._last_rung is not None:
            self._last_rung.close()


def _refused(gold_text: str | None, answer_text: str) -> Verdict | None:
    if gold_text is None or not gold_text.strip():
        return verdict.ungradable("no gold", "the problem has no reference answer")
    if not answer_text.strip():
        return verdict.wrong("no answer", "the response is empty")
    if len(answer_text) > MAX_RESPONSE_CHARS:
        return verdict.wrong("format", f"more than {MAX_RESPONSE_CHARS} characters")
    return None


def _options(source: Mapping[str, Any]) -> dict[str, Any]:
    kind, tolerance = source.get("type"), source.get("tolerance")
    if kind is not None and kind not in gold.TYPES:
        raise VerifierError(f"type={kind!r} is unknown. Choose one of {', '.join(gold.TYPES)}.")
    if tolerance is not None and (
        isinstance(tolerance, bool)
        or not isinstance(tolerance, (int, float))
        or not 0 <= tolerance < 1e9
    ):
        raise VerifierError(f"tolerance={tolerance!r} is not a number of at least 0. Leave it out.")
    return {"kind": kind, "tolerance": tolerance}
