"""How often calibration decides rightly, on planted solve rates: the power of each sample size.

Nothing of an author or an environment takes part: attempts are coin tosses.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loong_jax.synth.resyn.measures import CalibrationRule, Decision, LevelCount, calibrate

NUM_LEVELS = 5
PLANTED: Mapping[str, tuple[Decision, tuple[float, ...]]] = {
    "falling": ("kept", (0.9, 0.75, 0.5, 0.3, 0.15)),
    "falling late": ("kept", (0.95, 0.95, 0.9, 0.6, 0.2)),
    "step": ("kept", (1.0, 1.0, 1.0, 0.0, 0.0)),
    "noisy step": ("kept", (0.97, 0.97, 0.03, 0.03, 0.03)),
    "flat": ("flat", (0.5,) * 5),
    "flat, hard": ("flat", (0.15,) * 5),
    "inverted": ("inverted", (0.15, 0.3, 0.5, 0.75, 0.9)),
    "impossible": ("impossible", (0.01,) * 5),
    "trivial": ("trivial", (0.99,) * 5),
}
DROPS = tuple(round(0.05 * i, 2) for i in range(-4, 19))  # of the rate, first to last level


def decide(rates: Sequence[float], rule: CalibrationRule, rng: np.random.Generator) -> Decision:
    """The decision on one sample of attempts at these true rates."""
    solved = rng.binomial(rule.attempts_per_level, rates)
    counts = [LevelCount(i + 1, int(k), rule.attempts_per_level) for i, k in enumerate(solved)]
    return _decide(tuple(counts), rule)


@functools.lru_cache(maxsize=1 << 16)
def _decide(counts: tuple[LevelCount, ...], rule: CalibrationRule) -> Decision:
    return calibrate(counts, rule).decision


def straight(drop: float) -> tuple[float, ...]:
    """Rates around one half that fall by `drop` in equal parts."""
    return tuple(float(r) for r in np.linspace(0.5 + drop / 2, 0.5 - drop / 2, NUM_LEVELS))


def measure(num_samples: int, *, seed: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Shares of right decisions per planted curve and size, and of `kept` per drop and size."""
    result: dict[str, Any] = {"planted": {}, "kept_by_drop": {}}
    for size in sizes:
        rule = CalibrationRule(attempts_per_level=size)
        for name, (right, rates) in PLANTED.items():
            rng = np.random.default_rng((seed, size, sum(name.encode())))
            hits = sum(decide(rates, rule, rng) == right for _ in range(num_samples))
            result["planted"].setdefault(name, {})[size] = hits / num_samples
        result["kept_by_drop"][size] = [
            sum(decide(straight(drop), rule, rng) == "kept" for _ in range(num_samples))
            / num_samples
            for drop, rng in ((d, np.random.default_rng((seed, size, i)))
                              for i, d in enumerate(DROPS))
        ]  # fmt: skip
    return result
