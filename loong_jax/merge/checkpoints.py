"""Merging checkpoints on disk: what `loong merge` does."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import report as report_lib
from loong_jax.merge.methods import LongcatFusion, Method
from loong_jax.merge.tree import BatchAxes, PathRules, Weights

Load = Callable[[Path], Weights]
Save = Callable[[Path, Weights, Mapping[str, Any]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeConfig:
    """Fuse experts that were trained from one base."""

    base: Path  # stage directory or checkpoint directory of the common ancestor
    experts: tuple[Path, ...]  # the same for each expert
    output: Path  # directory for checkpoints/ and fusion.json
    names: tuple[str, ...] = ()  # of the experts; their directories' names unless given
    weights: tuple[float, ...] = ()  # of the experts; equal unless given
    method: Method = dataclasses.field(default_factory=LongcatFusion)
    rules: PathRules = dataclasses.field(default_factory=PathRules)

    def __post_init__(self):
        if not self.experts:
            raise ConfigError("experts is empty. Give the directory of at least one expert.")
        for name in ("names", "weights"):
            given = getattr(self, name)
            if given and len(given) != len(self.experts):
                raise ConfigError(
                    f"{name}={given} and there are {len(self.experts)} experts. Give one for each."
                )
        if len(set(self.expert_names())) != len(self.experts):
            raise ConfigError(
                f"Experts are named {self.expert_names()}, and masks go by name. Give different"
                " names."
            )

    def expert_names(self) -> tuple[str, ...]:
        return self.names or tuple(_stage_name(path) for path in self.experts)


def longcat_stacks(path: str) -> int:
    """Leading stacks in the weights of `loong_jax.models.moe`: layers, and experts inside them."""
    if path.startswith("layers/experts/"):
        return 2
    return 1 if path.startswith("layers/") else 0


def merge_checkpoints(
    config: MergeConfig,
    *,
    load: Load | None = None,
    save: Save | None = None,
    batch_axes: BatchAxes = longcat_stacks,
) -> dict[str, Any]:
    """Loads, fuses leaf by leaf, saves with the report beside the weights; returns the report.

    `load` and `save` are of our own checkpoints unless given. Raises CheckpointError where one is
    missing or the output already holds a fusion.
    """
    load, save = load or load_weights, save or save_weights
    target = config.output / "fusion.json"
    if target.exists():
        raise CheckpointError(f"{target} exists. Give another output, or delete that fusion.")
    experts = {
        name: load(path) for name, path in zip(config.expert_names(), config.experts, strict=True)
    }
    weights = dict(zip(experts, config.weights, strict=True)) if config.weights else None
    fused, report = report_lib.fuse_with_report(
        load(config.base),
        experts,
        method=config.method,
        weights=weights,
        batch_axes=batch_axes,
        rules=config.rules,
    )
    sources = {name: str(path) for name, path in zip(experts, config.experts, strict=True)}
    report = {"base": str(config.base), "sources": sources, **report}
    save(config.output, fused, {name: report[name] for name in ("method", "weights", "sources")})
    config.output.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".json.partial")
    partial.write_text(json.dumps(report, indent=1))
    partial.replace(target)
    return report


def main(config: MergeConfig) -> int:
    """`loong merge`: merges, prints what it did; returns the exit status."""
    report = merge_checkpoints(config)
    print(summarise(report))
    print(
        f"fused weights: {config.output / 'checkpoints'}; report: {config.output / 'fusion.json'}"
    )
    return 0


def summarise(report: Mapping[str, Any]) -> str:
    """The report on a terminal: a line per expert and the gain."""
    overall = report["global"]
    lines = [f"{'expert':<16}{'norm':>12}{'kept':>8}{'erased':>8}{'retention':>11}"]
    for name in report["experts"]:
        kept, erased, retention = (
            _show(overall[column][name], ".3f") for column in ("kept", "erased", "retention")
        )
        norm = _show(overall["norm"][name], ".4g")
        lines.append(f"{name:<16}{norm:>12}{kept:>8}{erased:>8}{retention:>11}")
    gain = _show(overall["gain"], ".3f")
    lines.append(f"fused delta: norm {_show(overall['fused_norm'], '.4g')}, gain {gain}")
    return "\n".join(lines)


def load_weights(path: Path) -> Weights:
    """A stage's final weights, else those of its latest checkpoint; or a bare checkpoint's."""
    from loong_jax.rl import checkpoint  # orbax, only where checkpoints are ours

    places = (path / "weights", path / "checkpoints")
    directory = next((place for place in places if place.is_dir()), path)
    arrays = checkpoint.restore(directory).arrays
    if "weights" not in arrays:
        raise CheckpointError(
            f"The checkpoint in {directory} holds {sorted(map(str, arrays))} and no weights. Give"
            " one that a trainer wrote."
        )
    return arrays["weights"]


def save_weights(path: Path, weights: Weights, metadata: Mapping[str, Any]) -> None:
    """Checkpoint 0 in `path/checkpoints`: the fused weights begin a training of their own."""
    from loong_jax.rl import checkpoint

    checkpoint.save(path / "checkpoints", 0, {"weights": weights}, metadata)


def _stage_name(path: Path) -> str:
    return path.parent.name if path.name == "checkpoints" else path.name


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
