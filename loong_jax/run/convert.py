"""Between the published layout and checkpoints of ours, and merges of either.

An imported directory holds `weights/`, as a finished stage has them, and `model.json`: the model's
config, and the config.json and the layout of files that it came with. An import first copies block
by block into files of its own, `DST/.import`, and notes each block; killed there, it goes on with
the next one.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from loong_jax import configs, options, own
from loong_jax.data import disk, json_files
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import METHODS, checkpoints, published
from loong_jax.merge.checkpoints import MergeConfig
from loong_jax.merge.methods import OWN_METHOD
from loong_jax.models import parameters
from loong_jax.models.families import ModelConfig, family_of
from loong_jax.models.hf import HfCheckpoint, files, from_gguf, save_weights_hf
from loong_jax.remote import AnyPath
from loong_jax.rl import checkpoint
from loong_jax.run import sources

BLOCK_BYTES = 1 << 28  # of a leaf, copied and noted at a time
# Of an expert's distance from the base over the norm of the base: training moves weights by far
# less, and weights of two beginnings are about sqrt(2) apart.
FAR = 0.7

logger = logging.getLogger(__name__)

_Source = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SRC")]
_Destination = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DST")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportHfOptions:
    """Makes a checkpoint of ours from a directory in the published layout.

    DST gets weights/, as a finished stage has them, and model.json, the model's config. An import
    that was stopped goes on when the same command runs again. Example:
    loong import-hf longcat-flash-chat checkpoints/chat
    """

    source: Annotated[tyro.conf.Positional[AnyPath], tyro.conf.arg(metavar="SRC")]  # or a URL
    destination: _Destination  # made unless it is there
    dtype: str | None = None  # of matrices, such as bfloat16; as stored unless given


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportGgufOptions:
    """Makes a directory in the published layout from a GGUF file of a Llama, Qwen2 or Qwen3 model.

    DST gets config.json, model.safetensors, and the tokenizer with its template. What quantisation
    lost stays lost. Example: loong import-gguf SmolLM2-135M-Instruct.Q4_1.gguf checkpoints/smollm2
    """

    source: _Source  # one .gguf file
    destination: _Destination  # made unless it is there
    dtype: str = "float32"  # of all weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportHfOptions:
    """Writes a checkpoint of ours in the published layout: config.json and safetensors files.

    SRC is a run (its last finished stage), a stage of one, what `loong import-hf` or `loong merge`
    made, or a directory of checkpoints. An export that was killed is started over when the same
    command runs again. Example: loong export-hf runs/quickstart exported
    """

    source: _Source  # weights of ours and their config
    destination: _Destination  # made unless it is there
    # of one file, in 10^9 bytes; unless given the files are those of the import, else of 5 at most
    max_shard_gb: float | None = None


def import_hf_main(arguments: Sequence[str]) -> int:
    chosen = options.parse(ImportHfOptions, "loong import-hf", arguments)
    import_hf(chosen.source, chosen.destination, dtype=chosen.dtype)
    return 0


def import_gguf_main(arguments: Sequence[str]) -> int:
    chosen = options.parse(ImportGgufOptions, "loong import-gguf", arguments)
    from_gguf.import_gguf(chosen.source, chosen.destination, dtype=chosen.dtype)
    return 0


def export_hf_main(arguments: Sequence[str]) -> int:
    """Raises ConfigError where `--max-shard-gb` is no size."""
    chosen = options.parse(ExportHfOptions, "loong export-hf", arguments)
    size = chosen.max_shard_gb
    if size is not None and not 1e-9 <= size < math.inf:
        raise ConfigError(
            f"--max-shard-gb {size} is no size that a file can have. Give one above 0, such as 5."
        )
    source = sources.find_weights(chosen.source)
    assert isinstance(source, Path)
    num_bytes = None if size is None else max(1, int(size * 1e9))
    export_hf(source, chosen.destination, max_shard_bytes=num_bytes)
    return 0


def import_hf(source: AnyPath | str, destination: Path, *, dtype: str | None = None) -> None:
    """Checks the whole manifest of `source`, then copies its weights to `destination`.

    `source` may be a URL that fsspec reads. Tokenizer and template come with the weights.

    Raises ConfigError or CheckpointError where `source` cannot be loaded, and CheckpointError where
    `destination` already holds a model, other weights or an import of another model.
    """
    staging = destination / ".import"
    found = HfCheckpoint(source, dtype)
    is_other = destination.resolve() != found.directory.resolve()
    _refuse_other_weights(destination, is_other, is_begun=(staging / "source").exists())
    files.make_directory(staging)
    mark, fingerprint = staging / "source", _fingerprint(found, dtype)
    if not mark.exists():
        mark.write_text(fingerprint)
    elif mark.read_text() != fingerprint:
        raise CheckpointError(
            f"{destination} holds a part of another import. Name another directory, or delete "
            f"{staging} to begin anew."
        )
    weights, count = destination / "weights", len(found.places)
    if (destination / "model.json").exists():
        print(
            f"{source}: {count} tensors were read before, and {weights} is whole; what was left of "
            "the import is deleted"
        )
    else:
        leaves = _copy(found, staging)
        print(f"{source}: {count} tensors read, writing {weights}")
        tree = {"weights": parameters.as_tree(leaves)}
        checkpoint.save(weights, 0, tree, {"source": str(source)})
        _write_record(destination, found.config, found.config_text, _told(found))
    sources.copy_files(found.directory, destination)
    for file in staging.iterdir():  # the mark of what is imported goes last
        if file.name != "source":
            file.unlink()
    shutil.rmtree(staging)


def _refuse_other_weights(destination: Path, is_other: bool, *, is_begun: bool) -> None:
    """Raises CheckpointError on weights that the import, begun earlier or not, did not write.

    Published ones would be read instead of its own, unless they are what is imported.
    """
    is_ours = (destination / "model.json").exists() and not is_begun
    if is_ours or (is_other and published.is_published(destination)):
        raise CheckpointError(
            f"{destination} already holds a model. Name another directory, or delete it."
        )
    weights = destination / "weights"
    other = [step for step in checkpoint.steps(weights) if step > 0 or not is_begun]
    if other:
        raise CheckpointError(
            f"{weights} already holds a checkpoint, of step {other[0]}, and an import replaces "
            "none. Name another directory, or delete it."
        )


def write_record(
    destination: Path, like: AnyPath, config: ModelConfig, hf_config: str | None
) -> None:
    """Writes model.json of weights that were made from those in `like`, of the same model."""
    told = sources.model_record(like) or {}
    if not told and published.is_published(like):
        told = _told(HfCheckpoint(like))
    _write_record(destination, config, hf_config, told)


def _told(found: HfCheckpoint) -> dict[str, str | None]:
    return {"hf_dtype": found.stored_dtype, "hf_layout": found.layout}


def _write_record(
    destination: Path, config: ModelConfig, hf_config: str | None, told: Mapping[str, Any]
) -> None:
    record = {
        "format_version": sources.FORMAT_VERSION,
        "versions": configs.versions(),
        "config": configs.to_json(config),
        "hf_config": hf_config,
        **{name: told.get(name) for name in ("hf_dtype", "hf_layout")},
    }
    json_files.write_json(destination / "model.json", record)


def export_hf(source: Path, destination: Path, *, max_shard_bytes: int | None = None) -> None:
    """Writes the weights of `source` in the published layout, in files as `save_hf` has them.

    The config is that of `source`/model.json, or of the run that `source` is a stage of. An export
    that was killed goes on after its last whole file, unless the weights have changed. Raises
    CheckpointError where there is no config, where the weights are not of it, or where
    `destination` holds what no such export put there.
    """
    if (destination / "model.json").exists() and destination.resolve() != source.resolve():
        raise CheckpointError(  # the config there would be taken for that of what is exported
            f"{destination} already holds a model. Name another directory, or delete it."
        )
    config, config_text = sources.read_model(source)
    record = sources.model_record(source) or {}
    files_before = _fingerprint_of_files(checkpoints.weight_directories(source)[0])
    weights = checkpoints.load_weights(source)
    _, abstract = family_of(config).abstract_weights(config)
    expected = {p: leaf.shape for p, leaf in parameters.by_path(abstract).items()}
    found = {p: np.shape(leaf) for p, leaf in parameters.by_path(weights).items()}
    if expected != found:
        odd = next(p for p in (expected | found) if expected.get(p) != found.get(p))
        raise CheckpointError(
            f"{source} holds {odd} of shape {found.get(odd)}, and its config says "
            f"{expected.get(odd)}. Put the model.json beside it that belongs to the weights."
        )
    files_after = _fingerprint_of_files(checkpoints.weight_directories(source)[0])
    num_kept = save_weights_hf(
        config,
        weights,
        destination,
        config_text=config_text,
        stored_dtype=record.get("hf_dtype"),
        stored_layout=record.get("hf_layout"),
        max_shard_bytes=max_shard_bytes,
        source=files_before if files_before == files_after else None,
    )
    if beside := sources.files_beside(source):
        sources.copy_files(beside, destination)
    before = f", {num_kept} of the files before" if num_kept else ""
    print(f"{len(found)} stacked arrays of {source} written to {destination}{before}")


def _copy(found: HfCheckpoint, staging: Path) -> dict[str, np.ndarray]:
    """Every leaf as a file in `staging`; blocks that `done` names are there already."""
    done = staging / "done"
    noted = set(done.read_text().split("\n")) if done.exists() else set()
    leaves = {}
    for leaf, spec in found.shapes.items():
        file = staging / (leaf.replace("/", ".") + ".bin")
        is_new = not any(note.startswith(f"{leaf} ") for note in noted)
        row_bytes = math.prod(spec.shape[1:]) * found.dtypes[leaf].itemsize
        rows = max(1, BLOCK_BYTES // row_bytes)
        with disk.writing(file), file.open("wb" if is_new else "r+b") as held:
            for start in range(0, spec.shape[0], rows):
                stop = min(start + rows, spec.shape[0])
                note = f"{leaf} {start} {stop}"
                if note not in noted:
                    others = ((0, size) for size in spec.shape[1:])
                    held.seek(start * row_bytes)
                    held.write(found.read(leaf, ((start, stop), *others)).view(np.uint8).data)
                    held.flush()
                    os.fsync(held.fileno())
                    with done.open("a") as stream:
                        stream.write(note + "\n")
        leaves[leaf] = np.memmap(file, found.dtypes[leaf], "r", shape=spec.shape)
    return leaves


def _fingerprint(found: HfCheckpoint, dtype: str | None) -> str:
    """Changes when the config, a tensor's place or kind, or a file changes."""
    content: list[Any] = [found.config_text, dtype, BLOCK_BYTES]
    stamps = {tensor.file: files.stamp(tensor.file) for tensor in found.found.values()}
    for name, tensor in sorted(found.found.items()):
        content.append([name, str(tensor), stamps[tensor.file]])
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _fingerprint_of_files(directory: Path) -> str | None:
    """Changes when a file is added, removed or written to; None if one is just then."""
    content, seen = [], set()
    try:
        for place, _, names in os.walk(directory, followlinks=True):
            if (real := os.path.realpath(place)) in seen:
                continue  # a link back to a directory above it
            seen.add(real)
            for name in names:
                status = os.stat(os.path.join(place, name))
                path = os.path.relpath(place, directory), name
                content.append([*path, status.st_size, status.st_mtime_ns])
    except OSError:
        return None
    text = json.dumps([configs.versions(), str(directory.resolve()), sorted(content)])
    return hashlib.sha256(text.encode()).hexdigest()


