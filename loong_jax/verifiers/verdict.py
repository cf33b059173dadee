"""What a verifier says: `correct`, `wrong`, or `ungradable` with a reason; never a number.

A score is a number: from a reward model, a rubric or a format check.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

Outcome = Literal["correct", "wrong", "ungradable"]
IsolationTier = Literal["none", "process", "namespaces"]  # none: no foreign code ran


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """`ungradable` never becomes a reward of 0: it leaves the loss and the baseline."""

    outcome: Outcome
    reason: str = ""  # why it is wrong ("format", "value", ...) or ungradable ("timeout", ...)
    evidence: str = ""  # what the decision rests on, for people; truncated by the verifier
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
    evidence: str = ""  # what it rests on, for people
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
