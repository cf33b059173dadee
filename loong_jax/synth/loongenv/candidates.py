"""A candidate on its way through the funnel, and the resources of every strategy on that way.

A candidate ends in one state. Resources are one domain's seeds and packages, and the author.
"""

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from loong_jax.synth import calls
from loong_jax.synth.authors import Author
from loong_jax.synth.calls import Request
from loong_jax.synth.loongenv.seeds import Seed

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """All candidates of a run in the order of their ids."""

    candidates: tuple[Candidate, ...]
    is_complete: bool  # False where the budget ended it

    @property
    def kept(self) -> list[Candidate]:
        return [one for one in self.candidates if one.state == "passed"]


def funnel(candidates: Iterable[Candidate]) -> dict[str, int]:
    """The number of candidates that ended in each state; every candidate is in exactly one."""
    counts = Counter(candidate.state for candidate in candidates)
    assert set(counts) <= set(OUTCOME), "a candidate is still open"
    return {state: counts[state] for state in OUTCOME}


def outcomes(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of a funnel in the classes of Fig. 2."""
    return {
        name: sum(count for state, count in counts.items() if OUTCOME[state] == name)
        for name in OUTCOMES
    }


NUM_SHOWN = 3  # seeds in a prompt (arXiv 2509.03059, appendix)
MAX_SHOWN_CHARS = 6000  # of one seed: longer ones are left out of prompts
QUESTION = calls.fields(question=str)

# Failures that another try may mend. A call that timed out or met an error was tried again already.
_MENDABLE = ("refused", "malformed", "truncated")


class OverBudget(Exception):
    """The budget is spent: what is open stays so until somebody raises it."""


class Answer(NamedTuple):
    parsed: Any  # None where it failed
    failure: str
    calls: tuple[str, ...]  # keys of every try


def seed_of(*parts: int | str) -> int:
    """A seed in 0..2^31-1 for these parts: the same here and everywhere."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workshop:
    """Resources of a strategy: one domain's seeds and packages, and the author.

    `seed` is the run's; a request's own follows from it, the name, and the try. A reply that is
    refused, malformed or cut off is asked for up to `max_tries` times. `earlier` are questions that
    this strategy posed in finished rounds, oldest first.
    """

    author: Author
    seed: int
    domain: str
    seeds: Sequence[Seed]
    packages: Mapping[str, str]  # name -> version, of what may be imported
    earlier: Sequence[str] = ()
    max_tries: int = 2

    def ask(
        self,
        role: str,
        asked: Mapping[str, Mapping[str, str]],
        schema: Mapping[str, Any],
        prompt: str = "",
    ) -> dict[str, Answer]:
        """Answers by name, such as a candidate's id; `asked` holds the fields of each.

        OverBudget once a call is refused for it, AuthorDown once nobody answers.
        """
        found: dict[str, Answer] = {}
        tries: dict[str, tuple[str, ...]] = dict.fromkeys(asked, ())
        for number in range(self.max_tries):
            names = [name for name in asked if name not in found]
            requests = [
                Request(
                    role=role, prompt_name=f"loongenv/{prompt or role}", fields=asked[name],
                    seed=seed_of(self.seed, name, role, number), schema=schema,
                )
                for name in names
            ]  # fmt: skip
            for name, reply in zip(names, self.author.ask(requests), strict=True):
                if reply.failure == "over_budget":
                    raise OverBudget
                tries[name] += (reply.transcript.key,)
                is_last = number + 1 == self.max_tries
                if reply.failure is None:
                    found[name] = Answer(reply.parsed, "", tries[name])
                elif reply.failure not in _MENDABLE or is_last:
                    found[name] = Answer(None, f"{role} {reply.failure}", tries[name])
            self.author.require_up()
        return found

    @property
    def packages_text(self) -> str:
        lines = [f"- {name} {version}" for name, version in sorted(self.packages.items())]
        return "\n".join(lines) or "none but the standard library"

    def shown(self, rng: random.Random) -> list[Seed]:
        short = [s for s in self.seeds if len(s.question) + len(s.code) <= MAX_SHOWN_CHARS]
        return rng.sample(short, min(NUM_SHOWN, len(short)))

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")
