"""One answer against one gold by the rules of a domain."""

import re
from typing import Any

from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers.loongbench import literals, quantities
from loong_jax.verifiers.loongbench.domains import Row
from loong_jax.verifiers.loongbench.quantities import Quantity
from loong_jax.verifiers.maths import MathVerifier, extract

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
    """The literal a text holds as a whole, else None."""
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
    spans = [extract.statement(answer)]
    for count, span in enumerate(extract.spans(answer)):
        if count == MAX_CANDIDATES:
            break
        spans.append(span.text)
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
