"""Paired differences of held-out pass@1 between runs, over seeds.

All are in percentage points, paired by problem and seed, with 95 % intervals that hold the scatter
between seeds and between problems (`metrics.over_runs`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from loong_jax.eval import metrics
from loong_jax.eval.evaluation import DomainEvaluation

Chosen = Callable[[str], bool]  # by uid of a problem


def every(uid: str) -> bool:
    return True


def paired(
    ours: Mapping[int, Mapping[str, Any]],
    base: Mapping[int, Mapping[str, Any]],
    chosen: Chosen = every,
) -> dict[str, Any]:
    """The difference `ours - base` over the seeds that both have; {} where there is none.

    Both map a seed to the result of its run, as `results.of_stage` makes them; one with an "error"
    is passed over. `chosen` says which problems are looked at.
    """
    seeds = [seed for seed in _good(ours) if seed in _good(base)]
    if not seeds:
        return {}
    estimates = [difference(ours[seed], base[seed], seed, chosen) for seed in seeds]
    over = metrics.over_runs(estimates)
    return {
        "difference_points": 100 * over.value,
        "ci95_points": [100 * over.low, 100 * over.high],
        "by_seed_points": {str(s): 100 * e.value for s, e in zip(seeds, estimates, strict=True)},
        "seeds": len(seeds),
        "problems": over.n,
    }


def difference(
    ours: Mapping[str, Any], base: Mapping[str, Any], seed: int = 0, chosen: Chosen = every
) -> metrics.Estimate:
    """Of pass@1, paired by problem; a share, not points."""
    return metrics.paired_difference(rates(ours, chosen), rates(base, chosen), seed=seed)


def level(results: Mapping[int, Mapping[str, Any]], chosen: Chosen = every) -> dict[str, Any]:
    """Pass@1 itself over seeds, in per cent; {} where no run has ended."""
    good = _good(results)
    estimates = [
        metrics.mean_estimate(list(rates(result, chosen).values()), seed=seed)
        for seed, result in good.items()
    ]
    if not estimates:
        return {}
    over = metrics.over_runs(estimates)
    return {
        "pass@1_percent": 100 * over.value,
        "pass@1_ci95_percent": [100 * over.low, 100 * over.high],
        "problems": over.n,
    }


def rates(result: Mapping[str, Any], chosen: Chosen = every) -> dict[str, float]:
    """Share of right samples by uid, of the chosen problems of a result."""
    rate = DomainEvaluation.from_json(result["evaluation"]).rate()
    return {uid: share for uid, share in rate.items() if chosen(uid)}


def _good(results: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    return {seed: result for seed, result in results.items() if "error" not in result}
