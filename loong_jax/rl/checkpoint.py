"""Checkpoints: plain nested dicts of arrays and JSON metadata, written atomically by Orbax.

A checkpoint holds no Flax or optax classes: `to_plain` turns a tree such as an optimizer state into
nested dicts, and `from_plain` puts the arrays back into a tree of the same structure. Keys are
strings or integers. Every array carries a checksum, so damage that decodes without an error is
found too.

Of arrays that are spread over processes each writes and reads what it holds. All processes then
call every function together, and the directory is one that all of them see: a bucket (`gs://...`)
or a shared file system.
"""

import contextlib
import functools
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import SingleDeviceSharding

from loong_jax import checksums
from loong_jax.data import disk
from loong_jax.errors import CheckpointError, DiskFullError

FORMAT_VERSION = 1
READ_BYTES = 8_000_000  # that are read at once, or what one device is to hold of one array

Shardings = Callable[[str], jax.sharding.Sharding | None]  # by the name of an array


def as_numpy(name: str) -> None:
    """`Shardings` of arrays that are to be NumPy's."""


class Restored(NamedTuple):
    step: int
    arrays: dict[Any, Any]  # nested dicts of NumPy arrays, or JAX's where these have shardings
    metadata: dict[str, Any]
    skipped: tuple[str, ...] = ()  # later checkpoints that were damaged, and why


def save(
    directory: Path | str,
    step: int,
    arrays: Mapping[Any, Any],
    metadata: Mapping[str, Any] | None = None,
    *,
    keep: int = 3,
) -> None:
    """Writes checkpoint `step` and deletes all but the `keep` latest; returns once it is on disk.

    A kill at any moment leaves the earlier checkpoints and no half of this one. An existing
    checkpoint of the same step is replaced. DiskFullError where there is no room: the earlier ones
    are whole then, and what was written of this one is deleted.
    """
    # Arrays of JAX are written from where they are; NumPy's are copied first.
    flat = {
        name: array if isinstance(array, jax.Array) else np.asarray(array)
        for name, array in _flatten(arrays).items()
    }
    record = {
        "format_version": FORMAT_VERSION,
        "checksums": {name: checksums.labelled(array) for name, array in flat.items()},
        "metadata": dict(metadata or {}),
    }
    place = _place(directory)
    try:
        with disk.writing(str(place / str(step))), _manager(place, keep, create=True) as manager:
            if step in manager.all_steps():
                manager.delete(step)
            items = ocp.args.Composite(
                arrays=ocp.args.PyTreeSave(flat), record=ocp.args.JsonSave(record)
            )
            manager.save(step, args=items, force=True)  # also before a later one that is damaged
    except DiskFullError:
        for unfinished in place.glob(f"{step}.*tmp*"):
            unfinished.rmtree(missing_ok=True)
        raise


def steps(directory: Path | str) -> list[int]:
    """Steps of the finished checkpoints, rising; empty where there is none."""
    place = _place(directory)
    if not place.is_dir():
        return []
    with _manager(place, None) as manager:
        return sorted(manager.all_steps())


def restore(
    directory: Path | str,
    step: int | None = None,
    *,
    fall_back: bool = False,
    shardings: Shardings = as_numpy,
) -> Restored:
    """Checkpoint `step`, or the latest. Raises CheckpointError where it is missing or damaged.

    Arrays with shardings are read by the parts that devices hold, whatever mesh wrote them.

    With `fall_back`, damaged checkpoints are passed over for the one before, and named in
    `skipped`. One that another version of this code wrote is not damaged and never passed over.
    """
    available = steps(directory)
    if not available or (step is not None and step not in available):
        wanted = "a checkpoint" if step is None else f"checkpoint {step}"
        raise CheckpointError(
            f"{directory} does not hold {wanted}; finished there: {available or 'none'}. Give "
            "another directory or step, or start anew."
        )
    candidates = [s for s in reversed(available) if step is None or s <= step]
    skipped: list[str] = []
    cause: Exception | None = None
    for candidate in candidates if fall_back else candidates[:1]:
        try:
            stored = Stored(directory, candidate)
            flat = dict(stored.arrays({name: shardings(name) for name in stored.shapes}))
            return Restored(candidate, _unflatten(flat), stored.metadata, tuple(skipped))
        except _DamagedError as error:
            skipped.append(f"checkpoint {candidate}: {error.reason}")
            cause = error
    remedy = (
        f"No other is left: delete {directory} to begin anew what they are of."
        if len(skipped) == len(available)
        else f"Delete {Path(directory) / str(candidates[0])} and resume from the checkpoint before "
        f"it (finished there: {available}), or start anew."
    )
    raise CheckpointError(f"damaged in {directory}: {'; '.join(skipped)}. {remedy}") from cause


