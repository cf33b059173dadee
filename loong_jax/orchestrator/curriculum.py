"""Curricula: the problems posed, and the limit of responses, as training goes on.

Two curricula of arXiv:2509.18883, 3.4.1, as data and pure functions. STEM: problems are included by
their pass rate, and thresholds that move make the data harder. Code: the limit of a response grows
once the 90th percentile of lengths comes near it. The report gives no thresholds, and by default
there are none. What both remember is a `CurriculumState`, plain values that a checkpoint holds.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from loong_jax.errors import ConfigError
from loong_jax.problems.problem import Problem, current_uid

MAX_PASSED_OVER = 256  # problems in a row that may be set aside; the next one is posed anyway


def bound_at(bounds: Sequence[tuple[int, float]], step: int) -> float:
    """The bound of the last step that has come."""
    return [rate for first, rate in bounds if first <= step][-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassRates:
    """Sets aside what the policy solves too often or too seldom, for a while.

    The pass rate is a running mean over groups, of right answers among graded ones: of a problem
    where problems come again, as in a file, or of an environment's level where they do not. It is
    compared from `after_groups` on with the bounds in force, of `floors` and `ceilings` those with
    the last step that has come. Above the ceiling or below the floor, the problem is not posed for
    `pause` tickets of the run; then its rate is measured anew by the next group. Without bounds
    nothing is set aside or remembered.
    """

    of: Literal["problem", "level"] = "problem"
    floors: tuple[tuple[int, float], ...] = ((0, 0.0),)  # (step, rate): falling lets harder ones in
    ceilings: tuple[tuple[int, float], ...] = ((0, 1.0),)  # (step, rate): 0 0.95 for one, always
    weight: float = 0.5  # of the newest group in the mean
    after_groups: int = 1
    pause: int = 500

    @property
    def is_on(self) -> bool:
        return any(rate > 0 for _, rate in self.floors) or any(r < 1 for _, r in self.ceilings)

    def __post_init__(self):
        for name in ("floors", "ceilings"):
            bounds = getattr(self, name)
            steps = [step for step, _ in bounds]
            if not steps or steps[0] != 0 or steps != sorted(set(steps)):
                raise ConfigError(
                    f"{name}={bounds} must begin with step 0 and go on with rising steps."
                )
            if not all(0 <= rate <= 1 for _, rate in bounds):
                raise ConfigError(f"{name}={bounds} holds rates outside [0, 1]. Correct them.")
        for step in {step for step, _ in (*self.floors, *self.ceilings)}:
            if bound_at(self.floors, step) > bound_at(self.ceilings, step):
                raise ConfigError(
                    f"at step {step} the floor {bound_at(self.floors, step)} is above the ceiling "
                    f"{bound_at(self.ceilings, step)}, so nothing would be posed. Correct floors "
                    "or ceilings."
                )
        if not 0 < self.weight <= 1 or self.after_groups < 1 or self.pause < 1:
            raise ConfigError(
                f"weight={self.weight} must lie in (0, 1], after_groups={self.after_groups} and "
                f"pause={self.pause} be at least 1."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowingContext:
    """Responses are cut off at the first of `limits`, until they need the next.

    Once `window` responses were written under a limit, and the percentile of the last `window`
    lengths is at least `near` of it, the next limit holds for groups that are issued from then on.
    """

    limits: tuple[int, ...] = ()  # tokens, rising; none above sampling.max_new_tokens; (): that
    percentile: float = 90.0
    near: float = 0.9
    window: int = 256

    @property
    def is_on(self) -> bool:
        return bool(self.limits)

    def __post_init__(self):
        if min(self.limits, default=1) < 1 or list(self.limits) != sorted({*self.limits}):
            raise ConfigError(f"limits={self.limits} must be rising numbers of tokens.")
        if not 0 < self.percentile <= 100 or not 0 < self.near <= 1 or self.window < 1:
            raise ConfigError(
                f"percentile={self.percentile} must lie in (0, 100], near={self.near} in (0, 1], "
                f"and window={self.window} be at least 1."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The curricula of a stage; by default none does anything."""

    pass_rates: PassRates = PassRates()
    context: GrowingContext = GrowingContext()

    def __post_init__(self):
        for name, off in (("pass_rates", PassRates()), ("context", GrowingContext())):
            if getattr(self, name) is None:  # in configs that were written when None left one out
                object.__setattr__(self, name, off)

    @property
    def is_on(self) -> bool:
        return self.used() != (None, None)

    def used(self) -> tuple[PassRates | None, GrowingContext | None]:
        """The two curricula, None for one that does nothing."""
        rates, context = self.pass_rates, self.context
        return rates if rates.is_on else None, context if context.is_on else None


class Standing(NamedTuple):
    """The record of a problem or a level."""

    rate: float  # running mean
    num_groups: int
    ticket: int  # the run's number of tickets when it was last judged


