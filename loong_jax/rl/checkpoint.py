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
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import traverse_util

from loong_jax import checksums, process
from loong_jax.data import disk
from loong_jax.errors import CheckpointError, DiskFullError
from loong_jax.rl import stored_parts

FORMAT_VERSION = 1
READ_BYTES = 8 * 2**20  # that are read at once, or what one device is to hold of one array

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
        "metadata": json.loads(json.dumps(dict(metadata or {}))),
    }
    record["checksum"] = _of_record(record)
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
    finally:
        process.give_back_memory()


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
            record = dict(ocp.JsonCheckpointHandler().restore(self._path / "record"))
            found, self.metadata = record.get("format_version"), record["metadata"]
        if found != FORMAT_VERSION:
            raise CheckpointError(
                f"{self._path} has format_version={found!r}, not {FORMAT_VERSION}. Use the version "
                "of loong_jax that wrote it."
            )
        saved = record.pop("checksum", None)  # the first had none
        if saved is not None and saved != _of_record(record):
            raise _DamagedError(self._path, "the checksum of its record differs")
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

        No more than `READ_BYTES`, or one device's share of one array, are held beside those already
        there. A large array that was compressed is read whole.
        """
        for group in _groups({name: self._num_bytes(name) for name in places}):
            with self._finding_damage(name := group[0]):
                is_large = self._num_bytes(name) > READ_BYTES
                in_parts = is_large and self._parts.is_plain(name)
            if in_parts:
                found = {name: self._read_by_parts(name, places[name])}
            else:
                found = self._read({name: places[name] for name in group})
            for name in group:
                yield name, found.pop(name)
                gc.collect(0)  # else JAX holds what it copied to devices until its next turn

    def restore(self, template: Any) -> Any:
        """All in the structure and shardings of `template`, a tree of `jax.ShapeDtypeStruct`.

        Raises CheckpointError where the two do not fit.
        """
        wanted = by_path(template)
        _refuse_other(wanted, self.shapes)
        found = dict(self.arrays({name: leaf.sharding for name, leaf in wanted.items()}))
        return jax.tree.unflatten(jax.tree.structure(template), [found[name] for name in wanted])

    def _num_bytes(self, name: str) -> int:
        return math.prod(self.shapes[name].shape) * np.dtype(self.shapes[name].dtype).itemsize

    @functools.cached_property
    def _parts(self) -> stored_parts.StoredParts:
        return stored_parts.StoredParts(self._path / "arrays")

    def _read_by_parts(self, name: str, place: jax.sharding.Sharding | None) -> Any:
        shape, dtype = tuple(self.shapes[name].shape), np.dtype(self.shapes[name].dtype)
        everything = tuple(slice(0, size) for size in shape)

        def read(index: stored_parts.Index) -> np.ndarray:
            with self._finding_damage(name):
                return self._parts.read(name, dtype, index, READ_BYTES)

        if place is not None and name in self._whole:
            # Its CRC-32 is of bytes in order, and no share has them: shares are read again.
            crc = sum_of_bits = 0
            held_as = jax.dtypes.canonicalize_dtype(dtype)
            with self._finding_damage(name):
                for part in self._parts.parts(name, dtype, everything, READ_BYTES):
                    crc = checksums.crc32(part.array, crc)
                    sum_of_bits += checksums.of_array(part.array.astype(held_as, copy=False))
            self._compare(name, checksums.of_whole(dtype, shape, crc), self._checksums[name])
            array = stored_parts.by_shares(read, shape, place)
            self._compare(name, checksums.of_array(array), sum_of_bits & 0xFFFFFFFF)
            return array
        array = read(everything) if place is None else stored_parts.by_shares(read, shape, place)
        self._check(name, array)
        return array

    def _read(self, places: Mapping[str, jax.sharding.Sharding | None]) -> dict[str, Any]:
        """By Orbax. Those whose checksum is of the whole are read whole."""
        direct = {name: None if name in self._whole else place for name, place in places.items()}
        kinds = {
            name: ocp.RestoreArgs(restore_type=np.ndarray)
            if place is None
            else ocp.ArrayRestoreArgs(sharding=place)
            for name, place in direct.items()
        }
        item = {name: self.shapes[name] for name in places}
        with self._finding_damage(", ".join(list(places)[:3])):
            found = ocp.BasePyTreeCheckpointHandler().restore(
                self._path / "arrays",
                ocp.args.PyTreeRestore(item, restore_args=kinds, partial_restore=True),  # pyright: ignore[reportArgumentType]
            )
        for name, place in places.items():
            array = found[name]
            self._check(name, array)
            if place is not None and direct[name] is None:
                found[name] = stored_parts.by_shares(array.__getitem__, array.shape, place)
        return found

    def _check(self, name: str, array: Any) -> None:
        if (saved := self._checksums.get(name)) is not None:
            self._compare(name, checksums.like(saved, array), saved)

    def _compare(self, name: str, found: str | int, expected: str | int) -> None:
        if found != expected:
            raise _DamagedError(self._path, f"checksums differ for {name}")

    @contextlib.contextmanager
    def _finding_damage(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax, TensorStore and JSON each raise their own
            said = str(error).splitlines()[:1]
            reason = ": ".join([what, type(error).__name__, *said])
            raise _DamagedError(self._path, reason) from error


def _of_record(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


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


def _flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """{"a/b/#0": array}: integer keys are marked, so that both kinds come back as they were."""

    def marked(key: str | int) -> str:
        is_plain = isinstance(key, str) and key and "/" not in key and not key.startswith("#")
        assert is_plain or isinstance(key, int), f"no key of a checkpoint: {key!r}"
        return key if isinstance(key, str) else f"#{key}"

    flat = traverse_util.flatten_dict(tree)
    return {"/".join(map(marked, path)): array for path, array in flat.items()}


def _unflatten(flat: Mapping[str, np.ndarray]) -> dict[Any, Any]:
    return traverse_util.unflatten_dict(
        {
            tuple(int(k[1:]) if k.startswith("#") else k for k in name.split("/")): array
            for name, array in flat.items()
        }
    )


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves of any tree, by the path that leads to each."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def to_plain(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of `by_path`, in host memory."""
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
