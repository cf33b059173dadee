"""The material of the gates: a module's cases over levels and seeds, run once for all of them."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any

from loong_jax.environments.modules import Call, Module, ModuleRunner, Outcome

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
