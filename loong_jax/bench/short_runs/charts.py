"""Panels that pictures of short runs are made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from loong_jax.report import theme
from loong_jax.report.theme import LIGHT

COLORS = (LIGHT.muted, *theme.DOMAIN_COLORS.values(), *theme.OTHER_COLORS)
SMOOTHED = 5  # steps


def differences(axes: Axes, rows: Mapping[str, Mapping[str, Any]], base: str) -> None:
    """A point with its interval for each row that has a `difference_points`, seeds as ticks."""
    for place, (color, row) in enumerate(zip(COLORS, rows.values(), strict=False)):
        if "difference_points" not in row:
            continue
        value, (low, high) = row["difference_points"], row["ci95_points"]
        axes.errorbar(
            [value], [place], xerr=[[value - low], [high - value]], fmt="o", color=color, capsize=3
        )
        each = list(row["by_seed_points"].values())
        axes.plot(each, np.full(len(each), place + 0.18), "|", color=color, markersize=7)
    axes.axvline(0, color=LIGHT.ink, lw=1)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"points of held-out pass@1 against {base}")
    axes.set_title("Difference with 95 % interval")


def rewards(axes: Axes, name: str, color: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Mean over seeds, smoothed over a few steps."""
    curves = [r["curves"].get("rewards/mean", ()) for r in runs]
    length = min(map(len, curves), default=0)
    if not length:
        return
    mean = np.mean([np.array(curve[:length], float) for curve in curves], axis=0)
    width = min(SMOOTHED, length)
    smooth = np.convolve(mean, np.ones(width) / width, mode="valid")
    axes.plot(np.arange(width, length + 1), smooth, color=color, label=name, lw=1.6)
