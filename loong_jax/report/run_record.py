"""A run directory read back: what the summary and the page are made from."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax.data import json_files, run_experts
from loong_jax.errors import LoongError
from loong_jax.report import metrics_log

TICKET_KEYS = ("issued", "trained", "filtered", "stale", "ungradable", "failed", "cancelled_at_end")
LABELS = {"sft": "SFT", "rl": "RL", "fused": "fused", "general": "general RL"}


def label_of(stage: str) -> str:
    """The name of a stage as people read it: `rl_stem` is RL stem."""
    head, *rest = stage.split("_")
    return LABELS.get(stage) or " ".join([LABELS.get(head, head), *rest])


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageRecord:
    """The files of one stage; parts that it has not written are empty."""

    name: str
    metrics: list[dict[str, Any]]
    events: list[dict[str, Any]]
    rollouts: list[dict[str, Any]]
    evaluation: dict[str, dict[str, Any]]  # domain -> figures
    done: dict[str, Any]
    fusion: dict[str, Any]

    @property
    def label(self) -> str:
        return label_of(self.name)

    @property
    def is_rl(self) -> bool:
        return any(event["kind"] == "decode" for event in self.events) or any(
            "tickets" in line for line in self.metrics
        )

    @property
    def tickets(self) -> dict[str, int]:
        """Final counts of `done.json`, or those of the last step; {} outside RL."""
        counts = self.done.get("tickets")
        if counts is None:
            counts = next(
                (line["tickets"] for line in reversed(self.metrics) if line.get("tickets")), {}
            )
        return {key: int(counts.get(key, 0)) for key in TICKET_KEYS} if counts else {}

    @property
    def staleness(self) -> dict[str, int]:
        """Trained samples by staleness, over all steps."""
        total: dict[str, int] = {}
        for line in self.metrics:
            for lag, count in (line.get("staleness/histogram") or {}).items():
                total[lag] = total.get(lag, 0) + int(count)
        return dict(sorted(total.items(), key=lambda item: int(item[0])))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    directory: Path
    config: dict[str, Any]
    gains: dict[str, Any]  # of `loong_jax.eval.compare`; {} where it was not computed
    summary: dict[str, Any]
    stages: Mapping[str, StageRecord]
    experts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # stage -> domain

    @property
    def baseline(self) -> str:
        """The stage that gains are counted from."""
        return run_experts.baseline_of(self.stages)

    def expert_in(self, domain: str) -> str:
        """The stage of RL in a domain: its expert's, or the only one; "" where there is none."""
        named = [stage for stage, own in self.experts.items() if own == domain]
        only = [stage.name for stage in self.rl_stages] if not self.experts else []
        return next(iter(named or only), "")

    @property
    def rl_stages(self) -> list[StageRecord]:
        return [stage for stage in self.stages.values() if stage.is_rl]

    @property
    def fuses_experts(self) -> bool:
        """True if several experts come out of one start, RL or later included."""
        return len(self.experts) > 1 and set(self.stages) != {self.baseline}

    @property
    def domains(self) -> list[str]:
        """Evaluated domains, in the order of the first evaluation."""
        names: dict[str, None] = {}
        for stage in self.stages.values():
            names |= dict.fromkeys(stage.evaluation)
        return list(names)

    def figures(self, stage: str, domain: str) -> dict[str, Any]:
        """Evaluation of a stage in a domain, or {}."""
        return self.stages[stage].evaluation.get(domain, {}) if stage in self.stages else {}


def read_stage(directory: Path) -> StageRecord:
    return StageRecord(
        name=directory.name,
        metrics=metrics_log.read_metrics(directory),
        events=metrics_log.read_events(directory),
        rollouts=metrics_log.read_rollouts(directory),
        evaluation=json_files.read_json(directory / "evaluation.json", {}).get("domains", {}),
        done=json_files.read_json(directory / "done.json", {}),
        fusion=json_files.read_json(directory / "fusion.json", {}),
    )


def read_run(run_dir: Path | str) -> RunRecord:
    """Reads all stages present, in the order of the recipe; LoongError where there is none."""
    run_dir = Path(run_dir)
    found = {path.name: path for path in sorted((run_dir / "stages").glob("*")) if path.is_dir()}
    if not found:
        raise LoongError(
            f"{run_dir} holds no stages, so there is nothing to report. Give the directory of a "
            "run that `loong train` has begun."
        )
    config = json_files.read_json(run_dir / "config.json", {})
    recipe: Mapping[str, Any] = config.get("config", {})
    # which older files hold among its other fields
    names = [name for name in recipe.get("stages", recipe) if name in found]
    names += [name for name in found if name not in names]
    return RunRecord(
        directory=run_dir,
        config=config,
        gains=json_files.read_json(run_dir / "gains.json", {}),
        summary=json_files.read_json(run_dir / "summary.json", {}),
        stages={name: read_stage(found[name]) for name in names},
        experts=run_experts.experts_of(run_dir),
    )
