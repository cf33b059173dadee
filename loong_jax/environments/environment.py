"""The contract of environments, and generators, which fulfil it from a few pure functions.

An environment is ReSyn's triple: `problem` draws from rho0 and renders the observation, `verify` is
the reward R, which reads the problem's state and the answer and never a stored reference. Worked
generators, puzzles, packaged modules (modules.py) and datasets of reasoning-gym (gym.py) fulfil it.
A `ProblemStream` poses its problems without end, on one side of the split.
"""

import abc
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from loong_jax.environments import csp
from loong_jax.environments.answers import Malformed
from loong_jax.errors import ConfigError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Domain, Problem, split_of
from loong_jax.problems.verdict import Verdict
from loong_jax.sandbox import Sandbox

LEVELS = (1, 2, 3, 4, 5)
INTEGER = r"(?:0|-?[1-9][0-9]{0,11})"  # the one way to write it
MAX_DRAWS = 20_000  # far more than any generator needs; ends a search that could not end

State = Mapping[str, Any]  # JSON values
Runner = Callable[[Sequence[tuple[str, Sequence[dict[str, int]]]]], Sequence[list[Any] | str]]
"""Runs each (expression, assignments) in isolation: its values, one each, or why there are none."""


class Solution(NamedTuple):
    steps: Sequence[str]  # values that lead to the answer; none where nothing is worked out
    answer: str


@runtime_checkable
class Environment(Protocol):
    """Generator and judge of one family of problems. All methods are pure and deterministic."""

    @property
    def name(self) -> str: ...

    @property
    def domain(self) -> Domain: ...

    @property
    def levels(self) -> tuple[int, ...]: ...

    def problem(self, level: int, seed: int) -> Problem:
        """The problem of this level and seed; ValueError for a level that there is not."""
        ...

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        """Judges any answer without a reference. Never raises for an answer, whatever it is."""
        ...

    def solve(self, problem: Problem) -> Solution:
        """A right answer, and where it can be worked out in steps, the steps."""
        ...


MAX_DRAWS_OF_SIDE = 2000  # for one problem; a tenth of a large level is on the rarest side


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
    preamble: Callable[[Problem], str] | None = None  # the text before a problem's prompt

    def __post_init__(self):
        if self.split not in ("train", "validation", "test"):
            raise ValueError(f"split={self.split!r} is not train, validation or test. Choose one.")
        shares = self.level_weights.values()
        if not shares or not all(0 < share < math.inf for share in shares):
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
        for _ in range(MAX_DRAWS_OF_SIDE):
            problem = self.environment.problem(level, int(rng.integers(2**53)))
            if split_of(problem.canonical) == self.split:
                if self.preamble is None:
                    return problem
                return dataclasses.replace(problem, prompt=self.preamble(problem) + problem.prompt)
        raise ConfigError(
            f"none of {MAX_DRAWS_OF_SIDE} problems drawn from level {level} of "
            f"{self.environment.name} is on the side {self.split!r}: the level has too few. Leave "
            "it out, or let its problems depend on the seed."
        )

    def __iter__(self) -> Iterator[Problem]:
        return map(self.problem_at, itertools.count())

    def take_distinct(self, count: int) -> list[Problem]:
        """The first `count` problems with different canonical forms."""
        found: dict[str, Problem] = {}
        for cursor in range(20 * count + 202):
            problem = self.problem_at(cursor)
            found.setdefault(problem.canonical, problem)
            if len(found) == count:
                return list(found.values())
        raise ConfigError(
            f"only {len(found)} of {count} distinct problems found in {20 * count + 202} draws of "
            f"{self.environment.name}, levels {[*self.level_weights]}, for the side "
            f"{self.split!r}. Ask for fewer, add levels, or draw from more by the seed."
        )


def check_level(level: int, levels: Sequence[int]) -> None:
    if level not in levels:
        raise ValueError(f"level={level} is not in {tuple(levels)}. Choose one of these levels.")


# ---- generators ----


