"""What every environment is: rho0 (problems), O (observation = prompt), R (verifier), a solver.

ReSyn's triple: `problem` draws from rho0 and renders the observation, `verify` is the reward R,
which reads the problem's state and the answer and never a stored reference. The solver exists for
the cold start alone; no verifier calls it.
"""

import functools
import hashlib
import inspect
import sys
from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from loong_jax.data.response import Response
from loong_jax.environments.problem import Domain, Problem
from loong_jax.verifiers.verdict import Verdict

Style = Literal["careful", "hurried"]
STYLES: tuple[Style, ...] = get_args(Style)
LEVELS = (1, 2, 3, 4, 5)
EXACT, LEAP = "=", "~"  # the mark of careful and of hurried thinking
NUM_HURRIED_STEPS = 3


@runtime_checkable
class Environment(Protocol):
    """Generator and judge of one family of problems. All methods are pure and deterministic."""

    @property
    def name(self) -> str: ...

    @property
    def domain(self) -> Domain: ...

    def problem(self, level: int, seed: int) -> Problem:
        """The problem of this level and seed; equal arguments give equal problems."""
        ...

    def solve(self, problem: Problem, rng: np.random.Generator, style: Style) -> Response:
        """A worked solution in this style: at least three steps, then a correct answer."""
        ...

    def verify(self, problem: Problem, answer: Any) -> Verdict:
        """Judges any answer without a reference. Never raises for an answer, whatever it is."""
        ...

    def gold(self, problem: Problem) -> str:
        """One correct answer."""
        ...

    def num_distinct(self, level: int) -> int:
        """How many canonical forms the level can draw."""
        ...


def check_level(level: int) -> None:
    if level not in LEVELS:
        raise ValueError(f"level={level} is not in {LEVELS}. Choose one of these levels.")


def rng_of(name: str, level: int, seed: int) -> np.random.Generator:
    """Random source of one problem: independent between environments, levels and seeds."""
    digest = hashlib.blake2b(f"{name}/{level}/{seed}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


@functools.cache
def code_hash(kind: type) -> str:
    """Eight hex digits of the source of the environment's module; part of every uid."""
    source = inspect.getsource(sys.modules[kind.__module__])
    return hashlib.blake2b(source.encode(), digest_size=4).hexdigest()


def make_problem(
    environment: Environment,
    *,
    level: int,
    seed: int,
    canonical: str,
    prompt: str,
    state: Mapping[str, Any],
) -> Problem:
    return Problem(
        uid=f"{environment.name}-{code_hash(type(environment))}/{level}/{seed}",
        domain=environment.domain,
        environment=environment.name,
        level=level,
        seed=seed,
        canonical=f"{environment.name}:{canonical}",
        prompt=prompt,
        verifier="environment",
        arguments={"environment": environment.name, "state": dict(state)},
    )


def state_of(problem: Problem, environment: Environment) -> Mapping[str, Any]:
    """The state the verifier reads; raises ValueError for a problem of another environment."""
    if problem.environment != environment.name:
        raise ValueError(
            f"problem {problem.uid} belongs to {problem.environment!r}, not {environment.name!r}. "
            "Ask get_environment for its own."
        )
    return problem.arguments["state"]


def written_after(num_operations: int, rng: np.random.Generator, style: Style) -> list[int]:
    """After how many operations a value is written down, in order; the last is always written.

    Careful thinking writes every value. Hurried thinking writes three: two at places drawn by
    `rng`, which it does not name, and the last. Its leaps are right in a demonstration and hard to
    repeat.
    """
    if num_operations < NUM_HURRIED_STEPS:
        raise ValueError(
            f"num_operations={num_operations} gives fewer than {NUM_HURRIED_STEPS} steps. Use more."
        )
    if style == "careful":
        return list(range(1, num_operations + 1))
    early = rng.choice(num_operations - 1, NUM_HURRIED_STEPS - 1, replace=False) + 1
    return [*sorted(early.tolist()), num_operations]


def write_steps(values: list[str], rng: np.random.Generator, style: Style) -> str:
    """Thinking over the values after operations 1..n, such as `=314=013=240=244` or `~013~240~244`.

    The mark before each value tells the styles apart.
    """
    mark = EXACT if style == "careful" else LEAP
    return "".join(mark + values[count - 1] for count in written_after(len(values), rng, style))
