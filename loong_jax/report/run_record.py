"""A run directory read back, and `summary.json`: the figures of a run that other programs read."""

import collections
import dataclasses
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from loong_jax import configs, process
from loong_jax.data import json_files, run_experts
from loong_jax.errors import LoongError
from loong_jax.report import metrics_log, overlap

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
            written = (line["tickets"] for line in reversed(self.metrics) if line.get("tickets"))
            counts = next(written, {})
        return {key: int(counts.get(key, 0)) for key in TICKET_KEYS} if counts else {}

    @property
    def staleness(self) -> dict[str, int]:
        """Trained samples by staleness, over all steps."""
        return _by_lag(line.get("staleness/histogram") for line in self.metrics)


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


# ---- summary.json --------------------------------------------------------------------------------

FORMAT_VERSION = 1
CONTROL_KINDS = {"NoiseReward": "noise reward"}  # kinds in a config that make a run a control
ISOLATION_ORDER = ("none", "process", "namespaces")


def build_summary(
    run: RunRecord,
    *,
    wall_s: float | None = None,
    peak_gb: float | None = None,
    control: str | None = None,
    keeps_machine: bool = False,
) -> dict[str, Any]:
    """All figures of a run. What is not given is taken from the summary written before, or else
    from the stages' `done.json` (`wall_s` summed, `peak_gb` the largest).

    Machine and versions are those of this process where `wall_s` is given, that is where the run
    itself writes; a report drawn again elsewhere keeps the old ones, with `keeps_machine` in any
    case. `control` names what makes this run a control ("noise reward"); without it, a config whose
    reward is a noise reward tells.
    """
    by_the_run = "machine" not in run.summary or (wall_s is not None and not keeps_machine)

    def known(name: str, over: Callable[[list[float]], float]) -> float | None:
        found = (stage.done.get(name) for stage in run.stages.values())
        of_stages = [figure for figure in found if figure is not None]
        return run.summary.get(name) or (over(of_stages) if of_stages else None)

    staleness = _by_lag(stage.staleness for stage in run.rl_stages)
    return {
        "format_version": FORMAT_VERSION,
        "wall_s": known("wall_s", sum) if wall_s is None else wall_s,
        "peak_gb": known("peak_gb", max) if peak_gb is None else peak_gb,
        "stages": {
            name: {domain: _figures(record) for domain, record in stage.evaluation.items()}
            for name, stage in run.stages.items()
            if stage.evaluation
        },
        "staleness": staleness,
        # of all RL stages by end; every key of the contract is there
        "tickets": dict.fromkeys(TICKET_KEYS, 0) | _added(s.tickets for s in run.rl_stages),
        "tickets_by_stage": {stage.name: stage.tickets for stage in run.rl_stages},
        "gains": run.gains,
        "overlap": overlap.describe(
            {stage.name: stage.events for stage in run.rl_stages if stage.events}, staleness
        ),
        "isolation": isolation_of(run),
        "control": control or run.summary.get("control") or find_control(run.config),
        "machine": machine() if by_the_run else run.summary["machine"],
        "versions": configs.versions() if by_the_run else run.summary["versions"],
    }


def write_summary(run_dir: Path | str, **facts: Any) -> dict[str, Any]:
    """Writes `RUN/summary.json` and returns it; `facts` as in `build_summary`."""
    summary = json_files.without_nan(build_summary(read_run(run_dir), **facts))
    json_files.write_json(Path(run_dir) / "summary.json", summary)
    return summary


def isolation_of(run: RunRecord) -> dict[str, Any]:
    """The isolation of foreign code: verdicts by isolation tier, and the weakest tier that ran any.

    `none` means that no foreign code ran for those verdicts, so it is not a weakness.
    """
    counts = _added(
        found
        for stage in run.stages.values()
        for found in (
            *(line.get("judged/isolation") for line in stage.metrics),
            *(record.get("isolation") for record in stage.evaluation.values()),
        )
    )
    used = [tier for tier in ISOLATION_ORDER[1:] if counts.get(tier)]
    return {"tier": used[0] if used else "none", "verdicts": counts}


def find_control(config: Any) -> str | None:
    """Name of the control that a config describes, from its tags of kinds; None for a real run."""
    if isinstance(config, Mapping):
        for value in config.values():
            if isinstance(value, str) and value in CONTROL_KINDS:
                return CONTROL_KINDS[value]
        config = list(config.values())
    if isinstance(config, list):
        return next((name for item in config if (name := find_control(item))), None)
    return None


def machine() -> dict[str, Any]:
    """The machine of a run; no names of hosts, people or directories."""
    return {
        "cores": process.num_cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": process.processor(),
    }


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """Without the counts of every problem, which stay in `evaluation.json`."""
    return {
        key: value
        for key, value in record.items()
        if not (key.endswith("_per_problem") and isinstance(value, Mapping))
    }


def _added(counts: Iterable[Mapping[str, int] | None]) -> dict[str, int]:
    total = collections.Counter[str]()
    for record in counts:
        total.update(record or {})
    return dict(total)


def _by_lag(counts: Iterable[Mapping[str, int] | None]) -> dict[str, int]:
    return dict(sorted(_added(counts).items(), key=lambda item: int(item[0])))
