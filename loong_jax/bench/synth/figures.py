"""One picture for each part: what each arm gained on each group of problems, rewards by step."""

import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from loong_jax.bench.short_runs import charts
from loong_jax.bench.synth.runs import Trained
from loong_jax.report import theme
from loong_jax.report.theme import LIGHT

QUESTIONS = {
    "learning": "does RL on ReSyn's environments teach",
    "breadth": "breadth against depth, equal instances and steps",
    "loong": "RL on LoongEnv's problems, SFT on them, or neither",
}
TITLE_CHARS = 32  # of a line above a panel, or of a group's name beside one
DPI = 110


def png(part: str, compared: Mapping[str, Any], trained: Trained) -> bytes:
    """The picture of a part; `compared` is what `comparing.compare` made of it."""
    with theme.style(LIGHT):
        if len(trained.by_arm) == 1:
            figure, axes = theme.new_figure(1240, 90 + 64 * max(3, len(compared)), 3)
            _groups(axes, compared, next(iter(trained.by_arm)))
        else:
            figure, axes = theme.new_figure(330 * (len(compared) + 1) + 60, 320, len(compared) + 1)
            _arms(axes, compared)
        figure.suptitle(f"{part}: {QUESTIONS[part]} (scripted author)", x=0.01, ha="left")
        _rewards(axes[-1], trained)
        return theme.to_png(figure, DPI)


def _groups(axes: list[Axes], compared: Mapping[str, Any], arm: str) -> None:
    """Of one arm: pass@1 before and after, and the gain, a row for each group of problems."""
    left, middle = axes[:2]
    rows = {textwrap.fill(group, TITLE_CHARS): found for group, found in compared.items()}
    for place, found in enumerate(rows.values()):
        levels = {"cold start": found["cold_start"], "after RL": found["arms"][arm]}
        for up, color, (name, row) in zip(
            (-0.12, 0.12), charts.COLORS, levels.items(), strict=False
        ):
            if "pass@1_percent" not in row:
                continue
            value, (low, high) = row["pass@1_percent"], row["pass@1_ci95_percent"]
            left.errorbar(
                [value], [place + up], xerr=[[value - low], [high - value]], fmt="o", color=color,
                capsize=3, label=None if place else name,
            )  # fmt: skip
    left.set_yticks(range(len(rows)), list(rows))
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.grid(visible=False, axis="y")
    left.set_xlabel("held-out pass@1, %")
    left.set_title("Before and after, 95 % intervals")
    left.legend(fontsize=9)
    charts.differences(middle, {g: found["arms"][arm] for g, found in rows.items()}, "")
    middle.set_xlabel("points of held-out pass@1")
    middle.set_title("Gain, paired; seeds as ticks")
    middle.tick_params(labelleft=False)  # the rows are those of the left panel


def _arms(axes: list[Axes], compared: Mapping[str, Any]) -> None:
    """Of several arms: the gain of each, a panel for each group of problems."""
    for panel, (group, rows) in zip(axes, compared.items(), strict=False):
        charts.differences(panel, rows["arms"], "the cold start")
        share = rows["cold_start"]["pass@1_percent"]
        panel.set_title(f"{textwrap.fill(group, TITLE_CHARS)}\n(cold start {share:.0f} %)")
        panel.set_xlabel("points of held-out pass@1")
        panel.tick_params(labelleft=panel is axes[0])  # the arms are those of the first


def _rewards(axes: Axes, trained: Trained) -> None:
    for color, (name, by_seed) in zip(charts.COLORS, trained.by_arm.items(), strict=False):
        good = [result for result in by_seed.values() if "error" not in result]
        charts.rewards(axes, name, color, good)
    axes.set_xlabel("step")
    axes.set_title("Mean reward in training")
    if axes.lines:
        axes.legend(fontsize=9)
