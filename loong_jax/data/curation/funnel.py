"""The funnel as a table: what each stage kept, and why it dropped the rest."""

from loong_jax.data.curation.chain import Funnel, StageCount

_MAX_REASONS = 3


def as_text(funnel: Funnel) -> str:
    """The table for people; the last column is records per CPU second."""
    lines = [f"{'stage':22}{'seen':>10}{'dropped':>10}{'kept':>10}{'per s':>10}  reasons"]
    for stage in funnel.stages:
        dropped = stage.num_seen - stage.num_kept
        speed = f"{stage.num_seen / stage.cpu_s:,.0f}" if stage.cpu_s > 0 else "-"
        lines.append(
            f"{stage.name:22}{stage.num_seen:>10,}{dropped:>10,}{stage.num_kept:>10,}{speed:>10}  "
            f"{reasons_of(stage)}".rstrip()
        )
    return "\n".join(lines)


def reasons_of(stage: StageCount) -> str:
    """The most frequent reasons with their counts."""
    shown = list(stage.reasons.items())[:_MAX_REASONS]
    others = sum(stage.reasons.values()) - sum(count for _, count in shown)
    parts = [f"{reason} {count:,}" for reason, count in shown]
    return ", ".join([*parts, f"others {others:,}"] if others else parts)