class Generator(abc.ABC):
    """An `Environment` given pure functions of a state; `rng` is the only source of chance."""

    name: str
    domain: Domain
    version: ClassVar[int] = 1  # one more where a level and a seed give another problem
    levels: tuple[int, ...] = LEVELS
    template: ClassVar[str]  # of the prompt, where that is the state filled in
    form: ClassVar[str] = ""  # pattern of all answers; "" where `flaw` reads them
    max_answer_chars: ClassVar[int] = 64
    is_marked: ClassVar[bool] = True  # an answer stands between tags, or after thinking

    def __init__(self, run: Runner | None = None):
        """Answers that are code go to the sandbox of this process unless `run` is given."""
        self._run = run

    @abc.abstractmethod
    def draw(self, level: int, rng: Any) -> State | None:
        """A state of this level, or None where the draw is to be thrown away."""

    def prompt(self, state: State) -> str:
        """The question; the form of its answer too, unless the cold start teaches it."""
        return self.template.format(**state)

    def flaw(self, state: State, answer: str) -> str | Verdict | None:
        """The fault of an answer, or None; may raise Malformed.

        Where to check is to solve again, an answer has one form, which is that of `answer`.
        """
        right = self.answer(state)
        return None if answer == right else f"it is {right}"

    def answer(self, state: State) -> str:
        """A right answer; the last step, unless said otherwise."""
        return self.steps(state)[-1]

    def steps(self, state: State) -> list[str]:
        """The written steps of a solution, in order; none where nothing is worked out."""
        return []

    def canonical(self, state: State) -> str:
        """Equal for equal problems; the prompt, unless it words one problem in several ways."""
        return self.prompt(state)

    def rng(self, level: int, seed: int) -> Any:
        return random.Random(f"{self.name}/{level}/{seed}")

    def problem(self, level: int, seed: int) -> Problem:
        check_level(level, self.levels)
        rng, state, num_draws = self.rng(level, seed), None, 0
        while state is None:
            num_draws += 1
            assert num_draws <= MAX_DRAWS, f"{self.name}: no problem of {level=}, {seed=}"
            with contextlib.suppress(csp.SearchLimit):
                state = self.draw(level, rng)
        return posed(
            self,
            level=level,
            seed=seed,
            canonical=self.canonical(state),
            prompt=self.prompt(state),
            state=state,
        )

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        answer = answer.strip() if isinstance(answer, str) else None
        if answer is None or len(answer) > self.max_answer_chars:
            text = f"not a text of at most {self.max_answer_chars} characters"
            return verdict.wrong("format", text)
        if self.form and not re.fullmatch(self.form, answer, re.ASCII):
            return verdict.wrong("format", f"not of the form {self.form}")
        try:
            flaw = self.flaw(state_of(problem, self), answer)
        except Malformed as error:
            return verdict.wrong("format", str(error))
        if isinstance(flaw, Verdict):
            return flaw
        return verdict.wrong("value", flaw) if flaw else verdict.correct()

    def solve(self, problem: Problem) -> Solution:
        state = state_of(problem, self)
        return Solution(self.steps(state), self.answer(state))


class Puzzle(Generator):
    """A logic task whose prompt states the small strict form of its answer.

    Answers are read by our own parsers (answers.py) and never evaluated. Source of the three
    families (deductive, inductive, abductive) and of levels: LongCat-Flash-Thinking, appendix
    A.2.1; of reference-free checks: ReSyn.
    """

    domain = "logic"
    max_answer_chars = 20_000
    is_marked = False
    unordered: ClassVar[tuple[str, ...]] = ()  # lists of the state that say the same in any order

    def canonical(self, state: State) -> str:
        """The state itself, for puzzles whose states have one form but for `unordered` lists."""
        return canonical_json({**state, **{key: sorted(state[key]) for key in self.unordered}})

    def rng(self, level: int, seed: int) -> random.Random:
        return random.Random(_number(f"{self.name}/{level}/{seed}"))


def array_rng(self: Generator, level: int, seed: int) -> np.random.Generator:
    """`rng` of generators that draw arrays."""
    return np.random.default_rng(_number(f"{self.name}/{level}/{seed}"))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


def canonical_json(state: State) -> str:
    return json.dumps(state, sort_keys=True, separators=(",", ":"))


@functools.cache
def shared_sandbox() -> Sandbox:
    """The one of environments that were given none; it starts with a first run.

    It ends with the process. Its runs raise SandboxLost where the sandbox itself fails.
    """
    return Sandbox()


def posed(
    environment: Any,
    *,
    level: int,
    seed: int,
    canonical: str,
    prompt: str,
    state: State,
    **fields: Any,
) -> Problem:
    """A problem of an environment that has a name in the table; `fields` are those of Problem."""
    return Problem(
        uid=f"{environment.name}-{environment.version}/{level}/{seed}",
        domain=environment.domain,
        environment=environment.name,
        level=level,
        seed=seed,
        canonical=f"{environment.name}:{canonical}",
        prompt=prompt,
        verifier="environment",
        arguments={"environment": environment.name, "state": json.loads(json.dumps(state))},
        **fields,
    )


def name_in(arguments: Mapping[str, Any]) -> Any:
    """The environment that a problem's arguments name; older ones of puzzles say `task`."""
    return arguments.get("environment", arguments.get("task"))


def state_of(problem: Problem, environment: Environment) -> State:
    """The state the verifier reads; raises ValueError for a problem of another environment."""
    if (found := name_in(problem.arguments)) != environment.name:
        raise ValueError(
            f"problem {problem.uid} belongs to {found!r}, not {environment.name!r}. "
            "Ask get_environment for its own."
        )
    return problem.arguments["state"]
