"""From results of runs to the figures of the bench: differences to each group's base arm.

All are in percentage points of sampled pass@1 on held-out problems, paired by problem and seed,
with 95 % intervals that hold the scatter between seeds and between problems (`metrics.over_runs`).
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax.bench.ablation import arms
from loong_jax.bench.ablation.arms import DOMAIN, Arm, Size
from loong_jax.bench.ablation.runs import Run
from loong_jax.bench.short_runs import differences

Results = Mapping[str, Mapping[str, Any]]  # by key of the run


def compare(
    groups: Sequence[str], seeds: Sequence[int], size: Size, results: Results
) -> dict[str, Any]:
    """By group: its question, base and arms, each with its runs and its difference to the base."""
    return {name: _group(arms.GROUPS[name], seeds, size, results) for name in groups}


def _group(group: arms.Group, seeds: Sequence[int], size: Size, results: Results) -> dict[str, Any]:
    found = {name: _of_arm(arm, seeds, size, results) for name, arm in group.arms.items()}
    base = found[group.base]
    return {
        "question": group.question,
        "base": group.base,
        "domain": DOMAIN,
        "arms": {name: _row(ours, base, name == group.base) for name, ours in found.items()},
    }


def _of_arm(
    arm: Arm, seeds: Sequence[int], size: Size, results: Results
) -> dict[int, Mapping[str, Any]]:
    """Results by seed, failures too."""
    runs = {seed: Run(label="", arm=arm, seed=seed, size=size) for seed in seeds}
    return {seed: results[run.key] for seed, run in runs.items() if run.key in results}


def _row(
    ours: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]], is_base: bool
) -> dict[str, Any]:
    good = {seed: result for seed, result in ours.items() if "error" not in result}
    row: dict[str, Any] = {
        "errors": {str(s): r["error"] for s, r in ours.items() if "error" in r},
        "pass@1": {str(seed): result["pass@1"] for seed, result in good.items()},
    }
    if not good:
        return row
    for name in ("pass@1", "consumed_tokens", "mean_staleness", "reread_groups", "cpu_s", "wall_s"):
        row[f"mean_{name}".replace("mean_mean_", "mean_")] = statistics.fmean(
            result[name] for result in good.values()
        )
    for name in ("routing/mismatch_before", "routing/mismatch_after", "engine_ratio/max"):
        values = [v for r in good.values() for v in r["curves"].get(name, ()) if v is not None]
        if values:
            row[name] = max(values) if name.endswith("max") else statistics.fmean(values)
    return row if is_base else row | differences.paired(good, base)


def table(compared: Mapping[str, Any]) -> str:
    """For the terminal."""
    lines = []
    for name, group in compared.items():
        lines += [
            "",
            f"{name}: {group['question']} ({group['domain']}, base {group['base']})",
            f"  {'arm':<16} {'pass@1':>7}  {'difference, points':<26} {'stale':>5} {'tokens':>9} "
            f"{'CPU s':>6}",
        ]
        for arm, row in group["arms"].items():
            lines.append(f"  {arm:<16} {_figures(row, arm == group['base'])}")
            lines += [f"  {'':<16} seed {s}: {why}" for s, why in row["errors"].items()]
    return "\n".join(lines)


def _figures(row: Mapping[str, Any], is_base: bool) -> str:
    if "mean_pass@1" not in row:
        return "no run has ended"
    shown = "base" if is_base else "no pair of runs"
    if "difference_points" in row:
        low, high = row["ci95_points"]
        shown = f"{row['difference_points']:+6.1f}  [{low:+.1f}, {high:+.1f}]"
    return (
        f"{100 * row['mean_pass@1']:6.1f}%  {shown:<26} {row['mean_staleness']:5.2f} "
        f"{row['mean_consumed_tokens']:9.0f} {row['mean_cpu_s']:6.0f}"
    )


def loss_at_two(compared: Mapping[str, Any]) -> str:
    """What staleness 2 costs against staleness 0, in a sentence; empty where it was not run."""
    row = compared.get("staleness", {}).get("arms", {}).get("2", {})
    if "difference_points" not in row:
        return ""
    low, high = row["ci95_points"]
    return (
        f"Loss at staleness 2: {-row['difference_points']:.1f} points of pass@1 "
        f"(95 %: {-high:.1f} to {-low:.1f}); the goal is 1 at most."
    )
