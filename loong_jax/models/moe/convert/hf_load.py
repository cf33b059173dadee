"""From a directory in the published layout to a model, one tensor at a time.

Every device is given its shard of a leaf, put together on the host from the regions of the tensors
that meet it, in blocks of bounded size. So no host holds more than a block beyond what its devices
hold, and of a checkpoint it reads what its devices need.
"""

import functools
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models import parameters
from loong_jax.models.moe import model as model_room
from loong_jax.models.moe.convert import files, hf_config, layout, manifest, names, unfinished
from loong_jax.models.moe.convert.names import Place, Region
from loong_jax.sharding import ShardingRules

BLOCK_BYTES = 1 << 30  # of host memory for what is on its way to a device


class HfCheckpoint:
    """A directory in the published layout whose manifest has been checked: its parts, unread.

    Raises ConfigError or CheckpointError where the directory is not what `load_hf` can load.
    """

    def __init__(self, directory: Path | str, dtype: DTypeLike | None = None):
        directory = Path(directory)
        chosen = None if dtype is None else _weight_dtype(dtype)
        unfinished.refuse_unfinished(directory)
        self.config_text = _read_text(directory / "config.json")
        try:
            record = json.loads(self.config_text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{directory / 'config.json'} is not JSON: {error}. Fetch it again."
            ) from error
        if not isinstance(record, dict):
            raise CheckpointError(
                f"{directory / 'config.json'} holds no JSON object but {str(record)[:40]!r}. Fetch "
                "it again."
            )
        self.found = files.stored_tensors(directory)
        has_mtp = any(name.startswith(names.MTP) for name in self.found)
        embedding = self.found.get(names.EMBEDDING)
        activations = chosen or (embedding.dtype if embedding else np.dtype(np.float32))
        self.config = hf_config.read_config(
            record, num_mtp_layers=int(has_mtp), dtype=activations, param_dtype=activations
        )
        for size in ("num_layers", "num_experts"):  # else every tensor that is missing is named
            if (wanted := getattr(self.config, size)) > len(self.found):
                raise CheckpointError(
                    f"{directory} holds {len(self.found)} tensors, and its config.json describes "
                    f"{size}={wanted}. Fetch config.json and files of one checkpoint."
                )
        _, abstract = model_room.abstract_weights(self.config)
        self.shapes = parameters.by_path(abstract)
        self.places = list(names.places(self.config, self.shapes))
        stored_dtypes = manifest.check(self.places, self.found, self.config)
        self.stored_dtype = self.found[names.EMBEDDING].dtype.name
        self.dtypes = {
            leaf: stored if chosen is None else self.shapes[leaf].dtype
            for leaf, stored in stored_dtypes.items()
        }
        self.layout = layout.read(directory, self.found)
        self._mapped: dict[Path, np.memmap] = {}
        if (record.get(hf_config.OWN) or {}).get("alpha_folded") is not False:
            manifest.refuse_folded_alphas(self.places, self.found, self.config, self._mapped)
        if has_mtp:
            manifest.check_copy(self.found, self._mapped)
        self._of_leaf: dict[str, list[Place]] = {}
        for place in self.places:
            if place.name != names.EMBEDDING_COPY:
                self._of_leaf.setdefault(place.leaf, []).append(place)

    def read(self, leaf: str, region: Region) -> np.ndarray:
        """A region of a leaf, put together from the tensors that meet it."""
        block = np.empty([stop - start for start, stop in region], self.dtypes[leaf])
        for place in self._of_leaf[leaf]:
            if common := names.meet(region, place.region):
                held = place.turn(self.found[place.name].view(self._mapped))
                block[names.within(common, region)] = held[names.within(common, place.region)]
        return block

    def load(self, leaf: str, sharding: jax.sharding.Sharding | None) -> jax.Array:
        """A whole leaf, sharded; without a sharding on the default device."""
        shape = self.shapes[leaf].shape
        if sharding is None:
            return self._on_device(leaf, tuple((0, size) for size in shape), None)
        shards, first = [], {}
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            assert index is not None
            region = names.region_of(index, shape)
            if region not in first:
                first[region] = self._on_device(leaf, region, device)
            shards.append(jax.device_put(first[region], device))
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    def _on_device(self, leaf: str, region: Region, device: Any) -> jax.Array:
        """A region on one device, sent in blocks along its first axis."""
        shape, dtype = [stop - start for start, stop in region], self.dtypes[leaf]
        rows = max(1, BLOCK_BYTES // max(1, math.prod(shape[1:]) * dtype.itemsize))
        if rows >= shape[0]:
            return jax.device_put(self.read(leaf, region), device)
        with names.without_mesh():
            whole = jnp.zeros(shape, dtype, device=device)
            begin, end = region[0]
            for start in range(begin, end, rows):
                block = self.read(leaf, ((start, min(start + rows, end)), *region[1:]))
                whole = _write(whole, jax.device_put(block, device), start - begin)
            return whole


@functools.partial(jax.jit, donate_argnums=0)
def _write(whole: jax.Array, block: jax.Array, start: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, block, start, axis=0)


def load_hf(
    directory: Path | str,
    *,
    dtype: DTypeLike | None = None,
    rules: ShardingRules | None = None,
) -> model_room.LongcatFlash:
    """The model of a directory in the published layout: config.json and safetensors files.

    With `dtype` None every tensor keeps the dtype it is stored in, and activations get that of the
    embedding; else matrices and activations get `dtype`, and routers and norms float32. `rules` say
    how weights are sharded.

    Raises:
      ConfigError: config.json describes a model that is not built here, or weights cannot have
        this `dtype`.
      CheckpointError: a file is missing, damaged or truncated; an export to the directory was not
        finished; tensors are missing, extra, of another shape or dtype, or scaled otherwise than
        the published ones.
    """
    checkpoint = HfCheckpoint(directory, dtype)
    graphdef, abstract = model_room.abstract_weights(checkpoint.config, rules)
    placed = rules is not None and rules.mesh is not None
    leaves = {
        leaf: checkpoint.load(leaf, spec.sharding if placed else None)
        for leaf, spec in parameters.by_path(abstract).items()
    }
    model = nnx.merge(graphdef, nnx.State(parameters.as_tree(leaves)))
    model.imported_config = checkpoint.config_text
    model.imported_dtype = checkpoint.stored_dtype
    model.imported_layout = checkpoint.layout
    return model


def _weight_dtype(dtype: DTypeLike) -> np.dtype:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found not in manifest.FLOATS:
        allowed = ", ".join(known.name for known in manifest.FLOATS)
        raise ConfigError(
            f"dtype={dtype if found is None else found.name!r} is none that weights can have. "
            f"Choose one of {allowed}."
        )
    return found


def _read_text(path: Path) -> str:
    try:
        return files.read_text(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} holds no config.json. Name a directory in the published layout: "
            "config.json and safetensors files."
        ) from None