class CurriculumState(NamedTuple):
    """All that the curricula remember."""

    standings: Mapping[str, Standing] = MappingProxyType({})
    num_passed_over: int = 0  # problems that were not posed, over the run
    stage: int = 0  # index of the limit in force
    lengths: tuple[int, ...] = ()  # of the last responses under it


# ---- pass rates ---------------------------------------------------------------------------------


def key_of(settings: PassRates, problem: Problem) -> str:
    """The key under which a problem's pass rate is kept: the problem itself, or its level."""
    if settings.of == "problem":
        return problem.uid
    return f"{problem.environment}/{problem.level}"


def is_posed(
    settings: PassRates, state: CurriculumState, problem: Problem, *, step: int, ticket: int
) -> bool:
    """True if a problem is posed as ticket `ticket`, after `step` steps."""
    standing = state.standings.get(key_of(settings, problem))
    if standing is None or standing.num_groups < settings.after_groups:
        return True
    if ticket - standing.ticket > settings.pause:
        return True
    floor, ceiling = bound_at(settings.floors, step), bound_at(settings.ceilings, step)
    return floor <= standing.rate <= ceiling


def after_verdicts(
    settings: PassRates,
    state: CurriculumState,
    problem: Problem,
    outcomes: Sequence[str],
    *,
    ticket: int,
) -> CurriculumState:
    """The state after the verdicts on a group; ungradable ones change nothing."""
    graded = [outcome for outcome in outcomes if outcome in ("correct", "wrong")]
    if not graded:
        return state
    rate = graded.count("correct") / len(graded)
    key = key_of(settings, problem)
    old = state.standings.get(key)
    if old is not None:
        is_anew = ticket - old.ticket > settings.pause
        weight = 1.0 if is_anew else settings.weight
        rate = weight * rate + (1 - weight) * old.rate
    num_groups = 1 if old is None else old.num_groups + 1
    standing = Standing(rate, num_groups, ticket)
    return state._replace(standings={**state.standings, key: standing})


# ---- context ------------------------------------------------------------------------------------


def limit_of(settings: GrowingContext, state: CurriculumState) -> int:
    """Tokens of a response that is issued now."""
    return settings.limits[state.stage]


def after_lengths(
    settings: GrowingContext, state: CurriculumState, lengths: Sequence[int], *, limit: int | None
) -> CurriculumState:
    """The state after the lengths of a group that was issued under `limit`; those of another limit
    are left out. The next limit is in force where they say so.
    """
    if limit != limit_of(settings, state):
        return state
    kept = (*state.lengths, *lengths)[-settings.window :]
    is_last = state.stage + 1 == len(settings.limits)
    if len(kept) < settings.window or is_last:
        return state._replace(lengths=kept)
    if percentile(kept, settings.percentile) < settings.near * limit_of(settings, state):
        return state._replace(lengths=kept)
    return state._replace(stage=state.stage + 1, lengths=())


def percentile(values: Sequence[int], percent: float) -> int:
    """The smallest value that at least `percent` of a hundred values do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


# ---- what is kept and shown ---------------------------------------------------------------------


def metrics(
    curriculum: Curriculum, state: CurriculumState, *, step: int, ticket: int
) -> dict[str, Any]:
    """Counters for the line of a step; {} without curricula."""
    found: dict[str, Any] = {}
    if (rates := curriculum.pass_rates).is_on:
        floor, ceiling = bound_at(rates.floors, step), bound_at(rates.ceilings, step)
        resting = [
            standing
            for standing in state.standings.values()
            if standing.num_groups >= rates.after_groups and ticket - standing.ticket <= rates.pause
        ]
        found |= {
            "curriculum/num_known": len(state.standings),
            "curriculum/num_too_easy": sum(standing.rate > ceiling for standing in resting),
            "curriculum/num_too_hard": sum(standing.rate < floor for standing in resting),
            "curriculum/num_passed_over": state.num_passed_over,
            "curriculum/floor": floor,
            "curriculum/ceiling": ceiling,
        }
    if (context := curriculum.context).is_on:
        found["curriculum/max_new_tokens"] = limit_of(context, state)
        if state.lengths:
            found["curriculum/length_percentile"] = percentile(state.lengths, context.percentile)
    return found


def to_json(state: CurriculumState) -> dict[str, Any]:
    standings = {key: list(standing) for key, standing in state.standings.items()}
    return state._asdict() | {"standings": standings, "lengths": list(state.lengths)}


def from_json(record: Mapping[str, Any]) -> CurriculumState:
    standings = {current_uid(key): Standing(*of) for key, of in record["standings"].items()}
    given = {"standings": standings, "lengths": tuple(record["lengths"])}
    return CurriculumState(**{**record, **given})
