"""Merging checkpoints on disk: what `loong merge` does.

Directories of safetensors files are merged from disk to disk, leaf by leaf (`published`). Our own
checkpoints are restored, merged and saved whole, because Orbax restores and saves them whole; where
one of the inputs is of ours, so are the others read, and what is written.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import fusion, published, tree
from loong_jax.merge import report as report_lib
from loong_jax.merge.methods import LongcatFusion, Method
from loong_jax.merge.tree import PathRules
from loong_jax.models import parameters
from loong_jax.models.hf import HfCheckpoint, files, unfinished
from loong_jax.models.parameters import Weights
from loong_jax.own import OwnPart
from loong_jax.remote import AnyPath, RemotePath


@dataclasses.dataclass(frozen=True, kw_only=True)
class MergeConfig:
    """Fuse experts that were trained from one base."""

    # run, stage, checkpoints, or directory or URL of safetensors files of the common ancestor
    base: AnyPath
    experts: tuple[AnyPath, ...]  # the same for each expert
    # directory for fusion.json and checkpoints/, or for safetensors files where all inputs are such
    output: Path
    names: tuple[str, ...] = ()  # of the experts; the last parts of their paths that differ
    weights: tuple[float, ...] = ()  # of the experts; equal unless given
    importances: tuple[AnyPath, ...] = ()  # of the experts' weights, where the method needs them
    masters: bool = True  # merge the float32 masters of a checkpoint that holds them
    method: Method | OwnPart = dataclasses.field(default_factory=LongcatFusion)
    rules: PathRules = dataclasses.field(default_factory=PathRules)

    def __post_init__(self):
        if not self.experts:
            raise ConfigError("experts is empty. Give the directory of at least one expert.")
        for name in ("names", "weights", "importances"):
            given = getattr(self, name)
            if given and len(given) != len(self.experts):
                raise ConfigError(
                    f"{name}={given} must be as many as experts={self.experts}. Give one for each."
                )
        if len(set(self.expert_names())) != len(self.experts):
            raise ConfigError(
                f"Experts are named {self.expert_names()}, and masks go by name. Give different"
                " names."
            )

    def expert_names(self) -> tuple[str, ...]:
        return self.names or _telling_parts(self.experts)

    def by_name(self, values: Sequence[Any]) -> dict[str, Any] | None:
        """One of `values` for each expert; None where there are none."""
        return dict(zip(self.expert_names(), values, strict=True)) if values else None


def longcat_stacks(path: str) -> int:
    """Leading stacks in the weights of `loong_jax.models.moe`: layers, and experts inside them."""
    if path.startswith("layers/experts/"):
        return 2
    return 1 if path.startswith("layers/") else 0


def merge_checkpoints(config: MergeConfig) -> dict[str, Any]:
    """Fuses leaf by leaf, saves with the report beside the weights; returns the report.

    Safetensors files alone are merged from disk to disk, where every matrix is a tensor of its own.
    Raises CheckpointError where a checkpoint is missing, or the output already holds a fusion or
    other weights. No empty output is left.
    """
    target = config.output / published.REPORT
    if target.exists() and not (config.output / unfinished.MARK).exists():
        raise CheckpointError(f"{target} exists. Give another output, or delete that fusion.")
    inputs = (config.base, *config.experts, *config.importances)
    is_new = not config.output.exists()
    files.make_directory(config.output)
    try:
        if all(map(published.is_published, inputs)):
            return _merge_published(config, inputs)
        return _merge_restored(config)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # holds something
                config.output.rmdir()


def _merge_restored(config: MergeConfig) -> dict[str, Any]:
    target = config.output / published.REPORT
    partial = target.with_suffix(".json.partial")  # until the weights that it is about are whole
    if not partial.exists():
        _refuse_weights(config.output)

    def load(path: AnyPath) -> Weights:
        return load_weights(_local(path), masters=config.masters)

    fused, report = report_lib.fuse_with_report(
        load(config.base),
        config.by_name([load(path) for path in config.experts]) or {},
        method=config.method,
        weights=config.by_name(config.weights),
        batch_axes=longcat_stacks,
        importances=config.by_name([load(path) for path in config.importances]),
        rules=config.rules,
    )
    as_stored = load_weights(_local(config.base))  # masters are merged in float32 and cast once
    fused = jax.tree.map(lambda leaf, base: np.asarray(leaf).astype(base.dtype), fused, as_stored)
    report = _sources(config) | report
    partial.write_text(json.dumps(report, indent=1))
    said = {name: report[name] for name in ("method", "weights", "sources")}
    save_weights(config.output, fused, said)
    partial.replace(target)
    return report


def _local(path: AnyPath) -> Path:
    """Raises CheckpointError for a URL, of which safetensors files alone are merged."""
    if isinstance(path, RemotePath):
        raise CheckpointError(
            f"{path} is a URL, and checkpoints of ours are merged from directories. Copy it to one,"
            " or let base and experts all hold safetensors files: `loong export-hf RUN OUT`."
        )
    return path


def _refuse_weights(output: Path) -> None:
    """Raises CheckpointError where checkpoints of others lie in `output`."""
    from loong_jax.rl import checkpoint  # orbax, only where checkpoints are ours

    if published.is_published(output):  # which would be read instead of the merge
        raise CheckpointError(
            f"{output} already holds safetensors files, and a merge replaces none. Give another"
            " output."
        )
    of_run = (output / "stages", output, output.parent)  # a stage would be read, or another command
    if any(at.name == "stages" and (at.parent / "config.json").exists() for at in of_run):
        raise CheckpointError(
            f"{output} is a run or lies among its stages, and a merge is neither. Give another "
            "output."
        )
    for place in weight_directories(output):
        if found := checkpoint.steps(place):
            raise CheckpointError(
                f"{place} already holds checkpoints {found}, and a merge replaces none. Give"
                " another output."
            )


def _merge_published(config: MergeConfig, inputs: Sequence[AnyPath]) -> dict[str, Any]:
    opened = [published.PublishedWeights(path) for path in inputs]
    try:
        base, *rest = opened
        leaves = [one.leaves for one in rest]
        plan = fusion.prepare(
            base.leaves,
            config.by_name(leaves[: len(config.experts)]) or {},
            method=config.method,
            weights=config.by_name(config.weights),
            importances=config.by_name(leaves[len(config.experts) :]),
            rules=config.rules,
        )
        report = report_lib.Report(plan)
        published.write(
            plan,
            base,
            config.output,
            on_leaf=report.add,
            report=lambda: json.dumps(_sources(config) | report.to_json(), indent=1),
        )
        return _sources(config) | report.to_json()
    finally:
        for one in opened:
            one.close()


def _sources(config: MergeConfig) -> dict[str, Any]:
    sources = {name: str(path) for name, path in (config.by_name(config.experts) or {}).items()}
    return {"base": str(config.base), "sources": sources}


def main(config: MergeConfig) -> dict[str, Any]:
    """Merges and prints what it did; returns the report."""
    report, own = merge_checkpoints(config), config.output / "checkpoints"
    print(summarise(report))
    where = own if own.exists() else config.output
    print(f"fused weights: {where}; report: {config.output / 'fusion.json'}")
    return report


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


def load_weights(path: Path, *, masters: bool = False) -> Weights:
    """A stage's final weights, else those of its latest checkpoint; or a bare checkpoint's, or
    those of safetensors files with their config.json.

    With `masters`, leaves that the same step was also saved of in float32 come in that precision:
    under "masters", in the form of the weights, or in the optimizer's state.
    """
    if published.is_published(path):
        stored = HfCheckpoint(path)
        return parameters.as_tree(
            {n: stored.read(n, tuple((0, k) for k in a.shape)) for n, a in stored.shapes.items()}
        )
    from loong_jax.rl import checkpoint  # orbax, only where checkpoints are ours

    directory, *others = weight_directories(path)
    found = checkpoint.restore(directory)
    if "weights" not in found.arrays:
        raise CheckpointError(
            f"The checkpoint in {directory} holds {sorted(map(str, found.arrays))} and no weights."
            " Give one that a trainer wrote."
        )
    weights = found.arrays["weights"]
    if not masters:
        return weights
    sources = [found.arrays]
    for place in others:  # a finished stage's weights lack what its last checkpoint may have
        if found.step in checkpoint.steps(place):
            sources.append(checkpoint.restore(place, found.step).arrays)
    wide = {name: leaf for arrays in sources for name, leaf in masters_of(arrays).items()}
    leaves, structure = tree.flatten(weights)
    for name, leaf in leaves.items():
        master = wide.get(name, leaf)
        if master.shape == leaf.shape and master.dtype == np.float32:
            leaves[name] = master
    return jax.tree_util.tree_unflatten(structure, list(leaves.values()))


def weight_directories(path: Path) -> list[Path]:
    """The directories of a stage's weights, in order of preference; or a bare checkpoint itself."""
    places = [place for place in (path / "weights", path / "checkpoints") if place.is_dir()]
    return places or [path]


def masters_of(arrays: Mapping[str, Any]) -> dict[str, tree.Leaf]:
    """The float32 masters of a checkpoint by path: of "masters", and of "optimizer" where a name
    there is `...masters.layers.up`."""
    found = tree.flatten(arrays.get("masters", {}))[0]
    for name, leaf in arrays.get("optimizer", {}).items():
        _, marker, path = name.rpartition("masters.")
        if marker:
            found[path.replace(".", "/")] = leaf
    return found


def save_weights(path: Path, weights: Weights, metadata: Mapping[str, Any]) -> None:
    """Checkpoint 0 in `path/checkpoints`: the fused weights begin a training of their own."""
    from loong_jax.rl import checkpoint

    checkpoint.save(path / "checkpoints", 0, {"weights": weights}, metadata)


def _telling_parts(paths: Sequence[AnyPath]) -> tuple[str, ...]:
    """The last part of each path in which all of them differ: of a/rl and b/rl, a and b."""
    reversed_parts = [
        (path.parent if path.name == "checkpoints" else path).parts[::-1] for path in paths
    ]
    for parts in zip(*reversed_parts, strict=False):
        if len(set(parts)) == len(paths):
            return parts
    return tuple(path.name for path in paths)


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
