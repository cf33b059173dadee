"""Calibration of an environment's levels: the solve rate must fall as the level rises.

ReSyn keeps an environment if logit P(solved) = a + b * level has b < 0 by a one-sided Wald test at
0.05. Where solved and failed attempts are separated by level the estimate of b is infinite and its
standard error explodes, so a perfect step would be dropped: there the exact conditional trend test
decides. Both ask too little of a large sample, so a fall must also be worth having (`min_drop`),
and a policy must have something to learn (`target_band`).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import tyro

from loong_jax.errors import ConfigError

Decision = Literal["kept", "flat", "inverted", "impossible", "trivial"]
_MAX_ITERATIONS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationRule:
    """The condition to keep an environment. Rates are shares of attempts that were graded."""

    # of the solver, each on an instance of its own; docs/how-to/synthesis.md: power of each number
    attempts_per_level: Annotated[int, tyro.conf.arg(aliases=["--attempts"])] = 32
    alpha: float = 0.05  # one-sided
    min_drop: float = 0.25  # of the fitted rate, from the first to the last level
    target_band: tuple[float, float] = (0.05, 0.95)  # of the mean rate over levels

    def __post_init__(self):
        low, high = self.target_band
        if not 0 <= low < high <= 1:
            raise ConfigError(f"target_band={self.target_band} is no interval in 0..1. Correct it.")
        if self.attempts_per_level < 4:
            raise ConfigError(
                f"attempts_per_level={self.attempts_per_level} shows nothing. Use 4 or more; "
                "docs/how-to/synthesis.md has the power of each number."
            )
        if not 0 < self.alpha < 0.5 or not 0 <= self.min_drop < 1:
            raise ConfigError(
                f"alpha={self.alpha} must be in (0, 0.5) and min_drop={self.min_drop} in [0, 1)."
            )


class LevelCount(NamedTuple):
    level: int
    num_solved: int
    num_attempts: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    decision: Decision
    test: Literal["wald", "exact", "none"]
    p_falling: float  # one-sided, of the slope being zero
    drop: float  # fitted rate at the first level minus that at the last
    rate: float  # mean over levels
    counts: tuple[LevelCount, ...]


class Fit(NamedTuple):
    """Logistic regression of solved on level, by maximum likelihood."""

    intercept: float
    slope: float
    slope_error: float  # standard error, from the information matrix


def fit_logistic(counts: Sequence[LevelCount]) -> Fit | None:
    """The fit by Newton's method, or None where none exists, because levels separate outcomes."""
    if is_separated(counts):
        return None
    level, solved, tried = (np.array(column, float) for column in zip(*counts, strict=True))
    centre = float(np.average(level, weights=tried))
    design = np.stack([np.ones_like(level), level - centre], axis=1)
    beta = np.zeros(2)
    for _ in range(_MAX_ITERATIONS):
        rate = 1 / (1 + np.exp(-design @ beta))
        information = design.T @ (design * (tried * rate * (1 - rate))[:, None])
        step = np.linalg.solve(information, design.T @ (solved - tried * rate))
        step *= min(1.0, 4.0 / max(np.abs(step).max(), 1e-300))  # stays where curvature is
        beta = beta + step
        if np.abs(step).max() < 1e-12:
            break
    rate = 1 / (1 + np.exp(-design @ beta))
    information = design.T @ (design * (tried * rate * (1 - rate))[:, None])
    error = math.sqrt(float(np.linalg.inv(information)[1, 1]))
    return Fit(float(beta[0] - beta[1] * centre), float(beta[1]), error)


def is_separated(counts: Sequence[LevelCount]) -> bool:
    """True if some level divides solved from failed, the dividing level itself aside.

    Also true where all attempts end alike, or all levels with attempts are one.
    """
    solved = [c.level for c in counts if c.num_solved]
    failed = [c.level for c in counts if c.num_solved < c.num_attempts]
    if not solved or not failed:
        return True
    return max(solved) <= min(failed) or max(failed) <= min(solved)


def wald_p_falling(fit: Fit) -> float:
    """P(Z <= slope / error): small where the rate falls with the level."""
    return 0.5 * math.erfc(-fit.slope / fit.slope_error / math.sqrt(2))


def exact_p_falling(counts: Sequence[LevelCount]) -> float:
    """Exact conditional trend test: P(sum of solved levels <= the one seen | number solved).

    With no effect of the level, every choice of that many attempts out of all is equally likely to
    be the solved ones (the conditional form of Cochran's and Armitage's test). Choices are counted
    by dynamic programming over levels, scaled by powers of two.
    """
    first = counts[0].level
    total = sum(c.num_solved for c in counts)
    seen = sum((c.level - first) * c.num_solved for c in counts)
    top = total * (counts[-1].level - first)
    ways = np.zeros((total + 1, top + 1))  # [number solved, sum of levels] -> choices
    ways[0, 0] = 1.0
    for c in counts:
        after = np.zeros_like(ways)
        for k in range(min(c.num_attempts, total) + 1):
            shift = k * (c.level - first)
            if shift > top:
                break
            choices = math.comb(c.num_attempts, k) / 2**c.num_attempts
            after[k:, shift:] += choices * ways[: total + 1 - k, : top + 1 - shift]
        ways = after
    return float(ways[total, : seen + 1].sum() / ways[total].sum())


def calibrate(counts: Sequence[LevelCount], rule: CalibrationRule) -> Calibration:
    """The decision on an environment from its solved attempts per level.

    Levels ascend; there are two at least, each with attempts.
    """
    rates = [c.num_solved / c.num_attempts for c in counts]
    mean = sum(rates) / len(rates)
    low, high = rule.target_band
    made = functools.partial(Calibration, rate=mean, counts=tuple(counts))
    drop = rates[0] - rates[-1]
    if not low <= mean <= high:  # too few of one outcome to ask for a slope
        end: Decision = "impossible" if mean < low else "trivial"
        return made(decision=end, test="none", p_falling=1.0, drop=drop)
    if (fit := fit_logistic(counts)) is None:
        test = "exact"
        failed = [c._replace(num_solved=c.num_attempts - c.num_solved) for c in counts]
        p_falling, p_rising = exact_p_falling(counts), exact_p_falling(failed)
    else:
        test, drop = "wald", _rate(fit, counts[0].level) - _rate(fit, counts[-1].level)
        p_falling = wald_p_falling(fit)
        p_rising = 1 - p_falling
    decision: Decision = "flat"
    if p_falling < rule.alpha and drop >= rule.min_drop:
        decision = "kept"
    elif p_rising < rule.alpha and -drop >= rule.min_drop:
        decision = "inverted"
    return made(decision=decision, test=test, p_falling=p_falling, drop=drop)


def _rate(fit: Fit, level: int) -> float:
    return 1 / (1 + math.exp(-(fit.intercept + fit.slope * level)))
