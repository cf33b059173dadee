"""Where every idea ended: counts that add up to the last item."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax.synth.resyn.item import KEPT, STAGES, Item


def count(items: Sequence[Item]) -> dict[str, Any]:
    """Items by stage where they ended and reason; in = out + refused at every stage, asserted."""
    stages, left = [], len(items)
    for stage in STAGES:
        reasons = Counter(item.reason for item in items if item.end == stage)
        entered, left = left, left - reasons.total()
        stages.append(
            {"stage": stage, "in": entered, "refused": dict(sorted(reasons.items())), "out": left}
        )
    kept = sum(item.end == KEPT for item in items)
    assert left == kept, f"{left} items are left, but {kept} are kept"
    revised = [item for item in items if item.was_revised]
    return {
        "items": len(items),
        "stages": stages,
        "kept": kept,
        "revised": len(revised),
        "kept_after_revision": sum(item.end == KEPT for item in revised),
        "first_refusals": dict(
            sorted(Counter(item.first_refusal for item in items if item.first_refusal).items())
        ),
    }


def as_text(funnel: Mapping[str, Any]) -> str:
    lines = [f"{funnel['items']} ideas asked for"]
    for stage in funnel["stages"]:
        refused = ", ".join(f"{n} {why}" for why, n in stage["refused"].items()) or "none"
        lines.append(f"  {stage['stage']:<12}{stage['in']:5} in{stage['out']:5} out   {refused}")
    lines.append(
        f"{funnel['kept']} environments kept, {funnel['kept_after_revision']} of them after a "
        f"revision ({funnel['revised']} were revised)"
    )
    return "\n".join(lines)
