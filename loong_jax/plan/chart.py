"""A plan as a picture: memory against the limit, and the schedule of the heaviest loops."""

from pathlib import Path

from matplotlib.figure import Figure

from loong_jax.plan import figures
from loong_jax.plan.plan import GB, Plan
from loong_jax.plan.roofline import Loop

_SCOPES = {  # scope in an instruction's name -> colour
    "moe": "#c2410c",
    "ffn_0": "#1d4ed8",
    "ffn_1": "#3b82f6",
    "attention_0": "#15803d",
    "attention_1": "#4ade80",
    "ffn": "#1d4ed8",  # of layers with one of each
    "attention": "#15803d",
}
_OTHER, _LINK, _EXPOSED = "#a3a3a3", "#7c3aed", "#dc2626"


def save(plan: Plan, path: Path) -> None:
    """Writes the picture; the suffix of `path` decides the format (.svg, .png, .pdf)."""
    loops = _heaviest(plan, 2)
    heights = [1.0] + [1.5] * len(loops)
    figure = Figure(figsize=(12, 2.2 * sum(heights)))
    axes = figure.subplots(1 + len(loops), 1, height_ratios=heights, squeeze=False)
    _memory(axes[0, 0], plan)
    for axis, loop in zip(axes[1:, 0], loops, strict=True):
        _schedule(axis, loop)
    figure.suptitle(figures.title(plan), fontsize=11)
    figure.tight_layout()
    figure.savefig(path)


def _memory(axis, plan: Plan) -> None:
    left = 0.0
    for kind, size in plan.hbm_by_kind.items():
        axis.barh(["HBM"], [size / GB], left=left / GB, label=f"{kind} {size / GB:.2f} GB")
        left += size
    axis.axvline(plan.hbm_limit / GB, color="black", linestyle="--", label="limit")
    axis.set_xlabel("GB per device")
    axis.legend(ncols=4, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.02))


def _schedule(axis, loop: Loop) -> None:
    lanes = {"compute": 2, "exposed": 2, "link": 1}
    height = {"compute": 0.8, "exposed": 0.8, "link": 0.35}
    offset: dict[str, int] = {}
    for event in loop.segment.events:
        y = float(lanes[event.lane])
        if event.lane == "link":
            y += 0.3 - 0.35 * (offset.setdefault(event.label, len(offset)) % 4)
        axis.barh(
            [y],
            [(event.end_s - event.start_s) * 1e3],
            left=event.start_s * 1e3,
            height=height[event.lane],
            color=_colour(event.lane, event.label),
        )
        if event.lane == "link" and event.end_s - event.start_s > 0.02 * loop.segment.seconds:
            axis.text(event.start_s * 1e3, y, event.label, fontsize=6, va="center")
    for scope in dict.fromkeys(_scope(event.label) for event in loop.segment.events):
        if scope is not None:
            axis.bar([0], [0], color=_SCOPES[scope], label=scope)
    axis.bar([0], [0], color=_OTHER, label="other work")
    axis.bar([0], [0], color=_EXPOSED, label="exposed")
    axis.bar([0], [0], color=_LINK, label="launch to end")
    axis.legend(ncols=8, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axis.set_yticks([0.9, 2], ["links", "device"])
    axis.set_ylim(0.2, 2.5)
    axis.set_xlim(0, loop.segment.seconds * 1e3)
    axis.set_xlabel(f"ms of one run of {loop.name}, which runs {loop.trips:.0f} times")


def _colour(lane: str, label: str) -> str:
    if lane != "compute":
        return {"link": _LINK, "exposed": _EXPOSED}[lane]
    scope = _scope(label)
    return _OTHER if scope is None else _SCOPES[scope]


def _scope(label: str) -> str | None:
    return next((scope for scope in _SCOPES if scope in label), None)


def _heaviest(plan: Plan, num_loops: int) -> list[Loop]:
    timing = plan.reference
    if timing is None:
        return []
    loops = list(timing.step.loops)
    for loop in timing.step.loops:
        loops += loop.segment.loops
    largest = sorted(loops, key=lambda loop: -loop.trips * loop.segment.seconds)[:num_loops]
    return [loop for loop in loops if loop in largest][:num_loops]
