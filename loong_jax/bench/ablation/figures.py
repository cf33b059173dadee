"""One picture for each group: differences to the base arm, and rewards by step."""

from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax.bench.ablation.arms import DOMAIN, GROUPS, Size
from loong_jax.bench.ablation.runs import Run
from loong_jax.bench.short_runs import charts
from loong_jax.report import theme
from loong_jax.report.theme import LIGHT


def png(
    name: str,
    compared: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    size: Size,
) -> bytes:
    """The picture of group `name`; `compared` is its part of `comparing.compare`."""
    with theme.style(LIGHT):
        figure, (left, right) = theme.new_figure(980, 300, 2)
        figure.suptitle(f"{name}: {compared['question']}", x=0.01, ha="left", fontsize=12)
        charts.differences(left, compared["arms"], compared["base"])
        for color, (arm_name, arm) in zip(charts.COLORS, GROUPS[name].arms.items(), strict=False):
            runs = (Run(label="", arm=arm, seed=seed, size=size) for seed in seeds)
            found = [results[run.key] for run in runs if run.key in results]
            charts.rewards(right, arm_name, color, [r for r in found if "error" not in r])
        right.set_xlabel("step")
        right.set_title(f"Mean reward in training, {DOMAIN}")
        if right.lines:
            right.legend(fontsize=9)
        return theme.to_png(figure)
