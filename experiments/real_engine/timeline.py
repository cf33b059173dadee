"""A run as a picture: what each replica decodes under which policy version, and the trainer.

The form is that of figure 5 in arXiv:2509.18883: time runs to the right, a row per replica, a
colour per version; below it the trainer's steps, and a line at each weight update.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from loong_jax.report import theme
from loong_jax.report.theme import LIGHT
from loong_jax.rollout.records import BlockDecoded

VERSION_COLORS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0")


class Run(NamedTuple):
    """What a row of the picture is drawn from; times are seconds of one clock."""

    blocks: Sequence[BlockDecoded]
    events: Sequence[Mapping[str, Any]]  # of the run's log: train, score, publish
    slots_per_replica: int


def png(runs: Mapping[str, Run], *, start_s: Mapping[str, float], seconds: float) -> bytes:
    """One panel per run, each from its own `start_s` on, all `seconds` long, as a PNG."""
    with theme.style(LIGHT):
        figure, first = theme.new_figure(980, 60 + 120 * len(runs))
        first[0].remove()
        axes = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
        for panel, (name, run) in zip(axes, runs.items(), strict=True):
            _panel(panel, name, run, start_s[name], seconds)
        axes[-1].set_xlabel("seconds")
        return theme.to_png(figure)


def _panel(axes: Axes, name: str, run: Run, start_s: float, seconds: float) -> None:
    end_s = start_s + seconds
    blocks = [b for b in run.blocks if b.end_s > start_s and b.start_s < end_s]
    replicas = sorted({b.replica for b in blocks})
    for row, replica in enumerate(replicas):
        mine = [b for b in blocks if b.replica == replica]
        for block in mine:  # the height of a bar is the share of slots in use
            axes.bar(
                block.start_s - start_s,
                0.85 * block.active_slots / run.slots_per_replica,
                width=block.end_s - block.start_s,
                bottom=row + 1,
                align="edge",
                color=VERSION_COLORS[block.version % len(VERSION_COLORS)],
                linewidth=0,
            )
        for first in _first_of_each_version(mine):
            axes.annotate(
                f"v{first.version}",
                (max(0.0, first.start_s - start_s), row + 1.9),
                fontsize=7,
                va="bottom",
                annotation_clip=True,
            )
    for event in run.events:
        if event["kind"] == "train" and event["end_s"] > start_s and event["start_s"] < end_s:
            axes.barh(
                0.4,
                event["end_s"] - event["start_s"],
                left=event["start_s"] - start_s,
                height=0.6,
                color="#9498a0",
                edgecolor="white",
                linewidth=0.5,
            )
            middle = (event["start_s"] + event["end_s"]) / 2 - start_s
            if 0 < middle < seconds:
                axes.annotate(
                    str(event["step"]), (middle, 0.4), fontsize=7, ha="center", va="center"
                )
        if event["kind"] == "publish" and start_s < event["end_s"] < end_s:
            axes.axvline(event["end_s"] - start_s, color="grey", linewidth=0.6, linestyle=":")
    axes.set_xlim(0, seconds)
    axes.set_ylim(0, len(replicas) + 1.25)
    labels = ["trainer", *(f"replica {number}" for number in replicas)]
    axes.set_yticks([0.4, *(row + 1.42 for row in range(len(replicas)))], labels)
    axes.set_title(name)
    axes.grid(False)


def _first_of_each_version(blocks: Sequence[BlockDecoded]) -> list[BlockDecoded]:
    found: dict[int, BlockDecoded] = {}
    for block in blocks:
        found.setdefault(block.version, block)
    return list(found.values())
