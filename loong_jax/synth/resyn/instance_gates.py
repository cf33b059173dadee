"""Gates on what a module generates: it runs, within bounds, always alike, varied, without leaks.

`Trial` is the material of all gates: a module's cases over levels and seeds, run once.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from loong_jax.environments import environment, modules
from loong_jax.environments.modules import Call, Module, ModuleRunner, Outcome
from loong_jax.problems.problem import split_of

SEEDS_PER_LEVEL = 12
MAX_STATE_CHARS = 20_000
MAX_CALLS = 1000  # in one process


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    level: int
    seed: int
    state: Any
    question: str
    reference: str


@dataclasses.dataclass(frozen=True)
class Trial:
    """A module on trial. The second runner is another interpreter, with another hash seed."""

    module: Module
    runner: ModuleRunner
    second: ModuleRunner

    @functools.cached_property
    def seeds(self) -> tuple[int, ...]:
        """Small ones, and large ones that depend on the module: a trap cannot know them."""
        digest = hashlib.blake2b(self.module.hash.encode(), digest_size=32).digest()
        large = [int.from_bytes(digest[i : i + 6], "big") for i in range(0, 24, 4)]
        return (*range(SEEDS_PER_LEVEL - len(large)), *large)

    @functools.cached_property
    def levels_outcome(self) -> Outcome:
        return self.run([("levels", ())])[0]

    @functools.cached_property
    def levels(self) -> tuple[int, ...]:
        return tuple(self.levels_outcome.value)

    @functools.cached_property
    def draws(self) -> tuple[tuple[int, int], ...]:
        """(level, seed) of every case."""
        return tuple((level, seed) for level in self.levels for seed in self.seeds)

    @functools.cached_property
    def posed(self) -> list[Outcome]:
        """[state, question] of each draw."""
        return self.run([("pose", draw) for draw in self.draws])

    @functools.cached_property
    def references(self) -> list[Outcome]:
        return self.run([("reference", (found.value[0],)) for found in self.posed])

    @functools.cached_property
    def cases(self) -> list[Case]:
        """All cases; only of a module whose `posed` and `references` are all well."""
        return [
            Case(level=level, seed=seed, state=posed.value[0], question=posed.value[1],
                 reference=reference.value)
            for (level, seed), posed, reference in zip(
                self.draws, self.posed, self.references, strict=True)
        ]  # fmt: skip

    @functools.cached_property
    def few(self) -> list[Case]:
        """Two cases of each level, one of a small and one of a large seed: for long attacks."""
        chosen = {self.seeds[0], self.seeds[-1]}
        return [case for case in self.cases if case.seed in chosen]

    def run(self, calls: Sequence[Call]) -> list[Outcome]:
        return self.runner.run(self.module, calls)

    def shares(self, answers: Sequence[str], cases: Sequence[Case]) -> list[float]:
        """By answer, the share of the cases that it is right for; NaN where one was not judged."""
        found = self.rewards([(case, answer) for answer in answers for case in cases])
        return [_share(found[i * len(cases) : (i + 1) * len(cases)]) for i in range(len(answers))]

    def rewards(self, pairs: Sequence[tuple[Case, str]]) -> list[Outcome]:
        """The module's judgement of each answer to each case, `MAX_CALLS` of them a process."""
        calls: list[Call] = [("reward", (case.state, answer)) for case, answer in pairs]
        parts = (calls[i : i + MAX_CALLS] for i in range(0, len(calls), MAX_CALLS))
        return [found for part in parts for found in self.run(part)]


def _share(found: Sequence[Outcome]) -> float:
    if any(one.status != "ok" for one in found):
        return math.nan
    return sum(one.value is True for one in found) / len(found)


MIN_LEVELS = 3
MIN_DISTINCT_SHARE = 0.6  # of the questions of one level
SPLIT_SEEDS = 256  # of each level, whose questions must fall on every side of the split
MAX_LEAK_SHARE = 0.5  # of the cases whose answer one rule may read off the question
BOUNDS = {
    "timeout": "it takes too long", "limit": "it gives too much", "crash": "its process ended",
}  # fmt: skip


def runs(trial: Trial) -> str:
    """Every level and seed gives a state, a question and a reference of the right kinds."""
    levels = trial.levels_outcome
    if levels.status != "ok":
        return _why("levels()", levels)
    is_count = levels.value == list(range(1, len(levels.value) + 1))
    if not is_count or not MIN_LEVELS <= len(levels.value) <= len(environment.LEVELS):
        return f"levels() gave {levels.value!r:.60}, not [1, 2, ...] of {MIN_LEVELS} to 5 levels"
    for (level, seed), found in zip(trial.draws, trial.posed, strict=True):
        place = f"level {level}, seed {seed}"
        if found.status != "ok":
            return _why(f"generate() or question() of {place}", found)
        if not found.value[1].strip():
            return f"question() of {place} is no text"
    for (level, seed), found in zip(trial.draws, trial.references, strict=True):
        if found.status != "ok":
            return _why(f"reference() of level {level}, seed {seed}", found)
        if not found.value.strip():
            return f"reference() of level {level}, seed {seed} is no text"
    return ""


