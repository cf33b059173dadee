"""The charts of a report: each takes plain figures and returns a matplotlib figure.

All are made under `theme.style`, small enough to be read on a phone one above the other. Shares
come in as 0..1 and are drawn in per cent.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from loong_jax.report import overlap, theme
from loong_jax.report.overlap import Event
from loong_jax.report.theme import PAGE, Palette

WIDTH, HEIGHT = 360, 220  # CSS pixels of a chart, three to a row
NARROW, NARROW_HEIGHT = 270, 190  # four to a row


class Row(NamedTuple):
    """One model in a fusion panel."""

    label: str
    value: float
    low: float
    high: float
    role: str  # "before", "own expert", "other expert", "result"


MARKERS = {"before": "o", "own expert": "o", "other expert": "o", "result": "D"}


def fusion_panel(
    axes: Axes,
    rows: Sequence[Row],
    color: str,
    limits: tuple[float, float],
    palette: Palette = PAGE,
) -> None:
    """Dots with 95 % intervals, one row per model; the starting point is a line to compare with."""
    for place, row in enumerate(rows):
        strong = row.role in ("own expert", "result")
        shade = color if strong else palette.muted
        interval = [[100 * (row.value - row.low)], [100 * (row.high - row.value)]]
        axes.errorbar(
            100 * row.value,
            place,
            xerr=interval,
            fmt=MARKERS[row.role],
            color=shade,
            markersize=8 if strong else 6.5,
            markerfacecolor=shade if row.role != "other expert" else palette.paper,
            elinewidth=2 if strong else 1.5,
            zorder=3,
        )
        axes.annotate(
            f"{100 * row.value:.1f}",
            (100 * row.high, place),
            (7, 0),
            textcoords="offset points",
            va="center",
            color=palette.ink if strong else palette.muted,
            fontweight="bold" if strong else "normal",
            fontsize=11,
        )
        if row.role == "before":
            axes.axvline(100 * row.value, color=palette.muted, lw=1, ls=(0, (2, 3)), zorder=1)
    _label_rows(axes, [row.label for row in rows])
    axes.set_xlim(*limits)
    axes.set_xticks(np.arange(limits[0], 101, 20))
    axes.set_xlabel("pass@1 (%)")


def _label_rows(axes: Axes, labels: Sequence[str], *, has_grid: bool = True) -> None:
    """Names rows from above to below."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(visible=has_grid, axis="x")
    axes.grid(visible=False, axis="y")


def fusion_limits(panels: Mapping[str, Sequence[Row]]) -> tuple[float, float]:
    """Axis shared by all panels, in per cent: from the tens below to the tens above, with room for
    the figures."""
    values = [100 * end for rows in panels.values() for row in rows for end in (row.low, row.high)]
    low = min(90.0, 10 * np.floor(min(values, default=0) / 10))
    high = max(low + 10, 10 * np.ceil(max(values, default=100) / 10))
    return max(0.0, float(low)), float(high) + 0.16 * float(high - low)


def fusion(panels: Mapping[str, Sequence[Row]], palette: Palette = PAGE) -> Figure:
    """A chart of all domains, for a wide page or a README (cf. arXiv:2509.18883, Fig. 8)."""
    figure, axes = theme.new_figure(1080, 340, columns=max(1, len(panels)), sharey=True)
    limits = fusion_limits(panels)
    for place, (domain, rows) in enumerate(panels.items()):
        fusion_panel(axes[place], rows, theme.domain_color(domain), limits, palette)
        axes[place].set_title(domain, color=theme.domain_color(domain))
        if place:
            axes[place].tick_params(labelleft=False)
    figure.suptitle(
        "Sampled pass@1 on held-out problems with 95 % intervals", x=0.012, ha="left",
        fontsize=13, color=palette.muted,
    )  # fmt: skip
    figure.set_layout_engine("constrained", w_pad=0.16, h_pad=0.16, wspace=0.03)
    return figure


def fusion_one(domain: str, rows: Sequence[Row], limits: tuple[float, float]) -> Figure:
    """One domain of `fusion` by itself."""
    figure, (axes,) = theme.new_figure(WIDTH, 270)
    fusion_panel(axes, rows, theme.domain_color(domain), limits)
    axes.set_title(domain, color=theme.domain_color(domain))
    return figure


