"""Stages that use attempts at a problem: filters by pass rate, and a majority vote on its gold.

Attempts come with the record (`outcomes`, a list of true, false and null for ungradable;
`answers`, a list of texts) or from a file: JSON lines with `id` (or `uid`) and `correct` (or
`outcome`, or `verdict`), one attempt a line, or what `loong eval --json` wrote. Ungradable attempts
count as none, as everywhere.
"""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.data import json_files
from loong_jax.data.curation.stages import Record, Said, list_of, text_of
from loong_jax.data.json_files import BadLine
from loong_jax.errors import ConfigError, refuse_below, refuse_no_share


class Passed(NamedTuple):
    """Attempts of one policy at one problem."""

    num_correct: int
    num_graded: int

    @property
    def rate(self) -> float | None:
        return self.num_correct / self.num_graded if self.num_graded else None


def passed_of(record: Record, rollouts: Path | None = None, key: str = "outcomes") -> Passed:
    """Attempts at a record's problem, in `rollouts` where given, else those it carries."""
    if rollouts is not None:
        name = record.get("id", record.get("uid"))
        return _passed_in(rollouts).get(str(name), Passed(0, 0))
    graded = [value for value in list_of(record, key) if isinstance(value, bool)]
    return Passed(sum(graded), len(graded))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassRate:
    """Keeps problems whose pass rate is in a range, and notes it as `pass_rate`.

    Reasons: `too easy`, `too hard`, `too few attempts`. For SFT an upper bound alone removes what
    is too simple (LongCat-Flash-Thinking 2.2.1); for RL `Balanced` asks for both outcomes.
    """

    name: str = "pass_rate"
    rollouts: Path | None = None
    at_least: float = 0.0
    at_most: float = 0.9
    min_attempts: int = 4

    def __post_init__(self):
        if not 0 <= self.at_least <= self.at_most <= 1:
            raise ConfigError(
                f"at_least={self.at_least}, at_most={self.at_most} are no range in [0, 1]."
            )
        refuse_below(self, 1, "min_attempts")

    def reason(self, record: Record) -> Said:
        passed = passed_of(record, self.rollouts)
        rate = passed.rate
        if rate is None or passed.num_graded < self.min_attempts:
            return f"too few attempts: {passed.num_graded}"
        if self.at_least <= rate <= self.at_most:
            return {"pass_rate": rate}
        kind = "too easy" if rate > self.at_most else "too hard"
        return f"{kind}: {passed.num_correct} of {passed.num_graded}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Balanced:
    """Keeps problems with both outcomes among their attempts, for RL; notes `pass_rate`.

    Reasons: `all correct`, `all wrong` (neither teaches in a group), `unbalanced` (the rarer
    outcome has a smaller share than `min_minority`), `too few attempts`. LongCat-Flash-Thinking
    3.4.1.
    """

    name: str = "balanced_outcomes"
    rollouts: Path | None = None
    min_minority: float = 0.2
    min_attempts: int = 4

    def __post_init__(self):
        refuse_below(self, 2, "min_attempts")
        if not 0 <= self.min_minority <= 0.5:
            raise ConfigError(f"min_minority={self.min_minority} is not in [0, 0.5]. Correct it.")

    def reason(self, record: Record) -> Said:
        correct, graded = passed_of(record, self.rollouts)
        if graded < self.min_attempts:
            return f"too few attempts: {graded}"
        if correct in (0, graded):
            return "all correct" if correct else "all wrong"
        if min(correct, graded - correct) < self.min_minority * graded:
            return f"unbalanced: {correct} of {graded}"
        return {"pass_rate": correct / graded}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MajorityVote:
    """Drops problems whose gold the answers of several models vote down (A.2.1, 2.2.1).

    Answers are equal where the maths verifier says so. Reasons: `gold outvoted` (one other answer
    has at least `min_share` of the votes), `no agreement` (no answer has that share), `gold not
    found` (agreement is not asked for, but no answer at all equals the gold), `too few answers`.
    A vote is evidence, not proof: models err together on hard problems, so `gold outvoted` records
    are worth reading.
    """

    name: str = "majority_vote"
    key: str = "answers"
    min_share: float = 0.5
    min_answers: int = 4
    needs_agreement: bool = False

    def __post_init__(self):
        refuse_no_share(self, "min_share")
        refuse_below(self, 1, "min_answers")

    def reason(self, record: Record) -> str | None:
        answers = [a for a in list_of(record, self.key) if isinstance(a, str) and a.strip()]
        gold = text_of(record, "gold")
        if len(answers) < self.min_answers or not gold:
            return f"too few answers: {len(answers)}"
        votes = Counter(_plain(answer) for answer in answers)
        classes = _classes(votes)
        for_gold = sum(n for answer, n in votes.items() if _equal(gold, answer))
        top_answer, top = max(classes.items(), key=lambda item: item[1])
        if top >= self.min_share * len(answers) and not _equal(gold, top_answer):
            return f"gold outvoted: {top} of {len(answers)} say {top_answer[:60]}"
        if self.needs_agreement and max(top, for_gold) < self.min_share * len(answers):
            return f"no agreement: {top} of {len(answers)}"
        return None if for_gold else "gold not found"


