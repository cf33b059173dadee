"""A problem: what can be posed and checked; its side of the split, and endless streams of them."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from loong_jax.environments.environment import Environment

_OF_SOURCE = re.compile(r"(?<=\w)-[0-9a-f]{8}(?=/[0-9]+/[0-9]+$)")

Domain: TypeAlias = str  # an open word: what an expert is trained in, and pass rates are shown by


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One question with the means to check an answer to it.

    `gold` and `rubric` may both be absent: such a problem is checked without a reference, from
    `arguments` alone. `canonical` is equal for equal problems, however they were drawn or worded,
    and decides the split, so that equal problems never sit on both sides of it.
    """

    uid: str  # "<environment>-<its version>/<level>/<seed>"
    domain: Domain
    environment: str
    level: int
    seed: int
    canonical: str
    prompt: str
    verifier: str  # name for `loong_jax.verifiers.get_verifier`
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # JSON values
    gold: str | None = None
    rubric: str | None = None
    origin: str = "generated"
    licence: str = "Apache-2.0"
    # (role, content) of a conversation whose last message is answered; () where `prompt` is all
    messages: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"arguments": json.loads(json.dumps(self.arguments))}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Problem":
        messages = tuple((role, content) for role, content in record.get("messages", ()))
        return cls(**{**record, "uid": current_uid(record["uid"]), "messages": messages})


def current_uid(uid: str) -> str:
    """The uid as it is written now: runs of before hold a hash of source where a version stands.

    Environments of that time are version 1, and draw the same problems.
    """
    return _OF_SOURCE.sub("-1", uid)


def split_of(canonical: str, held_out_share: float = 0.1) -> Literal["train", "validation", "test"]:
    """Side of the split a canonical form falls on: a pure function of its hash.

    `held_out_share` of the problem space goes to validation, and the same again to test.
    """
    digest = hashlib.blake2b(canonical.encode(), digest_size=8).digest()
    position = int.from_bytes(digest, "big") / 2**64
    if position < held_out_share:
        return "test"
    return "validation" if position < 2 * held_out_share else "train"


def check_level(level: int, levels: Sequence[int]) -> None:
    if level not in levels:
        raise ValueError(f"level={level} is not in {tuple(levels)}. Choose one of these levels.")


MAX_DRAWS = 2000  # for one problem of a side; a tenth of a large level is on the rarest


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProblemStream:
    """`stream.problem_at(cursor)` for cursor 0, 1, ...: a pure function, so a cursor resumes it.

    `level_weights` maps levels to shares (any positive scale). Problems may repeat where a level is
    small; `take_distinct` never repeats one.
    """

    environment: "Environment"
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
