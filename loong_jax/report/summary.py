"""`summary.json`: the figures of a run that other programs read."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax import configs, process
from loong_jax.data import json_files
from loong_jax.report import overlap
from loong_jax.report.run_record import TICKET_KEYS, RunRecord, read_run

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
    done = [stage.done for stage in run.stages.values()]
    times = [d["wall_s"] for d in done if d.get("wall_s") is not None]
    peaks = [d["peak_gb"] for d in done if d.get("peak_gb") is not None]
    if wall_s is None:
        wall_s = run.summary.get("wall_s") or (sum(times) if times else None)
    if peak_gb is None:
        peak_gb = run.summary.get("peak_gb") or (max(peaks) if peaks else None)
    staleness = _added(stage.staleness for stage in run.rl_stages)
    return {
        "format_version": FORMAT_VERSION,
        "wall_s": wall_s,
        "peak_gb": peak_gb,
        "stages": {
            name: {domain: _figures(record) for domain, record in stage.evaluation.items()}
            for name, stage in run.stages.items()
            if stage.evaluation
        },
        "staleness": dict(sorted(staleness.items(), key=lambda item: int(item[0]))),
        "tickets": tickets_of(run),
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


def tickets_of(run: RunRecord) -> dict[str, int]:
    """Tickets of all RL stages by end; every key of the contract is there."""
    return {**dict.fromkeys(TICKET_KEYS, 0), **_added(stage.tickets for stage in run.rl_stages)}


def isolation_of(run: RunRecord) -> dict[str, Any]:
    """The isolation of foreign code: verdicts by isolation tier, and the weakest tier that ran any.

    `none` means that no foreign code ran for those verdicts, so it is not a weakness.
    """
    counts: dict[str, int] = {}
    for stage in run.stages.values():
        for line in stage.metrics:
            for tier, count in (line.get("judged/isolation") or {}).items():
                counts[tier] = counts.get(tier, 0) + int(count)
        for record in stage.evaluation.values():
            for tier, count in (record.get("isolation") or {}).items():
                counts[tier] = counts.get(tier, 0) + int(count)
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
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        memory = 0
    return {
        "cores": process.num_cores(),
        "memory_gb": round(memory / 1e9, 1),
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


def _added(counts) -> dict[str, int]:
    total: dict[str, int] = {}
    for record in counts:
        for key, count in record.items():
            total[key] = total.get(key, 0) + count
    return total