# ---- merges --------------------------------------------------------------------------------------


def merge_main(arguments: Sequence[str]) -> int:
    name, *rest = arguments
    if ".py" in name:
        method = own.named(name, OWN_METHOD, {})
    elif name in METHODS:
        method = METHODS[name]()
    else:
        raise ConfigError(
            f"{name!r} is not a merge method. Choose one of: {', '.join(METHODS)}; or one of your "
            "own: FILE.py:CLASS."
        )
    config_type = options.with_defaults(MergeConfig, method=method)
    return merge(options.parse(config_type, f"loong merge {name}", rest))


def merge(config: MergeConfig) -> int:
    """Merges, and puts config, tokenizer and template of the base beside the fused weights.

    Of a run its last finished stage is taken.
    """
    config = dataclasses.replace(
        config,
        base=sources.find_weights(config.base),
        experts=tuple(map(sources.find_weights, config.experts)),
        names=config.expert_names(),
    )
    report = _finished(config) or checkpoints.main(config)
    for name in far_experts(report):
        logger.warning(
            "expert %s is about as far from the base as weights of another beginning would be: was "
            "it trained from %s?",
            name,
            config.base,
        )
    if published.is_published(config.output):
        return 0
    try:
        source = sources.find(config.base)
    except CheckpointError as error:  # weights alone: their model is nobody's to say
        logger.warning("the merge has no model.json, since the base does not say one: %s", error)
        return 0
    write_record(config.output, source.weights, source.config, source.hf_config)
    sources.keep_files(source, config.output / sources.KEPT)
    return 0


def _finished(config: MergeConfig) -> dict[str, Any] | None:
    """The report of this very merge where it was killed before it said its model."""
    target = config.output / published.REPORT
    if (config.output / "model.json").exists() or not target.exists():
        return None
    report = json_files.read_json(target)
    names = dict(zip(config.expert_names(), map(str, config.experts), strict=True))
    is_this = report.get("base") == str(config.base) and report.get("sources") == names
    return report if is_this and not published.is_published(config.output) else None


def far_experts(report: Mapping[str, Any]) -> list[str]:
    """Experts that are no further training of the base, by how far they are from it."""
    overall = report["global"]
    if not overall.get("base_norm"):
        return []
    return [name for name, norm in overall["norm"].items() if norm > FAR * overall["base_norm"]]
