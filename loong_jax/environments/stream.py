"""Endless deterministic streams of problems on one side of the split."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from loong_jax.environments.environment import Environment, check_level
from loong_jax.environments.problem import Problem, split_of

MAX_DRAWS = 2000  # for one problem of a side; a tenth of a large level is on the rarest


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemStream:
    """`stream.problem_at(cursor)` for cursor 0, 1, ...: a pure function, so a cursor resumes it.

    `level_weights` maps levels to shares (any positive scale). Problems may repeat where a level is
    small; `take_distinct` never repeats one.
    """

    environment: Environment
    level_weights: Mapping[int, float]
    split: str  # "train", "validation" or "test"
    seed: int
    preamble: Callable[[Problem], str] | None = None  # what stands before a problem's prompt

    def __post_init__(self):
        if self.split not in ("train", "validation", "test"):
            raise ValueError(f"split={self.split!r} is not train, validation or test. Choose one.")
        if not self.level_weights or min(self.level_weights.values()) <= 0:
            raise ValueError(
                f"level_weights={dict(self.level_weights)} must name levels with positive shares. "
                "Leave out the levels that are not wanted."
            )
        for level in self.level_weights:
            check_level(level, self.environment.levels)

    def problem_at(self, cursor: int) -> Problem:
        name = f"{self.environment.name}/{self.split}/{self.seed}/{cursor}"
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "big"))
        levels = sorted(self.level_weights)
        weights = np.array([self.level_weights[level] for level in levels], float)
        level = levels[int(rng.choice(len(levels), p=weights / weights.sum()))]
        for _ in range(MAX_DRAWS):
            problem = self.environment.problem(level, int(rng.integers(2**53)))
            if split_of(problem.canonical) == self.split:
                if self.preamble is None:
                    return problem
                return dataclasses.replace(problem, prompt=self.preamble(problem) + problem.prompt)
        raise ValueError(
            f"none of {MAX_DRAWS} problems drawn from level {level} of {self.environment.name} is "
            f"on the side {self.split!r}: the level has too few. Leave it out."
        )

    def __iter__(self) -> Iterator[Problem]:
        cursor = 0
        while True:
            yield self.problem_at(cursor)
            cursor += 1

    def take_distinct(self, count: int) -> list[Problem]:
        """The first `count` problems with different canonical forms."""
        found: dict[str, Problem] = {}
        for cursor, problem in enumerate(self):
            found.setdefault(problem.canonical, problem)
            if len(found) == count:
                return list(found.values())
            if cursor > 20 * count + 1000:
                raise ValueError(
                    f"only {len(found)} of {count} distinct problems found in {cursor} draws of "
                    f"{self.environment.name}. Ask for fewer or add levels."
                )
        raise AssertionError("an endless stream ended")