def smoothed(values: NDArray, width: int) -> NDArray:
    """Mean over a centred window that shrinks at the ends; NaN entries are ignored."""
    parts = (values[max(0, i - width // 2) : i + width // 2 + 1] for i in range(len(values)))
    return np.array([np.nanmean(p) if np.isfinite(p).any() else np.nan for p in parts])


class Series(NamedTuple):
    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: str


def lines(
    title: str,
    series: Sequence[Series],
    *,
    ylabel: str = "",
    scale: float = 1.0,
    floor: float | None = None,
    reference: float | None = None,
    limits: tuple[float, float] | None = None,
    color: str = PAGE.ink,
    width: int = WIDTH,
) -> Figure:
    """Curves over steps: the measured values faint, their moving average strong.

    `reference` is a dotted horizontal line; it and `limits` are in the units of the data. Which
    colour is which stands in the page, not in the chart.
    """
    figure, (axes,) = theme.new_figure(width, HEIGHT if width == WIDTH else NARROW_HEIGHT)
    for one in series:
        y = scale * np.array([np.nan if v is None else v for v in one.y], np.float64)
        if len(y) > 8:
            axes.plot(one.x, y, color=one.color, lw=1, alpha=0.3)
            y = smoothed(y, max(3, len(y) // 12))
        axes.plot(one.x, y, color=one.color, label=one.label)
    if reference is not None:
        axes.axhline(scale * reference, color=PAGE.muted, lw=1, ls=(0, (2, 3)))
    if limits is not None:
        axes.set_ylim(scale * limits[0], scale * limits[1])
    if floor is not None:
        axes.set_ylim(bottom=floor)
    axes.set_title(title, color=color)
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.margins(x=0.01)
    return figure


def shared_limits(groups: Iterable[Sequence[Series]]) -> tuple[float, float] | None:
    """One vertical range for charts that are compared: all values, and 5 % more on both sides."""
    values = [v for series in groups for one in series for v in one.y if v is not None]
    if not values:
        return None
    room = 0.05 * (max(values) - min(values)) or 0.05 * abs(values[0]) or 0.05
    return min(values) - room, max(values) + room


def staleness(counts: Mapping[str, Mapping[str, int]], labels: Mapping[str, str]) -> Figure:
    """Trained samples by staleness, one stacked bar per stage."""
    figure, (axes,) = theme.new_figure(WIDTH, HEIGHT)
    lags = sorted({int(lag) for histogram in counts.values() for lag in histogram})
    left = np.zeros(len(counts))
    for lag in lags:
        share = np.array(
            [100 * h.get(str(lag), 0) / max(1, sum(h.values())) for h in counts.values()]
        )
        axes.barh(
            range(len(counts)), share, left=left, height=0.62, color=theme.lag_color(lag),
            edgecolor=PAGE.paper, linewidth=1,
        )  # fmt: skip
        for place, (start, width) in enumerate(zip(left, share, strict=True)):
            if width > 9:
                axes.text(start + width / 2, place, f"{width:.0f}", ha="center", va="center",
                          color="white", fontsize=11)  # fmt: skip
        left += share
    axes.set_yticks(range(len(counts)), [labels[stage] for stage in counts])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
    axes.set_xlabel("share of trained samples (%)")
    axes.set_title("Trained samples by staleness")
    return figure


def gains(
    title: str,
    rows: Sequence[tuple[str, float, float, float]],
    color: str,
    repeated: Mapping[str, Sequence[float]] | None = None,
) -> Figure:
    """Paired gains with intervals, one row each (label, gain, low, high), around a zero line.

    `repeated` has the gains of single runs where a row is a mean over several.
    """
    figure, (axes,) = theme.new_figure(WIDTH, 74 + 30 * len(rows))
    for place, (label, value, low, high) in enumerate(rows):
        if len(runs := (repeated or {}).get(label, ())) > 1:
            places = [place + 0.22] * len(runs)
            axes.scatter([100 * run for run in runs], places, s=14, color=PAGE.muted, zorder=2)
        axes.errorbar(
            100 * value, place, xerr=[[100 * (value - low)], [100 * (high - value)]], fmt="o",
            color=color, markersize=7, elinewidth=2, zorder=3,
        )  # fmt: skip
    axes.axvline(0, color=PAGE.muted, lw=1)
    _label_rows(axes, [label for label, *_ in rows])
    axes.set_title(title, color=color)
    axes.set_xlabel("gain in pass@1 (points)")
    return figure


def over_steps(
    metrics: Sequence[Mapping[str, Any]], name: str, key: str | None = None
) -> tuple[list[float], list[float | None]]:
    """Steps and values of a metric (or of one key of a metric by key), where it was written."""
    values = [(line, line.get(name)) for line in metrics]
    if key is not None:
        values = [(line, (by_key or {}).get(key)) for line, by_key in values]
    found = [(float(line["step"]), float(value)) for line, value in values if value is not None]
    return [step for step, _ in found], [value for _, value in found]


def keys_of(metrics: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """All keys that a metric by key ever had, in order (lags as numbers)."""
    keys = {key for line in metrics for key in (line.get(name) or {})}
    return sorted(keys, key=lambda key: (0, int(key), "") if key.isdigit() else (1, 0, key))


# ---- a window of a stage's timeline --------------------------------------------------------------

COLORS = "viridis"  # by policy version
GAP_S = 0.01  # between blocks that are drawn as one
GREY, PUBLISH_COLOR = "#9aa5b1", "#c44e80"  # of verifying and scoring


def window(
    events: Sequence[Event], num_steps: int = 6, longest_s: float = 60.0
) -> overlap.Interval:
    """The interval of `num_steps` steps from the middle one on; all of a shorter stage."""
    steps = overlap.intervals(events, "train")
    if not steps:
        start, end = overlap.span(events)
        return start, min(end, start + longest_s)
    first = max(0, len(steps) // 2 - num_steps // 2)
    chosen = steps[first : first + num_steps]
    start = steps[first - 1][1] if first else overlap.span(events)[0]
    start = max(start, chosen[0][0] - longest_s / 4)
    return start, min(chosen[-1][1], start + longest_s)


def merged_blocks(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Decode blocks of one replica and version that follow each other without a gap, as one."""
    merged: list[dict[str, Any]] = []
    open_of: dict[int, dict[str, Any]] = {}
    for event in sorted((e for e in events if e["kind"] == "decode"), key=lambda e: e["start_s"]):
        last = open_of.get(event["replica"])
        is_same = last is not None and last["version"] == event["version"]
        if last is not None and is_same and event["start_s"] - last["end_s"] <= GAP_S:
            last["end_s"] = max(last["end_s"], event["end_s"])
        else:
            open_of[event["replica"]] = block = dict(event)
            merged.append(block)
    return merged


def timeline(events: Sequence[Event], title: str) -> Figure:
    """Lanes over time, coloured by the policy version that is decoded or produced.

    Idle shares at the right are of the whole stage, not of the window.
    """
    start, end = window(events)
    inside = [e for e in events if "start_s" in e and e["end_s"] > start and e["start_s"] < end]
    replicas = sorted({e["replica"] for e in events if e["kind"] == "decode"})
    lanes = [f"replica {r}" for r in replicas] + ["verifiers", "trainer"]
    blocks = merged_blocks(inside)
    trained = [e for e in inside if e["kind"] == "train"]
    versions = [b["version"] for b in blocks] + [e["step"] for e in trained]
    low, high = (min(versions), max(versions)) if versions else (0, 1)
    shade = matplotlib.colormaps[COLORS]

    figure, (axes,) = theme.new_figure(1080, 90 + 44 * len(lanes))

    def bar(lane: str, event: Event, fill: Any, height: float = 0.66) -> tuple[float, float]:
        left = max(event["start_s"], start)
        width = min(event["end_s"], end) - left
        axes.broken_barh(
            [(left, width)], (lanes.index(lane) - height / 2, height), facecolor=fill,
            edgecolor=PAGE.paper, linewidth=0.8,
        )  # fmt: skip
        return left, width

    def numbered_bar(lane: str, event: Event, version: int) -> None:
        """A bar in the colour of a version, with its number where it is wide enough for it."""
        place = (version - low) / max(1, high - low)
        left, width = bar(lane, event, shade(0.08 + 0.84 * place))
        if width > 0.022 * (end - start):
            axes.text(
                (left + left + width) / 2, lanes.index(lane), str(version), ha="center",
                va="center_baseline", fontsize=10.5, color="white" if place < 0.65 else "#1b1f24",
            )  # fmt: skip

    for block in blocks:
        numbered_bar(f"replica {block['replica']}", block, block["version"])
    for event in inside:
        if event["kind"] == "verify":
            bar("verifiers", event, GREY, 0.4)
        elif event["kind"] == "score":
            bar("trainer", event, GREY, 0.4)
        elif event["kind"] == "publish":
            axes.vlines(event["end_s"], -0.5, len(lanes) - 0.5, color=PUBLISH_COLOR, lw=1,
                        ls=(0, (1, 2)), zorder=0)  # fmt: skip
    for event in trained:
        numbered_bar("trainer", event, event["step"])

    idle = overlap.idle(events)
    for place, lane in enumerate(lanes):
        if lane in idle:
            axes.annotate(
                f"{100 * idle[lane].value:.0f} % idle", (1, place), (8, 0),
                xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
                color=PAGE.muted, fontsize=11,
            )  # fmt: skip
    _label_rows(axes, lanes, has_grid=False)
    axes.set_xlim(start, end)
    axes.set_xlabel("seconds since the stage began")
    axes.set_title(title)
    return figure
