"""The picture of a bench's figures, one panel per question."""

import functools
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from loong_jax.report import theme
from loong_jax.report.theme import LIGHT

FORWARD, STEP = theme.DOMAIN_COLORS["stem"], theme.DOMAIN_COLORS["code"]
ROWS = theme.OTHER_COLORS


def png(result: dict[str, Any]) -> bytes:
    """What `bench.model.measure` returned, as a PNG; parts that were not measured are left out."""
    panels = []
    if "settings" in result.get("transformers", {}):
        panels.append(lambda axes: _speedups(axes, result["transformers"]["settings"]))
    for width in sorted({point["width"] for point in result.get("ffn", [])}):
        points = [point for point in result["ffn"] if point["width"] == width]
        for key, goal, passes in (
            ("forward_over_dense", 1.5, "forward"),
            ("forward_backward_over_dense", 2.5, "both passes"),
        ):
            title = f"MoE FFN over dense, {passes}, width {width}"
            panels.append(functools.partial(_ffn, points=points, key=key, goal=goal, title=title))
    if "zero_share" in result:
        panels.append(lambda axes: _zero_share(axes, result["zero_share"]))
    for axis in result.get("cost", {}):
        panels.append(lambda axes, axis=axis: _cost(axes, axis, result["cost"][axis]))
    with theme.style(LIGHT):
        columns = min(3, max(1, len(panels)))
        rows = -(-len(panels) // columns)
        figure, first = theme.new_figure(380 * columns, 290 * max(1, rows), 1)
        first[0].remove()
        for index, draw in enumerate(panels):
            draw(figure.add_subplot(rows, columns, index + 1))
        return theme.to_png(figure)


def _speedups(axes: Axes, settings: dict[str, Any]) -> None:
    names = list(settings)
    place = np.arange(len(names))
    for shift, key, label, color in (
        (-0.19, "forward", "forward", FORWARD),
        (0.19, "train_step", "training step", STEP),
    ):
        values = [settings[name][key]["speedup"] for name in names]
        axes.barh(place + shift, values, height=0.36, color=color, label=label)
        for y, value in zip(place + shift, values, strict=True):
            axes.annotate(f"{value:.2f}", (value, y), (3, 0), textcoords="offset points",
                          va="center", fontsize=9)  # fmt: skip
    axes.set_yticks(place, [name.replace("_", " ") for name in names], fontsize=9)
    axes.invert_yaxis()
    axes.axvline(1, color=LIGHT.ink, lw=1)
    axes.set_xlim(0, max(axes.get_xlim()[1] * 1.12, 2.2))
    axes.set_title("Times as fast as transformers")
    axes.grid(visible=False, axis="y")
    axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False)


def _ffn(axes: Axes, points: list[dict], key: str, goal: float, title: str) -> None:
    for color, rows in zip(ROWS, sorted({p["rows_per_expert"] for p in points}), strict=False):
        chosen = [p for p in points if p["rows_per_expert"] == rows]
        axes.plot([p["experts"] for p in chosen], [p[key] for p in chosen], "o-", color=color,
                  label=f"{rows} rows")  # fmt: skip
    _powers(axes, sorted({p["experts"] for p in points}))
    axes.axhline(goal, color=LIGHT.muted, lw=1, ls="--")
    axes.set_ylim(0)
    axes.set_xlabel("experts")
    axes.set_title(title)
    axes.legend(fontsize=9, frameon=False)


def _zero_share(axes: Axes, points: list[dict]) -> None:
    for color, width in zip(ROWS, sorted({p["width"] for p in points}), strict=False):
        chosen = [p for p in points if p["width"] == width]
        axes.plot([100 * p["zero_share"] for p in chosen],
                  [100 * p["share_of_ideal"] for p in chosen], "o-", color=color,
                  label=f"width {width}")  # fmt: skip
    axes.axhline(85, color=LIGHT.muted, lw=1, ls="--")
    axes.set_ylim(0, 110)
    axes.set_xlabel("zero-computation choices (%)")
    axes.set_title("Saved time, % of ideal")
    axes.legend(fontsize=9, frameon=False)


def _cost(axes: Axes, axis: str, points: list[dict]) -> None:
    sizes = [p[axis] for p in points]
    for key, label, color in (
        ("forward_s", "forward", FORWARD),
        ("train_step_s", "training step", STEP),
    ):
        axes.plot(sizes, [1e3 * p[key] for p in points], "o-", color=color, label=label)
    _powers(axes, sizes)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(axis)
    axes.set_title(f"Milliseconds by {axis}")
    axes.legend(fontsize=9, frameon=False)


def _powers(axes: Axes, values: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(values[0] / 1.3, values[-1] * 1.3)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()
