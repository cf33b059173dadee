"""Verifier "math": compares the answer a response states with a typed gold."""

import dataclasses
import math
import re
import time
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from loong_jax.errors import VerifierError
from loong_jax.verifiers import verdict
from loong_jax.verifiers.maths import extract, gold, worded
from loong_jax.verifiers.maths.expression import CostError, Node, ParseError, number, render
from loong_jax.verifiers.maths.gold import Gold
from loong_jax.verifiers.maths.matching import Matcher
from loong_jax.verifiers.maths.reading import numerals, readings
from loong_jax.verifiers.maths.symbolic import SymbolicLost, SymbolicServer
from loong_jax.verifiers.maths.values import LONG_DIGITS, Tolerance
from loong_jax.verifiers.maths.wording import choices, formulas, phrases
from loong_jax.verifiers.verdict import Verdict

if TYPE_CHECKING:
    from loong_jax.environments.problem import Problem

MAX_EVIDENCE_CHARS = 300
MAX_RESPONSE_CHARS = 500_000  # far beyond any response that was meant to be read
_IN_BRACES = re.compile(r"[\s$]*\{[^{}]*\}[\s$.]*")
_MATHS = frozenset("\\=^<>+*/\u221a\u222a\u2264\u2265")


class MathVerifier:
    """Judges mathematical answers by rules.

    Deterministic unless a judge is configured, and safe to use from many threads. Nothing of a text
    is ever evaluated: our own parser builds a tree, and only known arithmetic runs on it, within a
    budget.

    Gold first: the gold's type says what is extracted and compared, and the relation is not
    symmetric. A gold with a unit accepts the number alone, a gold number accepts a name and a
    unit around it, and an equation is not answered by one of its sides.

    Known false classes. Accepts: a wrong unit where the gold has none; log for ln; the only
    number of an unboxed sentence that is about something else. Rejects: decimals of fewer than
    ten digits for values they only approximate; answers in a language whose words it does not
    know. Ungradable: what costs too much to evaluate, what the parser does not know, and what
    depends on a convention (28 % for a gold 28).
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
                f"rounded_digits={rounded_digits} is not at least 1. Leave it out for "
                f"{LONG_DIGITS}."
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
            from loong_jax.verifiers.maths import last_rung  # reads answers as this room does

            self._last_rung = last_rung.LastRung(judge)

    def verify(self, problem: "Problem", response_text: str) -> Verdict:
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
        for a percentage takes it without its mark; as a
        probability 1:3 may be odds, else it is 1/3.
        """
        start = time.perf_counter()
        try:
            judged = self._judge(gold_text, answer_text, kind, tolerance, _conventions(question))
        except CostError as error:
            judged = verdict.ungradable("cost", str(error))
        except RecursionError:
            judged = verdict.ungradable("cost", "nested too deeply")
        except SymbolicLost as error:
            judged = verdict.ungradable("symbolic", str(error))
        if self._last_rung is not None:
            judged = self._last_rung.ask(judged, question, gold_text, answer_text)
        return dataclasses.replace(
            judged,
            evidence=judged.evidence[:MAX_EVIDENCE_CHARS],
            cost_s=time.perf_counter() - start,
        )

    def verify_record(self, record: Mapping[str, Any]) -> Verdict:
        """Verdict of one line of `loong verify math`: `gold`, `answer`, perhaps more.

        That is `type`, `tolerance` and `question`.
        """
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

    # ---- one verdict

    def _judge(
        self,
        gold_text: str | None,
        answer_text: str,
        kind: str | None,
        tolerance: float | None,
        conventions: frozenset[str],
    ) -> Verdict:
        if gold_text is None or not gold_text.strip():
            return verdict.ungradable("no gold", "the problem has no reference answer")
        if not answer_text.strip():
            return verdict.wrong("no answer", "the response is empty")
        if len(answer_text) > MAX_RESPONSE_CHARS:
            return verdict.wrong("format", f"more than {MAX_RESPONSE_CHARS} characters")
        reference = gold.read_gold(gold_text, kind)
        if extract.gives_up(answer_text) and not extract.gives_up(reference.text):
            return verdict.wrong("no answer", "the response gives up or asks back")
        if kind in (None, "choice") and (option := choices.lettered(reference.text)) is not None:
            letter, text = option
            said = worded.by_letter(letter, text, answer_text)
            if isinstance(said, Verdict):
                return said
            return self._judge(text, said, None, tolerance, conventions)
        formula = formulas.read(reference.text, is_gold=True) if kind is None else None
        if formula is not None and (said := worded.by_truth(formula, answer_text)) is not None:
            return said
        if kind is None and (said := worded.by_notation(reference, answer_text)) is not None:
            return said
        if reference.kind in ("choice", "text", "date"):
            said = worded.by_words(reference, answer_text)
            if said is not None:
                return said
            if not reference.readings:
                return verdict.wrong("value", f"not {reference.text!r} in words")
        elif not reference.readings:
            return self._unread_gold(reference, answer_text)
        limits = self._tolerance
        if tolerance:
            limits = dataclasses.replace(limits, absolute=Fraction(str(tolerance)))
        settings = {
            "tolerance": limits,
            "symbolic": self._symbolic.budget(),
            "conventions": conventions,
        }
        return self._by_value(reference, answer_text, settings)

    def _by_value(self, reference: Gold, answer_text: str, settings: Mapping[str, Any]) -> Verdict:
        unread: ParseError | None = None
        looked_like_maths, last = False, None  # of a list, all the boxes may hold one item each
        for count, span in enumerate(extract.spans(answer_text)):
            if count == worded.MAX_CANDIDATES:
                break
            if span.rule == "count" and reference.kind in ("list", "set", "tuple"):
                continue
            if span.rule == "letter" and reference.readings[0].head != "symbol":
                continue  # that of an option, whose value is asked for
            if " ".join(span.text.split()) == " ".join(reference.text.split()):
                return verdict.correct(f"exact ({span.rule}): {span.text}")
            try:
                answers = _roman(reference, span) or readings.of(span.text)
            except ParseError as error:
                unread = unread or error
                looked_like_maths |= (
                    count == 0 and span.rule != "whole" and bool(_MATHS & set(span.text))
                )
                if span.rule == "boxed":
                    break
                continue
            if reference.kind == "choice" and all(node.head == "labelled" for node in answers):
                return verdict.wrong("value", f"a word begins with the letter: {span.text}")
            judged = _match(reference, answers, span, settings)
            if span.rule == "boxed" and reference.kind in ("list", "set"):
                last = judged
            if judged.is_correct or span.rule != "boxed" or last is None:
                return last if last is not None and not judged.is_correct else judged
        if last is not None:
            return last
        if unread is None:
            return verdict.wrong("no answer", "the response states none")
        if looked_like_maths:
            return verdict.ungradable("unparsed", str(unread))
        return verdict.wrong("type", f"no maths where {reference.kind} belongs: {unread}")

    def _unread_gold(self, reference: Gold, answer_text: str) -> Verdict:
        """A gold that the parser does not know: only the same text answers it."""
        wanted = phrases.normal(reference.text)
        for span in extract.spans(answer_text):
            if (
                _squeezed(span.text) == _squeezed(reference.text)
                or phrases.normal(span.text) == wanted
            ):
                return verdict.correct(f"exact ({span.rule}): {span.text}")
        return verdict.ungradable("gold", f"the gold is not understood: {reference.problem}")


