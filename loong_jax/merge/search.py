"""Choosing numbers of a fusion on validation problems.

`grid_search` takes a scale and a keep rate from a grid; `coefficient_search` a coefficient for
every expert, as DF-Merge's outer loop does: arXiv:2504.18992 chooses lambda in [0, 1] per expert by
Bayesian optimisation of the mean validation score, 10 random points and 50 steps, and averages
lambda_i d_i by the Fisher information taken at b + lambda_i d_i. Without importances it is the same
search over task arithmetic.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from loong_jax.errors import ConfigError, refuse_below
from loong_jax.merge import fusion
from loong_jax.merge.methods import FisherDeltas, LongcatFusion, Method, TaskArithmetic
from loong_jax.merge.plan import Experts
from loong_jax.models.parameters import Weights
from loong_jax.own import OwnPart, part_of

Score = float | Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridPoint:
    scale: float | None  # None of a method without
    keep_rate: float | None
    score: float  # -inf where the callback gave NaN
    scores: dict[str, float]  # by domain; empty where the callback gave one number

    @property
    def rank(self) -> tuple[float, float, float]:
        scale = 1 if self.scale is None else self.scale
        return self.score, self.keep_rate or 1, -abs(scale - 1)

    def to_json(self) -> dict[str, Any]:
        score = self.score if math.isfinite(self.score) else None
        return dataclasses.asdict(self) | {"score": score}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchResult:
    method: Method  # with the scale and keep rate that were chosen
    weights: Weights
    chosen: GridPoint
    grid: tuple[GridPoint, ...]

    def to_json(self) -> dict[str, Any]:
        """The choice and the whole grid; a score that was NaN is None."""
        method = {"kind": type(self.method).__name__} | self.method.settings()
        grid = [point.to_json() for point in self.grid]
        return {"method": method, "chosen": self.chosen.to_json(), "grid": grid}


def mean_score(scores: Mapping[str, float]) -> float:
    return math.fsum(scores.values()) / len(scores)


def worst_score(scores: Mapping[str, float]) -> float:
    """The least score, for a fusion that may fail no domain; differences from the expert, say."""
    return min(scores.values())


def grid_search(
    base: Weights,
    experts: Experts,
    score: Callable[[Weights], Score],
    *,
    method: Method | OwnPart | None = None,
    scales: Sequence[float] = (1.0, 1.5, 2.0, 3.0),
    keep_rates: Sequence[float] = (1.0, 0.8, 0.5),
    reduce: Callable[[Mapping[str, float]], float] = mean_score,
    on_point: Callable[[GridPoint], None] = lambda point: None,
    **settings: Any,
) -> SearchResult:
    """Fuses at every scale and keep rate, scores each on validation problems, takes the best.

    Of a method that has one of the two, or neither, there are so many fewer points.
    Of equal scores the higher keep rate wins, then the scale nearest to 1: the one that departs
    least from the experts. Problems that chose the point must not judge the result.

    Args:
        score: the fused weights' score, higher is better: a number, or one per domain.
        method: everything else about the fusion; `LongcatFusion()` unless given.
        reduce: makes one number of the scores per domain.
        on_point: told each point as it is scored.
        settings: passed to `fuse` (weights, batch_axes, rules).

    Raises:
        ConfigError: the grid is empty, or no point has a score.
    """

    def made(candidate: Any, number: float, scores: dict[str, float]) -> GridPoint:
        return GridPoint(
            scale=getattr(candidate, "scale", None),
            keep_rate=getattr(candidate, "keep_rate", None),
            score=-math.inf if math.isnan(number) else number,
            scores=scores,
        )

    grid, best = _tried(
        (candidate for candidate in candidates(method or LongcatFusion(), scales, keep_rates)),
        lambda candidate: fusion.fuse(base, experts, method=candidate, **settings),
        lambda fused: _scored(score(fused), reduce),
        made,
        on_point,
        rank=lambda point: point.rank,
    )
    if best is None:
        raise ConfigError(
            f"None of the {len(grid)} points of scales={tuple(scales)} and"
            f" keep_rates={tuple(keep_rates)} has a score. Widen the grid, or look at `score`."
        )
    chosen, candidate, fused = best
    return SearchResult(method=candidate, weights=fused, chosen=chosen, grid=tuple(grid))


def _tried(
    points: Generator[Any, Any, None],
    fuse: Callable[[Any], Weights],
    scored: Callable[[Weights], tuple[float, dict[str, float]]],
    made: Callable[[Any, float, dict[str, float]], Any],
    told: Callable[[Any], None],
    rank: Callable[[Any], Any],
) -> tuple[list[Any], tuple[Any, Any, Weights] | None]:
    """A record of every point, and of the best that has a score the record, point and weights."""
    trials, best = [], None
    point = next(points, None)
    while point is not None:
        fused = fuse(point)
        number, scores = scored(fused)
        trials.append(trial := made(point, number, scores))
        told(trial)
        if number > -math.inf and (best is None or rank(trial) > rank(best[0])):
            best = trial, point, fused
        try:
            point = points.send(number)
        except StopIteration:
            point = None
    return trials, best


def candidates(
    method: Method | OwnPart, scales: Sequence[float], keep_rates: Sequence[float]
) -> list[Method]:
    """The method with every scale and keep rate, as far as it has such settings."""
    found: Any = part_of(method)
    values = {"keep_rate": keep_rates, "scale": scales}
    names = [name for name in values if hasattr(found, name)]
    return [
        dataclasses.replace(found, **dict(zip(names, point, strict=True)))
        for point in itertools.product(*(values[name] for name in names))
    ]


def _scored(
    found: Score, reduce: Callable[[Mapping[str, float]], float]
) -> tuple[float, dict[str, float]]:
    """One number of the scores, and those by domain."""
    if not isinstance(found, Mapping):
        return float(found), {}
    scores = {str(domain): float(value) for domain, value in found.items()}
    return float(reduce(scores)), scores


# --- a coefficient for every expert --------------------------------------------------------------

Importances = Callable[[str, Weights], Weights]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoefficientSearch:
    """A search for coefficients: the Bayesian optimisation of DF-Merge, or a greedy one."""

    how: Literal["bayesian", "greedy"] = "bayesian"
    low: float = 0.0
    high: float = 1.0
    num_random: int = 10  # of the Bayesian search, before its first model
    num_steps: int = 50  # merges that are scored, besides those
    seed: int = 0

    def __post_init__(self):
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise ConfigError(f"low={self.low} must be below high={self.high}, both finite.")
        refuse_below(self, 1, "num_random", "num_steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    coefficients: dict[str, float]  # by expert
    score: float  # NaN where the callback gave it
    scores: dict[str, float]  # by domain; empty where the callback gave one number


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoefficientResult:
    weights: Weights  # fused with the coefficients chosen
    chosen: Trial
    trials: tuple[Trial, ...]


def coefficient_search(
    base: Weights,
    experts: Mapping[str, Weights],
    score: Callable[[Weights], Score],
    *,
    search: CoefficientSearch | None = None,
    method: Method | None = None,
    importances: Importances | None = None,
    reduce: Callable[[Mapping[str, float]], float] = mean_score,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    **settings: Any,
) -> CoefficientResult:
    """Fuses with coefficients as the experts' weights, scores each merge, keeps the best.

    Args:
        score: the fused weights' score, higher is better: a number, or one per domain. The problems
            behind it must not judge the result.
        method: any that takes weights; `FisherDeltas()` where importances are given, else
            `TaskArithmetic()`.
        importances: makes those of the expert called NAME from b + lambda_i d_i; called for every
            expert of every trial (`diagonal_fisher` is of the right form).
        reduce: makes one number of the scores per domain.
        settings: passed to `fuse` (batch_axes, rules).

    Of equal scores the first wins. Raises ConfigError where no trial has a score.
    """
    search = CoefficientSearch() if search is None else search
    if method is None:
        method = TaskArithmetic() if importances is None else FisherDeltas()
    names = sorted(experts)
    low, high = (np.full(len(names), bound) for bound in (search.low, search.high))
    if search.how == "bayesian":
        points = bayesian(
            low, high, num_random=search.num_random, num_steps=search.num_steps, seed=search.seed
        )
    else:
        start = np.full(len(names), 1 / len(names))
        points = greedy(low, high, num_steps=search.num_steps, start=start)

    def fused_at(point: Point) -> Weights:
        chosen = dict(zip(names, point.tolist(), strict=True))
        beside: dict[str, Any] = {}
        if importances is not None:
            beside["importances"] = made = {}
            for name, share in chosen.items():  # at b + lambda d
                scaled = TaskArithmetic(scale=share)
                part_way = fusion.fuse(base, {name: experts[name]}, method=scaled, **settings)
                made[name] = importances(name, part_way)
        return fusion.fuse(base, experts, method=method, weights=chosen, **beside, **settings)

    trials, best = _tried(
        points,
        fused_at,
        lambda fused: _scored(score(fused), reduce),
        lambda point, number, scores: Trial(
            coefficients=dict(zip(names, point.tolist(), strict=True)), score=number, scores=scores
        ),
        on_trial,
        rank=lambda trial: trial.score,
    )
    if best is None:
        raise ConfigError(f"None of {len(trials)} trials has a score. Look at `score`.")
    chosen, _, weights = best
    return CoefficientResult(weights=weights, chosen=chosen, trials=tuple(trials))


# --- points of a box, from generators that are sent scores: same seed and scores, same points ----

Point = Float[np.ndarray, " I"]
Proposals = Generator[Point, float, None]

_CANDIDATES = 2048  # points at which expected improvement is compared
_LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)  # of the kernel, in units of the box
_NOISE = (1e-4, 1e-2, 1e-1)  # variance, in units of the scores' own


def bayesian(low: Point, high: Point, *, num_random: int, num_steps: int, seed: int) -> Proposals:
    """Random points, then the best expected improvement under a Gaussian process.

    Matern 5/2 kernel; length and noise maximise the likelihood on a grid (Rasmussen and Williams,
    2006, 2.2 and 4.2). A score that is not finite counts as the worst so far.
    """
    draw = np.random.default_rng(seed)
    points: list[Point] = []
    scores: list[float] = []
    for number in range(num_random + num_steps):
        if number < num_random:
            unit = draw.random(len(low))
        else:
            unit = _most_improving(np.array(points), np.array(scores), draw)
        score = yield low + unit * (high - low)
        points.append(unit)
        scores.append(score if math.isfinite(score) else min(scores, default=0.0))


def greedy(low: Point, high: Point, *, num_steps: int, start: Point) -> Proposals:
    """Coordinate search from `start`: one up or down at a time; where nothing helps, half the step.

    A score that is not finite is never an improvement.
    """
    best, step = np.clip(start, low, high), 0.25  # of the box
    best_score = yield best
    num_left = num_steps - 1
    while num_left > 0 and step > 1e-3:
        improved = False
        for axis in range(len(best)):
            for sign in (1, -1):
                trial = best.copy()
                moved = best[axis] + sign * step * (high[axis] - low[axis])
                trial[axis] = np.clip(moved, low[axis], high[axis])
                if trial[axis] == best[axis] or num_left <= 0:
                    continue
                score = yield trial
                num_left -= 1
                if score > best_score or (math.isfinite(score) and not math.isfinite(best_score)):
                    best, best_score, improved = trial, score, True
                    break
        if not improved:
            step /= 2


def _most_improving(points: np.ndarray, scores: np.ndarray, draw: np.random.Generator) -> Point:
    best = points[np.argmax(scores)]
    near = best + draw.normal(size=(_CANDIDATES // 4, len(best))) * 0.05
    anywhere = draw.random((_CANDIDATES - len(near), len(best)))
    candidates = np.clip(np.concatenate([anywhere, near]), 0.0, 1.0)
    spread = scores.std()
    if not spread:
        return candidates[0]
    mean, deviation = posterior(points, (scores - scores.mean()) / spread, candidates)
    gain = mean - (scores.max() - scores.mean()) / spread
    ratio = gain / deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    share = 0.5 * (1 + np.vectorize(math.erf)(ratio / math.sqrt(2)))
    return candidates[np.argmax(gain * share + deviation * density)]


def posterior(
    points: np.ndarray, scores: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation at `at`, under the likeliest length and noise of the grid."""
    fits = []
    for length in _LENGTHS:
        kernel = matern(points, points, length)
        for noise in _NOISE:
            factor = np.linalg.cholesky(kernel + noise * np.eye(len(points)))
            whitened = np.linalg.solve(factor, scores)
            likelihood = -0.5 * whitened @ whitened - np.log(np.diagonal(factor)).sum()
            fits.append((likelihood, length, factor, whitened))
    _, length, factor, whitened = max(fits, key=lambda fit: fit[0])
    between = np.linalg.solve(factor, matern(points, at, length))
    variance = np.maximum(1.0 - np.square(between).sum(0), 1e-12)
    return between.T @ whitened, np.sqrt(variance)


def matern(x: np.ndarray, y: np.ndarray, length: float) -> np.ndarray:
    """(1 + r + r^2 / 3) exp(-r) with r = sqrt(5) |x - y| / length."""
    distance = np.linalg.norm(x[:, None] - y[None], axis=-1)
    r = math.sqrt(5) * distance / length
    return (1 + r + r**2 / 3) * np.exp(-r)
