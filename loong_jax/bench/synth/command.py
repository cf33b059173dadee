"""`loong bench synth`: material, runs, figures and charts; see `resyn` and `loong` for the arms."""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax import configs, options
from loong_jax.bench.short_runs import running
from loong_jax.bench.synth import comparing, loong, resyn
from loong_jax.bench.synth.runs import Arm, Trained, train
from loong_jax.bench.synth.settings import ResynSize, Size
from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.launch import places
from loong_jax.launch.recipe import Recipe

PARTS = ("learning", "breadth", "loong", "calibration")
Say = running.Say


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Whether a tiny model learns from what the scripted author wrote, by short paired runs.

    learning: RL on ReSyn's environments, on held-out problems and levels of those it posed, and on
    environments it never posed. breadth: many environments or few, with equal instances and steps.
    loong: RL on LoongEnv's problems, SFT on them, or RL on the seeds alone, on held-out seeds.
    calibration: how often ReSyn's calibration decides rightly, without a model.

    All runs of a part begin with one cold start; each has a core of its own. Run the command again
    and it goes on. What comes out says nothing about any author but the scripted one.
    Example: loong bench synth --parts learning,breadth --json synth.json
    """

    json: Path | None = None  # everything, problems and curves included
    charts: Path | None = None  # a directory for one PNG per part; None: charts/ of the work dir
    work_dir: Path = Path("runs/synth")
    packages: Path | None = None  # environments to pose; None: the bench has its own written
    parts: str = ",".join(PARTS)  # comma-separated
    seeds: tuple[int, ...] = (0, 1, 2)
    jobs: int = 2  # runs at a time
    max_minutes: float = 4.0  # of one run; one that takes longer is a row without figures
    draws: int = 2000  # of calibration, for each curve and size
    size: Size = Size()

    def __post_init__(self):
        unknown = set(self.chosen_parts) - set(PARTS)
        if unknown or not self.chosen_parts:
            raise ConfigError(f"parts={self.parts!r} must name some of {', '.join(PARTS)}.")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"seeds={self.seeds} must name at least one seed, each once.")
        if self.jobs < 1 or not self.max_minutes > 0 or self.draws < 1:
            raise ConfigError(
                f"jobs={self.jobs} and draws={self.draws} must be at least 1 and max_minutes="
                f"{self.max_minutes} positive."
            )

    @property
    def chosen_parts(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.parts.split(",") if name.strip())


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench synth", arguments)
    places.prepare_files(json=chosen.json)
    places.try_directories(charts=chosen.charts, work_dir=chosen.work_dir)
    result = measure(chosen, say=lambda text: print(text, flush=True))
    if chosen.json is not None:
        json_files.write_json(chosen.json, json_files.without_nan(result))
    return 0


def measure(chosen: Options, *, say: Say) -> dict[str, Any]:
    """All figures as one JSON object; charts are written as soon as a part has ended."""
    parts: dict[str, Any] = {}
    for part, size in (("learning", chosen.size.learning), ("breadth", chosen.size.breadth)):
        if part in chosen.chosen_parts:
            parts[part] = _resyn(chosen, part, size, say)
    if "loong" in chosen.chosen_parts:
        parts["loong"] = _loong(chosen, say)
    if "calibration" in chosen.chosen_parts:
        parts["calibration"] = _calibration(chosen, say)
    return {
        "author": "scripted",
        "settings": {
            "parts": chosen.chosen_parts,
            "seeds": chosen.seeds,
            "size": dataclasses.asdict(chosen.size),
        },
        "versions": configs.versions(),
        "machine": {"cores": os.cpu_count(), "platform": sys.platform},
        "parts": parts,
    }


def _resyn(chosen: Options, part: str, size: ResynSize, say: Say) -> dict[str, Any]:
    directory = chosen.packages or resyn.make_packages(
        chosen.work_dir.absolute() / "resyn" / "written", say
    )
    place = chosen.work_dir.absolute() / part
    found = resyn.material(directory, size)
    arms = resyn.arms(place, found, size)
    trained = _trained(chosen, place, resyn.cold_start(place, found, size), arms, say)
    if part == "learning":
        groups, against = found.groups_of_learning(size), None
    else:
        groups, against = found.groups_of_breadth(size), arms[-1].name  # the deepest
    return _compared(chosen, part, trained, groups, against, say) | {"environments": found.about()}


def _loong(chosen: Options, say: Say) -> dict[str, Any]:
    size, place = chosen.size.loong, chosen.work_dir.absolute() / "loongenv"
    found = loong.material(loong.make_items(place / "written", size, say), size)
    arms = loong.arms(place, found, size)
    trained = _trained(chosen, place, loong.cold_start(place, found, size), arms, say)
    groups = {"held-out seeds": lambda uid: True}
    against = "RL on seeds alone"
    part = _compared(chosen, "loong", trained, groups, against, say)
    return part | {"material": found.about()}


def _trained(
    chosen: Options, place: Path, cold_start: Recipe, arms: Sequence[Arm], say: Say
) -> Trained:
    return train(
        place / "trained", cold_start, arms, chosen.seeds,
        jobs=chosen.jobs, timeout_s=60 * chosen.max_minutes, say=say,
    )  # fmt: skip


def _compared(
    chosen: Options, part: str, trained: Trained, groups: comparing.Groups, against: str | None,
    say: Say,
) -> dict[str, Any]:  # fmt: skip
    compared = comparing.compare(trained, groups, chosen.seeds, against)
    say(comparing.table(part, compared, against))
    from loong_jax.bench.synth import figures

    _write_chart(chosen, part, figures.png(part, compared, trained))
    return {"groups": compared, "runs": trained.by_arm, "cold_start": trained.base}


def _calibration(chosen: Options, say: Say) -> Mapping[str, Any]:
    from loong_jax.bench.synth import calibration
    from loong_jax.synth.resyn import power

    result = power.measure(chosen.draws)
    say(f"\ncalibration\n{power.as_text(result)}")
    _write_chart(chosen, "calibration", calibration.png(result))
    return result


def _write_chart(chosen: Options, part: str, picture: bytes) -> None:
    charts = chosen.charts or chosen.work_dir / "charts"
    charts.mkdir(parents=True, exist_ok=True)
    (charts / f"{part}.png").write_bytes(picture)