def _match(
    reference: Gold, answers: tuple[Node, ...], span: extract.Span, settings: Mapping[str, Any]
) -> Verdict:
    outcomes: list[tuple[bool | None, Matcher, Node]] = []
    for wanted in reference.readings:
        for given in answers:
            matcher = Matcher(**settings)
            outcome = matcher.match(wanted, given)
            evidence = f"{matcher.rung} ({span.rule}): {render(given)} for {render(wanted)}"
            if outcome and _may_be_set(wanted, reference.text, given, span.text):
                outcome, matcher.note = None, "braces may hold a set, and the other is in order"
            if outcome:
                return verdict.correct(evidence)
            outcomes.append((outcome, matcher, given))
    undecided = [o for o in outcomes if o[0] is None]
    outcome, matcher, given = (undecided or outcomes)[0]
    evidence = f"{matcher.rung} ({span.rule}): {render(given)} for {render(reference.readings[0])}"
    if matcher.note:
        evidence += f"; {matcher.note}"
    if outcome is None:
        return verdict.ungradable("undecided", evidence)
    return verdict.wrong("value", evidence)


def _may_be_set(wanted: Node, wanted_text: str, given: Node, given_text: str) -> bool:
    """Whether one is a point and the other a list in plain braces, which LaTeX would not show."""
    if {wanted.head, given.head} != {"tuple", "list"}:
        return False
    items, text = (given, given_text) if given.head == "list" else (wanted, wanted_text)
    is_named = all(item.head == "chain" for item in items.args)  # {x: 1, y: 2}
    return not is_named and _IN_BRACES.fullmatch(text) is not None


def _roman(reference: Gold, span: extract.Span) -> tuple[Node, ...]:
    """XIV alone, for a gold that is a whole number."""
    wanted = reference.readings[0]
    is_whole = wanted.head == "number" and isinstance(wanted.args[0], int)
    value = numerals.roman(span.text) if is_whole else None
    return () if value is None else (number(value),)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _conventions(question: str) -> frozenset[str]:
    return frozenset(
        word for word in ("base", "percent", "probability") if word in question.lower()
    )


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


__all__ = ["MathVerifier"]
