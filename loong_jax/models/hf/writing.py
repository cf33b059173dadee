"""From a model to a directory in the published layout, one tensor at a time.

How the files of a checkpoint were laid out is remembered, so that they can be written again: of
each file its tensors in their order, its metadata and a digest of its header, which tells whether
tensors are those of the file; of an index its text.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models import parameters
from loong_jax.models.hf import files, publication, unfinished
from loong_jax.models.hf.files import Entry, Metadata, StoredTensor
from loong_jax.models.hf.publication import Place
from loong_jax.models.hf.published import published_as
from loong_jax.remote import AnyPath


class FilePlan(NamedTuple):
    """A file that is to be written."""

    name: str
    tensors: list[Entry]  # in their order
    metadata: Metadata | None

    def digest(self) -> str:
        header, _ = files.lay_out(Path(self.name), self.tensors, self.metadata)
        return hashlib.sha256(header).hexdigest()


def read_layout(directory: AnyPath, found: Mapping[str, StoredTensor]) -> str | None:
    """The layout of the tensors `found` there, as JSON.

    None where files cannot be written again from it: their headers are not as safetensors writes
    them, or an index spells their names in other ways.
    """
    entries: dict[AnyPath, list[Entry]] = {}
    for name, tensor in found.items():
        entries.setdefault(tensor.file, []).append((name, tensor.dtype, tensor.shape))
    record: dict[str, Any] = {}
    for file, tensors in entries.items():
        header = files.header_of(file)
        metadata = json.loads(header[8:]).get("__metadata__")
        if not _is_plain(file.name):
            return None
        plan = FilePlan(file.name, tensors, metadata)
        digest = hashlib.sha256(header).hexdigest()
        if plan.digest() != digest:
            return None
        names = [name for name, *_ in tensors]
        record[file.name] = {"metadata": metadata, "tensors": names, "sha256": digest}
    try:
        index = files.read_text(directory / files.INDEX)
    except FileNotFoundError:
        index = None
    else:
        weight_map = {name: tensor.file.name for name, tensor in found.items()}
        if json.loads(index)["weight_map"] != weight_map:
            return None
    return json.dumps({"files": record, "index": index})


def _fitted(layout: str, tensors: Mapping[str, Entry]) -> tuple[list[FilePlan], str | None] | None:
    """The files of a layout and the text of its index; None where it is of other tensors."""
    record = json.loads(layout)
    plans, placed = [], 0
    for file, known in record["files"].items():
        if not (_is_plain(file) and tensors.keys() >= set(known["tensors"])):
            return None
        plan = FilePlan(file, [tensors[name] for name in known["tensors"]], known["metadata"])
        if plan.digest() != known["sha256"]:
            return None
        plans.append(plan)
        placed += len(plan.tensors)
    return (plans, record["index"]) if placed == len(tensors) else None


def _is_plain(file: str) -> bool:
    """True if the file lies in the directory itself and a loader takes its name for weights."""
    return file.endswith(".safetensors") and not file.startswith(".") and "/" not in file


MAX_SHARD_BYTES = 5_000_000_000


def save_hf(model: Any, directory: Path | str, *, max_shard_bytes: int | None = None) -> None:
    """Writes config.json and safetensors files, with an index where there are several.

    Tensors keep the dtypes they have. A model that came from `load_hf` has its config.json again,
    but for what was changed, and unless `max_shard_bytes` is given the files that it came in: the
    same bytes where its weights are the same and safetensors or we wrote them. Files of other
    tensors, and of a model without such, are of 5 GB at most and as safetensors lays them out.

    A save that was killed is started over by the next one to the same directory. Raises
    CheckpointError where that already holds weights or another config.json or cannot be written to,
    where this process cannot see all of the model's weights, or where there are none.
    """
    if not isinstance(model, nnx.Module):
        raise CheckpointError(
            f"save_hf was given a {type(model).__name__}, and saves a model. Put what "
            "init_weights returns together with nnx.merge(graphdef, weights)."
        )
    _, state = nnx.split(model, graph=False)
    imported: Any = model
    save_weights_hf(
        imported.config,
        nnx.to_pure_dict(state),
        directory,
        config_text=imported.imported_config,
        stored_dtype=imported.imported_dtype,
        stored_layout=imported.imported_layout,
        max_shard_bytes=max_shard_bytes,
    )


def save_weights_hf(
    config: Any,
    weights: Mapping[str, Any],
    directory: Path | str,
    *,
    config_text: str | None = None,
    stored_dtype: str | None = None,
    stored_layout: str | None = None,
    max_shard_bytes: int | None = None,
    source: str | None = None,
) -> int:
    """Saves weights as `save_hf` does a model: a nested dict of JAX or NumPy arrays.

    `config_text` is the config.json that they came with, beside an embedding of `stored_dtype` and
    in files of `stored_layout`. With `source`, which tells these weights from all others, a save of
    them that was killed goes on after its last whole file. Returns how many files were whole
    before.
    """
    directory = Path(directory)
    if max_shard_bytes is not None and not max_shard_bytes >= 1:
        raise ConfigError(
            f"max_shard_bytes={max_shard_bytes} is no number of bytes >= 1. Give one, such as "
            f"{MAX_SHARD_BYTES}, or leave it out."
        )
    leaves = parameters.by_path(weights)
    _check_leaves(leaves)
    published = published_as(config)
    places = {place.name: place for place in published.places(config, leaves)}
    dtype = np.dtype(leaves[places[published.embedding].leaf].dtype)
    known = json.loads(config_text) if config_text else None
    same = dataclasses.replace(config, param_dtype=dtype)
    record = published.write_config(same, known, stored_dtype)
    text = (json.dumps(record, indent=2) + "\n").encode()
    if config_text and record == known:  # as it came, to the byte, where nothing has changed
        text = config_text.encode()
    plans, index = _plan(leaves, places, stored_layout, max_shard_bytes)
    with unfinished.begun(directory, text, source) as export:
        num_kept = _write(export.aside, leaves, places, plans)
        written = [plan.name for plan in plans]
        if index is not None:
            (export.aside / files.INDEX).write_bytes(index.encode())
            written.append(files.INDEX)
        (export.aside / "config.json").write_bytes(text)
        # of a save whose weights were deleted
        (directory / files.INDEX).unlink(missing_ok=True)
        unfinished.finish(export, [*written, "config.json"])
    return num_kept


def _check_leaves(leaves: Mapping[str, Any]) -> None:
    """Raises CheckpointError where there are no arrays, or this process does not see all of one."""
    for leaf, array in leaves.items():
        if isinstance(array, jax.ShapeDtypeStruct):
            raise CheckpointError(
                f"{leaf} is a shape without values, as of an abstract model. Load or initialise "
                "the weights, and save those."
            )
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            raise CheckpointError(
                f"{leaf} lies in part on devices of other processes. Save a checkpoint, and "
                "export it in one process with `loong export-hf`."
            )


def _plan(
    leaves: Mapping[str, Any],
    places: Mapping[str, Place],
    stored_layout: str | None,
    max_shard_bytes: int | None,
) -> tuple[list[FilePlan], str | None]:
    """The files to be written, and the text of their index: those of the layout where it fits."""
    entries = {
        name: (name, np.dtype(leaves[place.leaf].dtype), place.shape)
        for name, place in places.items()
    }
    known = stored_layout if max_shard_bytes is None else None
    if known is not None and (plans := _fitted(known, entries)):
        return plans
    return divided(entries, max_shard_bytes or MAX_SHARD_BYTES)


def divided(entries: Mapping[str, Entry], max_bytes: int) -> tuple[list[FilePlan], str | None]:
    """The files of these tensors, of at most so many bytes, and their index where there is one."""
    sizes = {n: math.prod(shape) * dtype.itemsize for n, dtype, shape in entries.values()}
    shards = _shards(sizes, max_bytes)
    if len(shards) == 1:
        tensors = files.in_order(entries.values())
        return [FilePlan("model.safetensors", tensors, files.METADATA)], None
    plans, weight_map = [], {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = files.in_order(entries[name] for name in shard)
        plans.append(FilePlan(file, tensors, files.METADATA))
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    return plans, json.dumps(index, indent=2) + "\n"


def _write(
    directory: Path,
    leaves: Mapping[str, Any],
    places: Mapping[str, Place],
    plans: Sequence[FilePlan],
) -> int:
    """Writes the files that are not there. Returns how many were."""
    num_kept = 0
    for file, tensors, metadata in plans:
        if files.is_whole(directory / file, tensors, metadata):
            num_kept += 1
        else:
            files.write_file(
                directory / file, tensors, lambda name: _fetch(leaves, places[name]), metadata
            )
    return num_kept


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
        region = publication.region_of(shard.index, array.shape)
        if shard.replica_id == 0 and (common := publication.meet(region, place.region)):
            with publication.without_mesh():  # cut on the device, so that no whole shard is copied
                part = np.asarray(shard.data[publication.within(common, region)])
            held[publication.within(common, place.region)] = part
    return place.turn_back(held)
