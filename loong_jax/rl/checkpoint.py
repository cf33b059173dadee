"""Checkpoints: plain nested dicts of arrays and JSON metadata, written atomically by Orbax.

A checkpoint holds no Flax or optax classes: `to_plain` turns a tree such as an optimizer state into
nested dicts, and `from_plain` puts the arrays back into a tree of the same structure. Keys are
strings or integers. Every array carries a checksum, so damage that decodes without an error is
found too.
"""

import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from loong_jax import checksums
from loong_jax.data import disk
from loong_jax.errors import CheckpointError, DiskFullError

FORMAT_VERSION = 1


class OtherFormatError(CheckpointError):
    """A checkpoint is of a format that this version of the code does not read."""


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
        "checksums": {name: _checksum(array) for name, array in flat.items()},
        "metadata": dict(metadata or {}),
    }
    try:
        with disk.writing(Path(directory) / str(step)):
            _write(directory, step, flat, record, keep)
    except DiskFullError:
        for unfinished in Path(directory).glob(f"{step}.*tmp*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write(
    directory: Path | str,
    step: int,
    flat: Mapping[str, jax.Array | np.ndarray],
    record: Mapping[str, Any],
    keep: int,
) -> None:
    with _manager(directory, keep, create=True) as manager:
        if step in manager.all_steps():
            manager.delete(step)
        manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.PyTreeSave(dict(flat)), record=ocp.args.JsonSave(record)
            ),
        )


def steps(directory: Path | str) -> list[int]:
    """Steps of the finished checkpoints, rising; empty where there is none."""
    if not Path(directory).is_dir():
        return []
    with _manager(directory, None) as manager:
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
            arrays, metadata = _read(directory, candidate, shardings)
            return Restored(candidate, arrays, metadata, tuple(skipped))
        except OtherFormatError:
            raise
        except Exception as error:  # Orbax, TensorStore and JSON each raise their own
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            skipped.append(f"checkpoint {candidate}: {reason}")
            cause = error
    remedy = (
        f"No other is left: delete {directory} to begin anew what they are of."
        if len(skipped) == len(available)
        else f"Delete {Path(directory) / str(candidates[0])} and resume from the checkpoint before "
        f"it (finished there: {available}), or start anew."
    )
    raise CheckpointError(f"damaged in {directory}: {'; '.join(skipped)}. {remedy}") from cause


def _read(
    directory: Path | str, step: int, shardings: Shardings
) -> tuple[dict[Any, Any], dict[str, Any]]:
    with _manager(directory, None) as manager:
        record = manager.restore(
            step, args=ocp.args.Composite(record=ocp.args.JsonRestore())
        ).record
        refuse_other_format(record, FORMAT_VERSION, Path(directory) / str(step))
        expected = record["checksums"]
        places = {name: shardings(name) for name in expected}
        kinds = {
            name: ocp.RestoreArgs(restore_type=np.ndarray)
            if place is None
            else ocp.ArrayRestoreArgs(sharding=place)
            for name, place in places.items()
        }
        flat = manager.restore(
            step, args=ocp.args.Composite(arrays=ocp.args.PyTreeRestore(restore_args=kinds))
        ).arrays
    wrong = [
        name
        for name, there in expected.items()
        if name not in flat or _checksum(flat[name], of_bits=there.startswith(_BITS)) != there
    ]
    if wrong or len(flat) != len(expected):
        raise CheckpointError(f"checksums differ for {wrong[:3] or 'the list of arrays'}")
    return _unflatten(flat), record["metadata"]


def refuse_other_format(record: Mapping[str, Any], known: int, place: object) -> None:
    """Raises OtherFormatError where a checkpoint's record names another format than `known`."""
    if (found := record.get("format_version")) != known:
        raise OtherFormatError(
            f"{place} has format_version={found!r}, not {known}. Use the version of loong_jax that "
            "wrote it."
        )


def _manager(
    directory: Path | str, keep: int | None, create: bool = False
) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=create, enable_async_checkpointing=False
    )
    handlers = {  # weights hardly compress, and zstd took most of the time that saving took
        "arrays": ocp.PyTreeCheckpointHandler(use_compression=False),
        "record": ocp.JsonCheckpointHandler(),
    }
    return ocp.CheckpointManager(Path(directory).resolve(), options=options, item_handlers=handlers)


_BITS = "bits "


def _checksum(array: Any, *, of_bits: bool | None = None) -> str:
    """With dtype and shape. Of arrays over several devices the sum of bits, which no host has to
    see, unless `of_bits` says otherwise; else CRC-32, which also tells apart what changed places.
    """
    kind = f"{array.dtype}{list(array.shape)}"
    if of_bits is None:
        of_bits = isinstance(array, jax.Array) and len(array.sharding.device_set) > 1
    if of_bits:
        return f"{_BITS}{kind}:{checksums.of_array(array):08x}"
    content = np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)
    return f"{kind}:{zlib.crc32(content.data):08x}"


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
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [_plain_name(path) for path, _ in leaves]
    if missing := sorted(set(names) ^ set(plain)):
        raise CheckpointError(
            f"the checkpoint and this configuration disagree about {missing[:3]} ({len(missing)} "
            "arrays). Resume with the configuration the run began with."
        )
    for name, (_, leaf) in zip(names, leaves, strict=True):
        have, want = (plain[name].shape, plain[name].dtype), (leaf.shape, leaf.dtype)
        if have != want:
            raise CheckpointError(
                f"{name} is {have} in the checkpoint, {want} in this configuration. Resume with "
                "the configuration the run began with."
            )
    return jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(plain[n]) for n in names])
