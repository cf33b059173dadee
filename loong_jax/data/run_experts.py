"""The expert stages of a run and their domains, read off its config.json."""

from collections.abc import Collection
from pathlib import Path

from loong_jax import configs
from loong_jax.data import json_files
from loong_jax.errors import LoongError

BASELINES = ("sft", "before")  # stages that gains are counted from: the first that a run has


def experts_of(run_dir: Path | str) -> dict[str, str]:
    """The domain of each expert of a run, by stage; {} for a run that does not say."""
    try:
        config = json_files.read_json(Path(run_dir) / "config.json", {}).get("config", {})
        if "experts" not in config:
            config = {"experts": getattr(configs.load(Path(run_dir)), "experts", ())}
    except LoongError:
        return {}
    return {stage: domain for stage, domain in config["experts"]}


def baseline_of(stages: Collection[str]) -> str:
    return next((name for name in BASELINES if name in stages), BASELINES[0])
