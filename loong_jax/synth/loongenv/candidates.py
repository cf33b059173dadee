"""A candidate on its way through the funnel, and the one state it ends in."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

# state -> where Fig. 2 of the paper counts it. Its three classes are of candidates with a program;
# ours are of all candidates, so two more come first.
OUTCOME: dict[str, str] = {
    "author_failed": "not posed",
    "malformed_question": "not posed",
    "copies_seed": "duplicate",
    "copies_sibling": "duplicate",
    "undeclared_package": "non-executable",
    "not_executable": "non-executable",
    "no_answer": "non-executable",
    "not_deterministic": "non-executable",
    "hard_coded": "rejected",
    "answer_in_question": "rejected",
    "ungradable_answer": "rejected",
    "judged_unclear": "rejected",
    "judged_wrong": "rejected",
    "unsolved": "rejected",
    "sandbox_failed": "unfinished",
    "judge_failed": "unfinished",
    "judge_untrusted": "unfinished",
    "over_budget": "unfinished",
    "passed": "passed",
}
OUTCOMES = tuple(dict.fromkeys(OUTCOME.values()))
OPEN = "open"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One solution of the solver: what it stated, and whether that is the executed answer."""

    answer: str = ""
    reasoning: str = ""
    verdict: str = ""  # "correct", "wrong", "ungradable" or the author's failure
    by: str = ""  # "rules" or "judge"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    id: str  # "<domain>/<strategy>/<number>"
    domain: str
    strategy: str
    state: str = OPEN
    detail: str = ""
    question: str = ""
    code: str = ""
    stated: str = ""  # the answer by the author's own word; never used
    answer: str = ""  # printed by the program
    seeds: tuple[str, ...] = ()  # ids of those that were shown
    attempts: tuple[Attempt, ...] = ()
    calls: tuple[str, ...] = ()  # keys of all calls made for it, in order
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state == OPEN

    @property
    def accuracy(self) -> float | None:
        """Share of the solver's attempts that are right; None where nobody attempted it."""
        if not self.attempts:
            return None
        return sum(a.verdict == "correct" for a in self.attempts) / len(self.attempts)

    def ended(self, state: str, detail: str = "") -> "Candidate":
        assert state in OUTCOME
        assert self.is_open, self
        return dataclasses.replace(self, state=state, detail=detail[:300])

    def after(self, calls: Iterable[str], **changes: Any) -> "Candidate":
        return dataclasses.replace(self, calls=(*self.calls, *calls), **changes)


def funnel(candidates: Iterable[Candidate]) -> dict[str, int]:
    """The number of candidates that ended in each state; every candidate is in exactly one."""
    candidates = list(candidates)
    counts = Counter(candidate.state for candidate in candidates)
    assert set(counts) <= set(OUTCOME), "a candidate is still open"
    assert counts.total() == len(candidates)
    return {state: counts[state] for state in OUTCOME}


def outcomes(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of a funnel in the classes of Fig. 2."""
    return {
        name: sum(count for state, count in counts.items() if OUTCOME[state] == name)
        for name in OUTCOMES
    }
