"""One picture for each part: what each arm gained on each group of problems, rewards by step."""

import textwrap
from collections.abc import Mapping
from typing import Any

from loong_jax.bench.short_runs import charts
from loong_jax.bench.synth.runs import Trained
from loong_jax.report import theme
from loong_jax.report.theme import LIGHT

QUESTIONS = {
    "learning": "does RL on ReSyn's environments teach",
    "breadth": "breadth against depth, equal instances and steps",
    "loong": "RL on LoongEnv's problems, SFT on them, or neither",
}

TITLE_CHARS = 32  # of a line above a panel


def png(part: str, compared: Mapping[str, Any], trained: Trained) -> bytes:
    """The picture of a part; `compared` is what `comparing.compare` made of it."""
    arms = list(trained.by_arm)
    panels = len(compared) + 1
    with theme.style(LIGHT):
        figure, axes = theme.new_figure(330 * panels + 60, 320, panels)
        figure.suptitle(f"{part}: {QUESTIONS[part]} (scripted author)", x=0.01, ha="left")
        for panel, (group, rows) in zip(axes, compared.items(), strict=False):
            charts.differences(panel, rows["arms"], "the cold start")
            share = rows["cold_start"]["pass@1_percent"]
            title = textwrap.fill(group, TITLE_CHARS)
            panel.set_title(f"{title}\n(cold start {share:.0f} %)")
            panel.set_xlabel("points of held-out pass@1")
            panel.tick_params(labelleft=panel is axes[0])  # the arms are those of the first
        right = axes[-1]
        for color, name in zip(charts.COLORS, arms, strict=False):
            good = [r for r in trained.by_arm[name].values() if "error" not in r]
            charts.rewards(right, name, color, good)
        right.set_xlabel("step")
        right.set_title("Mean reward in training")
        if right.lines:
            right.legend(fontsize=9)
        return theme.to_png(figure)