class Stored:
    """A finished checkpoint, of which nothing but its record is read yet.

    Every method raises CheckpointError where what it reads is damaged.
    """

    def __init__(self, directory: Path | str, step: int):
        self._path, self.step = _place(directory) / str(step), step
        with self._finding_damage("its record"):
            record = ocp.JsonCheckpointHandler().restore(self._path / "record")
            found, self.metadata = record.get("format_version"), record["metadata"]
        if found != FORMAT_VERSION:
            raise CheckpointError(
                f"{self._path} has format_version={found!r}, not {FORMAT_VERSION}. Use the version "
                "of loong_jax that wrote it."
            )
        self._checksums = record.get("checksums", {})  # those of pods had none at first
        self._whole = {n for n, saved in self._checksums.items() if checksums.is_of_whole(saved)}

    @functools.cached_property
    def shapes(self) -> dict[str, Any]:
        """Shapes and dtypes of its arrays, by name."""
        with self._finding_damage("the list of arrays"):
            handler = ocp.PyTreeCheckpointHandler()
            found = handler.metadata(self._path / "arrays").tree
            if self._checksums and found.keys() != self._checksums.keys():
                raise ValueError("the record has checksums of others")
        return found

    def arrays(
        self, places: Mapping[str, jax.sharding.Sharding | None]
    ) -> Iterator[tuple[str, Any]]:
        """The arrays of these names, on the devices of their places; None for NumPy's.

        No more than `READ_BYTES`, or one device's part of one array, are held beside those already
        there. An array that was written whole is read whole.
        """
        direct = {n: None if n in self._whole else place for n, place in places.items()}
        parts = {name: self._bytes_to_read(name, place) for name, place in direct.items()}
        for group in _groups({name: sum(sizes) for name, sizes in parts.items()}):
            at_once = max(READ_BYTES, *(max(parts[name], default=0) for name in group))
            with self._finding_damage(", ".join(group[:3])):
                found = self._read({name: direct[name] for name in group}, at_once)
            for name in group:
                array, saved = found.pop(name), self._checksums.get(name)
                if saved is not None and checksums.like(saved, array) != saved:
                    raise _DamagedError(self._path, f"checksums differ for {name}")
                if direct[name] is None and (place := places[name]) is not None:
                    array = _on_devices(array, place)
                yield name, array
                del array
                gc.collect(0)  # else JAX holds what it copied to devices until its next turn

    def restore(self, template: Any) -> Any:
        """All in the structure and shardings of `template`, a tree of `jax.ShapeDtypeStruct`.

        Raises CheckpointError where the two do not fit.
        """
        wanted = by_path(template)
        _refuse_other(wanted, self.shapes)
        found = dict(self.arrays({name: leaf.sharding for name, leaf in wanted.items()}))
        return jax.tree.unflatten(jax.tree.structure(template), [found[name] for name in wanted])

    def _read(
        self, places: Mapping[str, jax.sharding.Sharding | None], at_once: int
    ) -> dict[str, Any]:
        kinds = {
            name: ocp.RestoreArgs(restore_type=np.ndarray)
            if place is None
            else ocp.ArrayRestoreArgs(sharding=place)
            for name, place in places.items()
        }
        item = {name: self.shapes[name] for name in places}
        return ocp.BasePyTreeCheckpointHandler(restore_concurrent_bytes=at_once + 1).restore(
            self._path / "arrays",
            ocp.args.PyTreeRestore(item, restore_args=kinds, partial_restore=True),  # pyright: ignore[reportArgumentType]
        )

    def _bytes_to_read(self, name: str, place: jax.sharding.Sharding | None) -> list[int]:
        """For the part of an array on each device here. Chunks in the file are read whole."""
        shape, chunk = self.shapes[name].shape, self.shapes[name].storage.chunk_shape
        itemsize = np.dtype(self.shapes[name].dtype).itemsize
        if place is None:
            return [math.prod(shape) * itemsize]

        def bytes_of(index: Any) -> int:
            spans = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
            chunks = [
                -(-stop // c) - start // c for (start, stop), c in zip(spans, chunk, strict=True)
            ]
            return math.prod(chunks) * math.prod(chunk) * itemsize

        return [bytes_of(index) for index in place.addressable_devices_indices_map(shape).values()]

    @contextlib.contextmanager
    def _finding_damage(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax, TensorStore and JSON each raise their own
            said = str(error).splitlines()[:1]
            reason = ": ".join([what, type(error).__name__, *said])
            raise _DamagedError(self._path, reason) from error


def _on_devices(array: np.ndarray, place: jax.sharding.Sharding) -> jax.Array:
    indices = place.addressable_devices_indices_map(array.shape)
    parts = [
        jax.device_put(array[i], SingleDeviceSharding(device, memory_kind=place.memory_kind))
        for device, i in indices.items()
    ]
    return jax.make_array_from_single_device_arrays(
        array.shape, place, jax.block_until_ready(parts)
    )


class _DamagedError(CheckpointError):
    def __init__(self, path: epath.Path, reason: str):
        super().__init__(
            f"{path} is damaged: {reason}. Delete that checkpoint to go back to the one before, "
            "or start anew."
        )
        self.reason = reason


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Names of arrays that are read at once, in order: together at most `READ_BYTES`, or one."""
    group: list[str] = []
    for name, size in sizes.items():
        if group and sum(sizes[other] for other in group) + size > READ_BYTES:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _place(directory: Path | str) -> epath.Path:
    place = epath.Path(directory)
    return place if "://" in str(directory) else place.resolve()


def _manager(
    directory: epath.Path, keep: int | None, create: bool = False
) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=create, enable_async_checkpointing=False
    )
    handlers = {  # weights hardly compress, and zstd took most of the time that saving took
        "arrays": ocp.PyTreeCheckpointHandler(use_compression=False),
        "record": ocp.JsonCheckpointHandler(),
    }
    return ocp.CheckpointManager(directory, options=options, item_handlers=handlers)


# --- trees -------------------------------------------------------------------------------------


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """{"a/b/#0": array}: integer keys are marked, so that both kinds come back as they were."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        is_plain = isinstance(key, str) and key and "/" not in key and not key.startswith("#")
        if not is_plain and not isinstance(key, int):
            raise ValueError(
                f"key {key!r} under {prefix or 'the top'!r} must be an integer or a non-empty "
                "string without '/' that does not start with '#'. Rename it."
            )
        name = prefix + (f"#{key}" if isinstance(key, int) else key)
        if isinstance(value, Mapping):
            flat |= _flatten(value, name + "/")
        else:
            flat[name] = value
    return flat


def _unflatten(flat: Mapping[str, np.ndarray]) -> dict[Any, Any]:
    tree: dict[Any, Any] = {}
    for name, array in flat.items():
        *parents, last = [int(k[1:]) if k.startswith("#") else k for k in name.split("/")]
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = array
    return tree


def _plain_name(key_path: tuple[Any, ...]) -> str:
    parts = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in key_path]
    return ".".join(parts)


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves of any tree, by the path that leads to each."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_plain_name(path): leaf for path, leaf in leaves}


def to_plain(tree: Any) -> dict[str, np.ndarray]:
    """As `by_path`, in host memory."""
    return {name: np.asarray(leaf) for name, leaf in by_path(tree).items()}


def from_plain(template: Any, plain: Mapping[str, Any]) -> Any:
    """`plain` in the structure of `template`; CheckpointError where they do not fit."""
    wanted = by_path(template)
    _refuse_other(wanted, plain)
    leaves = [jax.numpy.asarray(plain[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _refuse_other(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """CheckpointError where names, shapes or dtypes are not those of this configuration."""
    if missing := sorted(set(wanted) ^ set(there)):
        raise CheckpointError(
            f"the checkpoint and this configuration disagree about {missing[:3]} ({len(missing)} "
            "arrays). Resume with the configuration the run began with."
        )
    for name, leaf in wanted.items():
        have, want = (tuple(there[name].shape), there[name].dtype), (leaf.shape, leaf.dtype)
        if have != want:
            raise CheckpointError(
                f"{name} is {have} in the checkpoint, {want} in this configuration. Resume with "
                "the configuration the run began with."
            )
