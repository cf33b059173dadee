"""What a finished stage of a run left, as figures that benches compare."""

from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.orchestrator.pipeline import stage_directory


def of_stage(directory: Path, stage: str, domain: str) -> dict[str, Any]:
    """The evaluation in `domain` with its counts, and what training went through, step by step.

    `consumed_tokens` is 0 for supervised fine-tuning, whose metrics do not count them.
    """
    place = stage_directory(directory, stage)
    evaluation = evaluation_of(place, domain)
    steps = json_files.read_jsonl(place / "metrics.jsonl")
    last = steps[-1] if steps else {}
    return {
        "pass@1": evaluation["pass@1"],
        "evaluation": evaluation,
        "steps": len(steps),
        "consumed_tokens": sum(step.get("num_tokens", 0) for step in steps),
        "mean_staleness": sum(step.get("staleness/mean", 0.0) for step in steps)
        / (len(steps) or 1),
        "reread_groups": sum(step.get("reuse/groups", 0) for step in steps),
        "tickets": last.get("tickets", {}),
        "curves": {name: [step.get(name) for step in steps] for name in CURVES if name in last},
    }


def evaluation_of(place: Path, domain: str) -> dict[str, Any]:
    """The counts of one domain that the stage in `place` left."""
    return json_files.read_json(place / "evaluation.json")["domains"][domain]


CURVES = (
    "rewards/mean",
    "entropy",
    "grad_norm",
    "completions/mean_length",
    "engine_ratio/mean",
    "engine_ratio/max",
    "routing/mismatch_before",
    "routing/mismatch_after",
    "staleness/mean",
)
