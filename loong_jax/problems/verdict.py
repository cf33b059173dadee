"""Verdicts and scores of verifiers, and the answer that they read in a response.

A verdict is `correct`, `wrong`, or `ungradable` with a reason; never a number. A score is a number:
from a reward model, a rubric or a format check. The answer of a response is as problems/response.py
reads it.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from loong_jax.problems import response

Outcome = Literal["correct", "wrong", "ungradable"]
IsolationTier = Literal["none", "process", "namespaces"]  # none: no foreign code ran


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """`ungradable` never becomes a reward of 0: it leaves the loss and the baseline."""

    outcome: Outcome
    reason: str = ""  # why it is wrong ("format", "value", ...) or ungradable ("timeout", ...)
    evidence: str = ""  # the reason for people, truncated by the verifier
    isolation: IsolationTier = "none"
    cost_s: float = 0.0
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """What else a verifier reports, as JSON values: for code, every test."""

    def __post_init__(self):
        if self.outcome == "ungradable" and not self.reason:
            raise ValueError("an ungradable verdict needs a reason. Say what went wrong.")

    @property
    def is_correct(self) -> bool:
        return self.outcome == "correct"

    @property
    def is_graded(self) -> bool:
        return self.outcome != "ungradable"


def correct(evidence: str = "", **kwargs) -> Verdict:
    return Verdict(outcome="correct", evidence=evidence, **kwargs)


def wrong(reason: str, evidence: str = "", **kwargs) -> Verdict:
    return Verdict(outcome="wrong", reason=reason, evidence=evidence, **kwargs)


def ungradable(reason: str, evidence: str = "", **kwargs) -> Verdict:
    return Verdict(outcome="ungradable", reason=reason, evidence=evidence, **kwargs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """`value` is in [0, 1], or None where nothing could be scored; then it leaves the loss."""

    value: float | None
    reason: str = ""  # why there is no value
    evidence: str = ""  # the reason for people
    cost_s: float = 0.0

    def __post_init__(self):
        if self.value is None:
            if not self.reason:
                raise ValueError("an ungradable score needs a reason. Say what went wrong.")
        elif not (math.isfinite(self.value) and 0.0 <= self.value <= 1.0):
            raise ValueError(f"value={self.value} is not in [0, 1]. Scale it, or leave it out.")

    @property
    def is_graded(self) -> bool:
        return self.value is not None

    @property
    def outcome(self) -> Literal["scored", "ungradable"]:
        return "scored" if self.is_graded else "ungradable"


# ---- the answer of a response ----

MAX_RESPONSE_CHARS = 1_000_000
_MARK = re.compile(r"(?im)^[ \t]*(?:\*\*)?(?:final )?answer(?:\*\*)?[ \t]*:(?:\*\*)?[ \t]*")
_FENCE = re.compile(r"```[a-z]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


def answer_of(text: str) -> str | Verdict:
    """The answer in a response of any form, or a wrong verdict: `format`, `no answer`."""
    if len(text) > MAX_RESPONSE_CHARS:
        return wrong("format", f"more than {MAX_RESPONSE_CHARS} characters")
    if response.after_thinking(text) is None:
        return wrong("format", "the thinking does not end")
    found = response.read(text)
    if not found.answer.strip():
        return wrong("no answer", "the answer is empty")
    if not found.is_well_formed:
        lone = response.ANSWER_OPEN in text and response.THINK_CLOSE not in text
        why = "not one answer, in one pair of tags"
        if lone:
            why = f"{response.ANSWER_OPEN} without {response.THINK_CLOSE} before it"
        return wrong("format", why)
    return found.answer


def extract_answer(text: str) -> str | Verdict:
    """The answer of a response that says where it is, by tags or by thinking before it.

    Between tags it may be empty; all else is wrong: `format`.
    """
    found = response.read(text)
    is_marked = found.answer != response.without_end(text)
    if is_marked and found.is_well_formed:
        return found.answer
    return wrong("format", "not one thinking part, then one answer part, and no more")


def answer_span(text: str) -> str | Verdict:
    """The final answer of a response, or why it has none.

    Of what stands between the answer's tags, or follows the thinking, it is all that follows the
    only line that starts with `Answer:` (or `Final answer:`), or the whole where there is no such
    line. A code fence around all of it is taken off. Two such lines are two answers, and wrong.
    """
    found = answer_of(text)
    if isinstance(found, Verdict):
        return found
    parts = _MARK.split(found)
    if len(parts) > 2:
        return wrong("format", f"{len(parts) - 1} answers are marked, not one")
    span = parts[-1].strip()
    if fenced := _FENCE.fullmatch(span):
        span = fenced[1]
    return span if span.strip() else wrong("no answer", "the answer is empty")