def bounded(trial: Trial) -> str:
    """States, questions and references are of a size that a solver and a worker can hold."""
    for case in trial.cases:
        if len(case.question) > modules.MAX_QUESTION_CHARS:
            return f"a question has {len(case.question)} characters"
        if len(case.reference) > modules.MAX_ANSWER_CHARS:
            return f"a reference has {len(case.reference)} characters"
        if len(json.dumps(case.state)) > MAX_STATE_CHARS:
            return f"a state has more than {MAX_STATE_CHARS} characters"
    return ""


def deterministic(trial: Trial) -> str:
    """Another interpreter, asked in another order, says the same: a uid then names one problem.

    Forks of one interpreter share its hash seed and its random state, so one alone shows nothing.
    What is returned names neither place nor values: these would be others when the gate runs again,
    and a call that tells them to an author would be another call.
    """
    order = [*range(len(trial.draws))][::-1]
    posed = trial.second.run(trial.module, [("pose", trial.draws[i]) for i in order])
    if any(found != trial.posed[i] for i, found in zip(order, posed, strict=True)):
        return "a level and a seed were drawn or worded in two ways"
    calls: list[Call] = []
    for case in reversed(trial.cases):
        other = trial.cases[0].reference
        calls += [("reference", (case.state,)), ("reward", (case.state, case.reference))]
        calls += [("reward", (case.state, other)), ("reward", (case.state, other))]
    first, second = trial.run(calls[::-1])[::-1], trial.second.run(trial.module, calls)
    for call, one, another in zip(calls, first, second, strict=True):
        if one.status != "ok":
            return _why(f"{call[0]}()", one)
        if one != another:
            return f"{call[0]}() gave two values to one call"
    return ""


def varied(trial: Trial) -> str:
    """A level is more than a few questions, and two levels are not the same questions."""
    by_level = {level: [c.question for c in trial.cases if c.level == level]
                for level in trial.levels}  # fmt: skip
    for level, questions in by_level.items():
        if len(set(questions)) < MIN_DISTINCT_SHARE * len(questions):
            return f"level {level} has {len(set(questions))} questions over {len(questions)} seeds"
    if by_level[trial.levels[0]] == by_level[trial.levels[-1]]:
        return "the first and the last level pose the same questions"
    return ""


def split(trial: Trial) -> str:
    """Every level has questions to train on, to choose by and to test on, for good."""
    for level in trial.levels:
        posed = trial.run([("pose", (level, seed)) for seed in range(SPLIT_SEEDS)])
        if lost := next((one for one in posed if one.status != "ok"), None):
            return _why(f"question() of level {level}", lost)
        asked = {one.value[1] for one in posed}
        sides = {split_of(modules.canonical(trial.module, text)) for text in asked}
        if len(sides) < 3:
            return (
                f"level {level} has {len(asked)} questions, all for {' and '.join(sorted(sides))}"
            )
    return ""


def leak(trial: Trial) -> str:
    """No fixed rule of reading gets the answer from the question.

    Rules are: the words at one place from the start or the end, and those after another word where
    that stands first or last. That an answer stands somewhere in a question is no leak, since
    choosing is a task; nor is one that is turned around, since turning is one.
    """
    found: Counter[str] = Counter()
    for case in trial.cases:
        words, answer = _words(case.question), _words(case.reference)
        rules = set()
        for i in range(len(words) - len(answer) + 1):
            if not answer or words[i : i + len(answer)] != answer:
                continue
            end = i + len(answer)
            rules |= {f"what begins with word {i}", f"what ends {len(words) - end} words early"}
            before = words[i - 1] if i else ""
            if i and before not in words[: i - 1]:
                rules.add(f"what follows the first {before!r}")
            if i and before not in words[end:]:
                rules.add(f"what follows the last {before!r}")
        found.update(rules)
    if not found:
        return ""
    # Sets of texts have another order in each process, and what is told an author must not.
    count, rule = max((count, rule) for rule, count in found.items())
    if count > MAX_LEAK_SHARE * len(trial.cases):
        return f"{rule} is the answer in {count} of {len(trial.cases)} cases"
    return ""


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def _why(what: str, found: Outcome) -> str:
    said = BOUNDS.get(found.status, "it raised")
    return f"{what}: {said} ({found.detail})"
