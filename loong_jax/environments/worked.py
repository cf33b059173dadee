"""Short environments whose solution is a chain of values, each written after the one before.

A subclass says how a state is drawn and worded, which values lead to the answer, and what is wrong
with an answer, from the state alone. Prompts are terse: what is asked for, and in which form, a
policy learns from the cold start. At level 1 a prompt fits 32 tokens and a worked solution 48, so
the miniature recipe trains on each of them.
"""

import abc
import dataclasses
import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments import environment
from loong_jax.environments.environment import Style
from loong_jax.environments.problem import Domain, Problem
from loong_jax.verifiers import verdict
from loong_jax.verifiers.verdict import Verdict

MAX_ANSWER_CHARS = 64
INTEGER = r"(?:0|-?[1-9][0-9]{0,11})"  # the one way to write it
State = Mapping[str, Any]  # JSON values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worked(abc.ABC):
    """An `Environment`, given the pure functions below."""

    name: str
    domain: Domain
    form: ClassVar[str]  # pattern of all answers

    @abc.abstractmethod
    def draw(self, level: int, rng: random.Random) -> State:
        """A state of this level; `rng` is the only source of chance."""

    @abc.abstractmethod
    def text(self, state: State) -> str:
        """The prompt."""

    @abc.abstractmethod
    def values(self, state: State) -> list[str]:
        """What a careful solution writes down, in order; at least three."""

    @abc.abstractmethod
    def answer(self, state: State) -> str:
        """A right answer."""

    @abc.abstractmethod
    def flaw(self, state: State, answer: str) -> str | None:
        """What is wrong with an answer that has the form, or None; never by way of `answer`."""

    @abc.abstractmethod
    def num_forms(self, level: int) -> int:
        """How many canonical forms the level can draw."""

    def canonical(self, state: State) -> str:
        """Equal for equal problems; the prompt, unless it words one problem in several ways."""
        return self.text(state)

    def problem(self, level: int, seed: int) -> Problem:
        environment.check_level(level)
        state = self.draw(level, random.Random(f"{self.name}/{level}/{seed}"))
        return environment.make_problem(
            self,
            level=level,
            seed=seed,
            canonical=self.canonical(state),
            prompt=self.text(state),
            state=state,
        )

    def gold(self, problem: Problem) -> str:
        return self.answer(environment.state_of(problem, self))

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        values = self.values(environment.state_of(problem, self))
        return Response(environment.write_steps(values, rng, style), self.gold(problem))

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        if not isinstance(answer, str) or len(answer) > MAX_ANSWER_CHARS:
            return verdict.wrong("format", f"not a text of at most {MAX_ANSWER_CHARS} characters")
        answer = answer.strip(" \n")
        if not re.fullmatch(self.form, answer, re.ASCII):
            return verdict.wrong("format", f"not of the form {self.form}")
        flaw = self.flaw(environment.state_of(problem, self), answer)
        return verdict.wrong("value", flaw) if flaw else verdict.correct()

    def num_distinct(self, level: int) -> int:
        environment.check_level(level)
        return self.num_forms(level)
