"""From results of runs to the figures of the bench: what each arm gained, and over which other.

All are percentage points of sampled pass@1 on held-out problems, as `short_runs.differences` has
them. Problems fall into groups; the same ones are posed to every arm and to the cold start.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loong_jax.bench.short_runs import differences
from loong_jax.bench.synth.runs import Trained

Chosen = Callable[[str], bool]  # whether a problem's uid is of a group
Groups = Mapping[str, Chosen]  # by name
BySeed = Mapping[int, Mapping[str, Any]]  # results of an arm


def compare(
    trained: Trained, groups: Groups, seeds: Sequence[int], against: str | None = None
) -> dict[str, Any]:
    """By group: the cold start, and each arm with its difference to it.

    `against` names an arm, with which the others are compared besides.
    """
    base = dict.fromkeys(seeds, trained.base)
    found: dict[str, Any] = {}
    for group, chosen in groups.items():
        before = differences.level({0: trained.base}, chosen)
        if not before.get("problems"):
            continue
        found[group] = {
            "cold_start": before,
            "arms": {
                name: _row(results, base, before, chosen)
                | _over(results, trained.by_arm.get(against or "", {}), name == against, chosen)
                for name, results in trained.by_arm.items()
            },
        }
    return found


def _row(
    results: BySeed, base: BySeed, before: Mapping[str, Any], chosen: Chosen
) -> dict[str, Any]:
    after = differences.level(results, chosen)
    row: dict[str, Any] = {
        "errors": {str(s): r["error"] for s, r in results.items() if "error" in r},
        **after,
        **differences.paired(results, base, chosen),
    }
    if after:
        row["is_disjoint"] = after["pass@1_ci95_percent"][0] > before["pass@1_ci95_percent"][1]
    good = [result for result in results.values() if "error" not in result]
    for name in ("cpu_s", "wall_s", "consumed_tokens"):
        if good:
            row[f"max_{name}"] = max(result[name] for result in good)
    return row


def _over(results: BySeed, other: BySeed, is_same: bool, chosen: Chosen) -> dict[str, Any]:
    """The difference to another arm, under a name of its own."""
    found = {} if is_same else differences.paired(results, other, chosen)
    return {"over_other_arm": found} if found else {}


def table(part: str, compared: Mapping[str, Any], against: str | None = None) -> str:
    """For the terminal."""
    lines = []
    for group, rows in compared.items():
        before = rows["cold_start"]
        lines += [
            "",
            f"{part}, {group}: cold start {_level(before)} of {before['problems']} held-out "
            "problems (scripted author)",
        ]
        for name, row in rows["arms"].items():
            lines.append(f"  {name:<20} {_figures(row)}{_other(row, against)}")
            lines += [f"  {'':<20} seed {s}: {why}" for s, why in row["errors"].items()]
    return "\n".join(lines)


def _figures(row: Mapping[str, Any]) -> str:
    if "difference_points" not in row:
        return "no run has ended"
    low, high = row["ci95_points"]
    apart = ", intervals disjoint" if row["is_disjoint"] else ""
    return (
        f"{_level(row)}  {row['difference_points']:+5.1f} points "
        f"[{low:+.1f}, {high:+.1f}]{apart}; {row['max_cpu_s']:.0f} s of CPU at most"
    )


def _level(row: Mapping[str, Any]) -> str:
    low, high = row["pass@1_ci95_percent"]
    return f"{row['pass@1_percent']:.1f} % [{low:.1f}, {high:.1f}]"


def _other(row: Mapping[str, Any], against: str | None) -> str:
    if "over_other_arm" not in row:
        return ""
    other = row["over_other_arm"]
    low, high = other["ci95_points"]
    return f"; over {against} {other['difference_points']:+.1f} [{low:+.1f}, {high:+.1f}]"
