"""Curricula: the problems posed, and the limit of responses, as training goes on.

Two curricula of arXiv:2509.18883, 3.4.1. STEM: problems are included by their pass rate, and
thresholds that move make the data harder. Code: the limit of a response grows once the 90th
percentile of lengths comes near it. The report gives no thresholds, and by default there are none.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from loong_jax.errors import ConfigError, refuse_below, refuse_no_share
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
        refuse_no_share(self, "weight")
        refuse_below(self, 1, "after_groups", "pause")


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
        refuse_no_share(self, "near")
        refuse_below(self, 1, "window")
        if not 0 < self.percentile <= 100:
            raise ConfigError(f"percentile={self.percentile} is not in (0, 100]. Choose one there.")


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
        return self.pass_rates.is_on or self.context.is_on


class Standing(NamedTuple):
    """The record of a problem or a level."""

    rate: float  # running mean
    num_groups: int
    ticket: int  # the run's number of tickets when it was last judged


class Course:
    """The memory of the curricula of a run."""

    def __init__(self, curriculum: Curriculum):
        self._rates, self._context = curriculum.pass_rates, curriculum.context
        self.standings: dict[str, Standing] = {}
        self.num_passed_over = 0  # problems that were not posed, over the run
        self.stage = 0  # index of the limit in force
        self.lengths: tuple[int, ...] = ()  # of the last responses under it

    @property
    def limit(self) -> int | None:
        """Tokens of a response that is issued now; None for as many as the sampling allows."""
        return self._context.limits[self.stage] if self._context.is_on else None

    def is_posed(self, problem: Problem, *, step: int, ticket: int) -> bool:
        """True if a problem is posed as ticket `ticket`, after `step` steps."""
        standing = self.standings.get(self._key_of(problem))
        if standing is None or not self._rests(standing, ticket):
            return True
        floor, ceiling = self._bounds(step)
        return floor <= standing.rate <= ceiling

    def judged(self, problem: Problem, outcomes: Sequence[str], *, ticket: int) -> None:
        """The verdicts on a group of an open ticket; ungradable ones change nothing."""
        graded = [outcome for outcome in outcomes if outcome in ("correct", "wrong")]
        if not graded or not self._rates.is_on:
            return
        rate, num_groups = graded.count("correct") / len(graded), 1
        key = self._key_of(problem)
        if old := self.standings.get(key):
            is_anew = ticket - old.ticket > self._rates.pause
            weight = 1.0 if is_anew else self._rates.weight
            rate = weight * rate + (1 - weight) * old.rate
            num_groups += old.num_groups
        self.standings[key] = Standing(rate, num_groups, ticket)

    def written(self, lengths: Sequence[int], *, limit: int | None) -> None:
        """The lengths of a group that was issued under `limit`; those of another limit are left
        out. The next limit is in force where they say so.
        """
        context = self._context
        if limit is None or limit != self.limit:
            return
        self.lengths = (*self.lengths, *lengths)[-context.window :]
        is_last = self.stage + 1 == len(context.limits)
        if len(self.lengths) < context.window or is_last:
            return
        if self._percentile() >= context.near * limit:
            self.stage, self.lengths = self.stage + 1, ()

    def metrics(self, step: int, ticket: int) -> dict[str, Any]:
        """Counters for the line of a step, after so many tickets."""
        found: dict[str, Any] = {}
        if self._rates.is_on:
            floor, ceiling = self._bounds(step)
            rates = [s.rate for s in self.standings.values() if self._rests(s, ticket)]
            found |= {
                "curriculum/num_known": len(self.standings),
                "curriculum/num_too_easy": sum(rate > ceiling for rate in rates),
                "curriculum/num_too_hard": sum(rate < floor for rate in rates),
                "curriculum/num_passed_over": self.num_passed_over,
                "curriculum/floor": floor,
                "curriculum/ceiling": ceiling,
            }
        if self._context.is_on:
            found["curriculum/max_new_tokens"] = self.limit
            if self.lengths:
                found["curriculum/length_percentile"] = self._percentile()
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "standings": {key: list(standing) for key, standing in self.standings.items()},
            "num_passed_over": self.num_passed_over,
            "stage": self.stage,
            "lengths": list(self.lengths),
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        self.standings = {current_uid(k): Standing(*of) for k, of in record["standings"].items()}
        self.num_passed_over, self.stage = record["num_passed_over"], record["stage"]
        self.lengths = tuple(record["lengths"])

    def _key_of(self, problem: Problem) -> str:
        level = f"{problem.environment}/{problem.level}"
        return problem.uid if self._rates.of == "problem" else level

    def _bounds(self, step: int) -> tuple[float, float]:
        return bound_at(self._rates.floors, step), bound_at(self._rates.ceilings, step)

    def _rests(self, standing: Standing, ticket: int) -> bool:
        """True while its rate decides whether it is posed."""
        is_known = standing.num_groups >= self._rates.after_groups
        return is_known and ticket - standing.ticket <= self._rates.pause

    def _percentile(self) -> int:
        """The smallest length that so many in a hundred do not exceed."""
        rank = math.ceil(self._context.percentile / 100 * len(self.lengths))
        return sorted(self.lengths)[max(0, rank - 1)]