def _plain(answer: str) -> str:
    return " ".join(answer.strip().strip("$.").split())


def _classes(votes: Mapping[str, int]) -> dict[str, int]:
    """Votes of answers that are equal, under the most frequent form of each."""
    classes: dict[str, int] = {}
    for answer, count in sorted(votes.items(), key=lambda item: (-item[1], item[0])):
        same = next((one for one in classes if _equal(one, answer)), answer)
        classes[same] = classes.get(same, 0) + count
    return classes


def _equal(gold: str, answer: str) -> bool:
    if _plain(gold) == answer:
        return True
    return _verifier().judge(gold, answer).is_correct


@functools.cache
def _verifier() -> Any:
    from loong_jax.verifiers.answers import MathVerifier

    return MathVerifier()


@functools.lru_cache(maxsize=8)
def _passed_in(file: Path) -> dict[str, Passed]:
    if file.suffix == ".json":
        return _of_evaluation(file)
    correct: Counter[str] = Counter()
    graded: Counter[str] = Counter()
    for name, value in json_files.read_lines(file, _attempt, noun="attempt"):
        graded[name] += value is not None
        correct[name] += value is True
    return {name: Passed(correct[name], count) for name, count in graded.items()}


_OUTCOMES: dict[Any, bool | None] = {
    **{one: one for one in (True, False, None)}, "correct": True, "wrong": False, "ungradable": None
}  # fmt: skip


def _attempt(record: dict[str, Any], _: int) -> tuple[str, bool | None]:
    name = record.get("id", record.get("uid"))
    said = record.get("correct", record.get("outcome", record.get("verdict")))
    if isinstance(said, Mapping):
        said = said.get("outcome")
    is_value = said is None or isinstance(said, bool | str)
    if name is None or not is_value or said not in _OUTCOMES:
        raise BadLine(
            f"has id {name!r} and says {said!r:.40}. Give id, and correct as true, false or null, "
            "or outcome as correct, wrong or ungradable"
        )
    return str(name), _OUTCOMES[said]


def _of_evaluation(file: Path) -> dict[str, Passed]:
    """The counts that `loong eval --json` wrote: by domain, by problem, [correct, graded]."""
    try:
        domains = json.loads(file.read_text(encoding="utf-8"))["domains"]
        found = [one["correct_per_problem"] for one in domains.values()]
        counts = {name: pair for one in found for name, pair in one.items()}
        return {name: Passed(int(pair[0]), int(pair[1])) for name, pair in counts.items()}
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{file} is not what `loong eval --json` writes ({error!r}). Name such a file, or JSON "
            "lines of attempts."
        ) from None
