"""`loong bench quickstart-ablation`: runs, figures and charts; see `arms` for what is compared."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from loong_jax import configs, options
from loong_jax.bench.ablation import arms, comparing, runs
from loong_jax.bench.ablation.arms import Size
from loong_jax.bench.short_runs import running
from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.eval.evaluation import EvaluationResult
from loong_jax.launch import places
from loong_jax.orchestrator.pipeline import stage_directory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Short runs of the quickstart's reinforcement learning, each with one thing changed.

    All begin with one cold start and consume equal numbers of groups; each has a core of its own.
    Printed are paired differences of held-out pass@1 to the first arm of each group. Run it again
    and it goes on: what has a result in the work directory is not run again.
    Example: loong bench quickstart-ablation --groups staleness --json staleness.json
    """

    json: Path | None = None  # everything, problems and curves included
    charts: Path | None = None  # a directory for one PNG per group; None: charts/ of the work dir
    work_dir: Path = Path("runs/quickstart-ablation")
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None  # a run with a finished sft
    groups: str = ",".join(arms.GROUPS)  # comma-separated
    seeds: tuple[int, ...] = (0, 1, 2)
    jobs: int = 2  # runs at a time
    max_minutes: float = 4.0  # of one run; one that takes longer is a row without figures
    size: Size = Size()

    def __post_init__(self):
        unknown = set(self.chosen_groups) - set(arms.GROUPS)
        if unknown or not self.chosen_groups:
            raise ConfigError(f"groups={self.groups!r} must name some of {', '.join(arms.GROUPS)}.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds={self.seeds} must name at least one seed, each once.")
        if self.jobs < 1 or not self.max_minutes > 0:
            raise ConfigError(
                f"jobs={self.jobs} must be at least 1 and max_minutes={self.max_minutes} positive."
            )

    @property
    def chosen_groups(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.groups.split(",") if name.strip())


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench quickstart-ablation", arguments)
    places.prepare_files(json=chosen.json)
    places.try_directories(charts=chosen.charts, work_dir=chosen.work_dir)
    result = measure(chosen, say=lambda text: print(text, flush=True))
    for name, group in result["groups"].items():
        charts = chosen.charts or chosen.work_dir / "charts"
        charts.mkdir(parents=True, exist_ok=True)
        from loong_jax.bench.ablation import figures

        picture = figures.png(name, group, result["runs"], chosen.seeds, chosen.size)
        (charts / f"{name}.png").write_bytes(picture)
    if chosen.json is not None:
        json_files.write_json(chosen.json, result)
    return 0


def measure(chosen: Options, *, say: running.Say, cold_start: Any = None) -> dict[str, Any]:
    """All figures as one JSON object. `cold_start` is the recipe that makes one if none is there.

    A run without a result is made where `--from` has a finished cold start or the bench's own is.
    """
    work = running.WorkDir(chosen.work_dir, chosen.source)
    planned = runs.plan(chosen.chosen_groups, chosen.seeds, chosen.size)
    if any(work.result(run) is None for run in planned):
        running.make_cold_start(work, cold_start or runs.cold_start_recipe(), say=say)
    results = running.run_all(
        work, planned, jobs=chosen.jobs, timeout_s=60 * chosen.max_minutes, say=say
    )
    compared = comparing.compare(chosen.chosen_groups, chosen.seeds, chosen.size, results)
    say(comparing.table(compared))
    before = _before(work)
    if before is not None:
        say(f"\nThe cold start has {100 * before['pass@1']:.1f} % ({arms.DOMAIN}).")
    if text := comparing.loss_at_two(compared):
        say(text)
    return {
        "settings": {
            "groups": chosen.chosen_groups,
            "seeds": chosen.seeds,
            "size": dataclasses.asdict(chosen.size),
            "stage": arms.STAGE,
            "domain": arms.DOMAIN,
        },
        "versions": configs.versions(),
        "machine": {"cores": os.cpu_count(), "platform": sys.platform},
        "cold_start": before,
        "groups": compared,
        "runs": results,
    }


def _before(work: running.WorkDir) -> dict[str, Any] | None:
    """Of the cold start itself, where its evaluation is there."""
    directory = stage_directory(work.source, "sft")
    if not (directory / "evaluation.json").exists():
        return None
    return EvaluationResult.load(directory).to_json()["domains"].get(arms.DOMAIN)
