"""A window of a stage's timeline: what each replica, the verifiers and the trainer were doing."""

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from loong_jax.report import overlap, theme
from loong_jax.report.overlap import Event
from loong_jax.report.theme import PAGE

COLORS = "viridis"  # by policy version
GAP_S = 0.01  # between blocks that are drawn as one
SCORE_COLOR, PUBLISH_COLOR, VERIFY_COLOR = "#9aa5b1", "#c44e80", "#9aa5b1"


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
    place_of = {lane: place for place, lane in enumerate(lanes)}
    blocks = merged_blocks(inside)
    trained = [e for e in inside if e["kind"] == "train"]
    versions = [b["version"] for b in blocks] + [e["step"] for e in trained]
    low, high = (min(versions), max(versions)) if versions else (0, 1)
    shade = matplotlib.colormaps[COLORS]

    def color(version: int):
        return shade(0.08 + 0.84 * (version - low) / max(1, high - low))

    figure, (axes,) = theme.new_figure(1080, 90 + 44 * len(lanes))

    def bar(lane: str, event: Event, fill, height: float = 0.66) -> None:
        left = max(event["start_s"], start)
        width = min(event["end_s"], end) - left
        axes.broken_barh(
            [(left, width)], (place_of[lane] - height / 2, height), facecolor=fill,
            edgecolor=PAGE.paper, linewidth=0.8,
        )  # fmt: skip

    for block in blocks:
        bar(f"replica {block['replica']}", block, color(block["version"]))
        _number(axes, block, place_of[f"replica {block['replica']}"], start, end, block["version"],
                low, high)  # fmt: skip
    for event in inside:
        if event["kind"] == "verify":
            bar("verifiers", event, VERIFY_COLOR, 0.4)
        elif event["kind"] == "score":
            bar("trainer", event, SCORE_COLOR, 0.4)
        elif event["kind"] == "publish":
            axes.vlines(event["end_s"], -0.5, len(lanes) - 0.5, color=PUBLISH_COLOR, lw=1,
                        ls=(0, (1, 2)), zorder=0)  # fmt: skip
    for event in trained:
        bar("trainer", event, color(event["step"]))
        _number(axes, event, place_of["trainer"], start, end, event["step"], low, high)

    idle = overlap.idle(events)
    for lane, place in place_of.items():
        if lane in idle:
            axes.annotate(
                f"{100 * idle[lane].value:.0f} % idle", (1, place), (8, 0),
                xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
                color=PAGE.muted, fontsize=11,
            )  # fmt: skip
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(start, end)
    axes.grid(visible=False)
    axes.set_xlabel("seconds since the stage began")
    axes.set_title(title)
    return figure


def _number(axes, event: Event, place: int, start: float, end: float, version: int, low: int,
            high: int) -> None:  # fmt: skip
    """The version inside a bar that is wide enough for it."""
    left, right = max(event["start_s"], start), min(event["end_s"], end)
    if right - left > 0.022 * (end - start):
        dark = (version - low) / max(1, high - low) < 0.65
        axes.text(
            (left + right) / 2, place, str(version), ha="center", va="center_baseline",
            fontsize=10.5, color="white" if dark else "#1b1f24",
        )  # fmt: skip
