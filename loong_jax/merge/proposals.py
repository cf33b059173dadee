"""Proposals of a search over a box, as generators that yield points and are sent scores.

They know nothing of merging and ask for no device. Same seed and scores, same points.
"""

import math
from collections.abc import Generator

import numpy as np
from jaxtyping import Float

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
