"""From a model to a directory in the published layout, one tensor at a time."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from loong_jax import crash_point
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models.moe import parameters
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.convert import files, hf_config, names, unfinished
from loong_jax.models.moe.convert.names import Place
from loong_jax.models.moe.model import LongcatFlash

MAX_SHARD_BYTES = 5_000_000_000


def save_hf(
    model: LongcatFlash, directory: Path | str, *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Writes config.json and safetensors files, with an index where there are several.

    Tensors keep the dtypes they have. A model that came from `load_hf` has its config.json again,
    but for what was changed. A save that was killed is started over by the next one to the same
    directory. Raises CheckpointError where that already holds weights or another config.json or
    cannot be written to, or where this process cannot see all of the model's weights.
    """
    _, state = nnx.split(model, graph=False)
    save_weights_hf(
        model.config,
        nnx.to_pure_dict(state),
        directory,
        config_text=model.imported_config,
        stored_dtype=model.imported_dtype,
        max_shard_bytes=max_shard_bytes,
    )


def save_weights_hf(
    config: MoEConfig,
    weights: Mapping[str, Any],
    directory: Path | str,
    *,
    config_text: str | None = None,
    stored_dtype: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    source: str | None = None,
) -> int:
    """As `save_hf`, from the weights as a nested dict of JAX or NumPy arrays.

    `config_text` is the config.json that they came with, beside an embedding of `stored_dtype`.
    With `source`, which tells these weights from all others, a save of them that was killed goes on
    after its last whole file. Returns how many files were whole before.
    """
    directory = Path(directory)
    if not max_shard_bytes >= 1:
        raise ConfigError(f"max_shard_bytes={max_shard_bytes} is below 1. Raise it.")
    leaves = parameters.by_path(weights)
    hidden = [leaf for leaf, array in leaves.items() if not _is_visible(array)]
    if hidden:
        raise CheckpointError(
            f"{hidden[0]} lies in part on devices of other processes. Save a checkpoint, and "
            "export it in one process with `loong export-hf`."
        )
    text = _config_text(config, np.dtype(leaves["embedding"].dtype), config_text, stored_dtype)
    with unfinished.begun(directory, text, source) as export:
        num_kept, written = _write(export.aside, config, leaves, max_shard_bytes)
        (export.aside / "config.json").write_bytes(text)
        # of a save whose weights were deleted
        (directory / files.INDEX).unlink(missing_ok=True)
        unfinished.finish(export, [*written, "config.json"])
    return num_kept


def _config_text(
    config: MoEConfig, dtype: np.dtype, original: str | None, stored_dtype: str | None
) -> bytes:
    """config.json for weights of `dtype`; as it came, to the byte, where nothing has changed."""
    config = dataclasses.replace(config, param_dtype=dtype)
    known = json.loads(original) if original else None
    record = hf_config.write_config(config, known, stored_dtype)
    if original and record == known:
        return original.encode()
    return (json.dumps(record, indent=2) + "\n").encode()


def _write(
    directory: Path, config: MoEConfig, leaves: Mapping[str, Any], max_shard_bytes: int
) -> tuple[int, list[str]]:
    """Writes shards that are not there, and an index where there are several.

    How many were there, and the names of all files.
    """
    places = {place.name: place for place in names.places(config, leaves)}
    sizes = {name: _num_bytes(leaves[place.leaf], place) for name, place in places.items()}
    shards = _shards(sizes, max_shard_bytes)
    weight_map, written, num_kept = {}, [], 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        file = "model.safetensors" if len(shards) == 1 else file
        entries = [(n, np.dtype(leaves[places[n].leaf].dtype), places[n].shape) for n in shard]
        if files.is_whole(directory / file, entries):
            num_kept += 1
        else:
            files.write_file(directory / file, entries, lambda name: _fetch(leaves, places[name]))
            crash_point.reach("ShardWritten")
        weight_map |= dict.fromkeys(shard, file)
        written.append(file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (directory / files.INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        written.append(files.INDEX)
    return num_kept, written


def _shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names in runs of at most `max_bytes`, or of one tensor that is larger."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _fetch(leaves: Mapping[str, Any], place: Place) -> np.ndarray:
    """One tensor as it is stored, from wherever its region lies."""
    array = leaves[place.leaf]
    index = tuple(slice(start, stop) for start, stop in place.region)
    if isinstance(array, np.ndarray):
        return place.turn_back(array[index])
    held = np.empty([stop - start for start, stop in place.region], array.dtype)
    for shard in array.addressable_shards:
        region = names.region_of(shard.index, array.shape)
        if shard.replica_id == 0 and (common := names.meet(region, place.region)):
            with names.without_mesh():  # cut on the device, so that no whole shard is copied
                part = np.asarray(shard.data[names.within(common, region)])
            held[names.within(common, place.region)] = part
    return place.turn_back(held)


def _num_bytes(array: Any, place: Place) -> int:
    return int(np.prod(place.shape)) * np.dtype(array.dtype).itemsize


def _is_visible(array: Any) -> bool:
    return not isinstance(array, jax.Array) or array.is_fully_addressable
