"""safetensors files, read tensor by tensor without copies and written without holding a shard.

A file is the length of its header (8 bytes, little-endian), the header as JSON, and the tensors one
after the other. Everything that a header can tell is checked, by `safetensors` itself, before any
tensor is looked at. Directories may lie wherever fsspec reads: gs://, s3://, memory://.
"""

import json
import math
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from loong_jax.errors import CheckpointError
from loong_jax.remote import AnyPath, RemotePath

Entry = tuple[str, np.dtype, tuple[int, ...]]  # name, dtype and shape of a tensor
Metadata = Mapping[str, str]  # of a header, beside its tensors
Opened = dict[AnyPath, np.memmap]  # local files that are open

INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000  # as safetensors itself has it

DTYPES: dict[str, np.dtype] = {  # in the order in which safetensors lays them out
    "I64": np.dtype(np.int64),
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "I32": np.dtype(np.int32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "I16": np.dtype(np.int16),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(CODES)}
METADATA: Metadata = {"format": "pt"}  # as transformers writes it


class StoredTensor(NamedTuple):
    """A tensor in a file: place, dtype and shape."""

    file: AnyPath
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int  # in the file, in bytes

    @property
    def end(self) -> int:
        """In the file, in bytes."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize

    def view(self, opened: Opened) -> np.ndarray:
        """The tensor as it lies on disk, or fetched; `opened` keeps the files that are open."""
        return self.rows(opened, 0, self.shape[0] if self.shape else 1)

    def rows(self, opened: Opened, start: int, stop: int) -> np.ndarray:
        """A run of its rows, along the first axis."""
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        first, last = self.offset + start * row, self.offset + stop * row
        if isinstance(self.file, RemotePath):
            held = np.frombuffer(self.file.read(first, last), np.uint8)
        else:
            if self.file not in opened:
                opened[self.file] = np.memmap(self.file, np.uint8, mode="r")
            held = opened[self.file][first:last]
        return held.view(self.dtype).reshape((stop - start, *self.shape[1:])[: len(self.shape)])


def stamp(file: AnyPath) -> str:
    """Changes when a file is written to."""
    return file.stamp() if isinstance(file, RemotePath) else str(file.stat().st_mtime_ns)


def stored_tensors(directory: AnyPath) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint by name, from the headers of its files.

    The files are those of the index where there is one, else all `*.safetensors`. Raises
    CheckpointError on files that are missing, truncated or damaged and on a tensor stored twice.
    """
    weight_map = _read_index(directory / INDEX)
    files = _spelled_once(directory, weight_map) if weight_map is not None else unlisted(directory)
    if not files:
        raise CheckpointError(
            f"{directory} holds no *.safetensors file. Name a directory in the published layout: "
            "config.json and safetensors files."
        )
    found: dict[str, StoredTensor] = {}
    for file in sorted(set(files.values())):
        for name, tensor in read_header(file).items():
            if name in found:
                raise CheckpointError(
                    f"{name} is stored twice, in {found[name].file.name} and {file.name}. Delete "
                    "the file that does not belong to this checkpoint."
                )
            found[name] = tensor
    for name, file in (weight_map or {}).items():
        if name not in found or found[name].file != files[file]:
            raise CheckpointError(
                f"{INDEX} places {name} in {file}, which does not hold it. Fetch {file} and the "
                "index again; they are of different checkpoints."
            )
    extra = sorted(set(found) - set(weight_map)) if weight_map is not None else []
    if extra:
        raise CheckpointError(
            f"{found[extra[0]].file.name} holds {extra[0]}, which {INDEX} does not list. "
            "Fetch both again; they are of different checkpoints."
        )
    return found


def unlisted(directory: AnyPath) -> dict[str, AnyPath]:
    """The files of a directory without an index, by name; not those that begin with a dot."""
    found = sorted(directory.glob("*.safetensors"))
    return {file.name: file for file in found if not file.name.startswith(".")}


def _spelled_once(directory: AnyPath, weight_map: Mapping[str, str]) -> dict[str, AnyPath]:
    """The file that each name in an index means; two names of one file give the same path."""
    paths = {}
    for name in sorted(set(weight_map.values())):
        plain = posixpath.normpath(name)
        if plain.startswith(("/", "../")) or plain == "..":
            raise CheckpointError(
                f"{INDEX} names the file {name}, outside {directory}, and nothing there is read. "
                "Take an index that names files beside it."
            )
        paths[name] = directory / plain
    return paths


def header_of(file: AnyPath) -> bytes:
    """The beginning of a file: the length of its header, and the header, not looked at."""
    try:
        if isinstance(file, RemotePath):
            size, length = file.size(), int.from_bytes(file.read(0, 8), "little")
        else:
            with file.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, max(size - 8, 0)):
            raise CheckpointError(
                f"{file} of {size} bytes says that its header has {length}: it is truncated or "
                "no safetensors file. Fetch it again."
            )
        if isinstance(file, RemotePath):
            return file.read(0, 8 + length)
        with file.open("rb") as stream:
            return stream.read(8 + length)
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing. Fetch it again.") from None
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.strerror or error}. Correct it."
        ) from error


def read_header(file: AnyPath) -> dict[str, StoredTensor]:
    """The tensors of one file. Raises CheckpointError where header and file do not agree."""
    beginning = header_of(file)
    if not isinstance(file, RemotePath):
        return _entries(file, file, len(beginning))
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as stand_in:  # all of it but tensors
        stand_in.write(beginning)
        stand_in.truncate(file.size())
        stand_in.flush()
        return _entries(file, Path(stand_in.name), len(beginning))


def _entries(file: AnyPath, local: Path, offset: int) -> dict[str, StoredTensor]:
    """The tensors of `file`, whose header `local` has; they begin at `offset`, without gaps."""
    found = {}
    try:
        with safetensors.safe_open(local, framework="np") as opened:
            for name in opened.offset_keys():
                described = opened.get_slice(name)
                code, shape = described.get_dtype(), tuple(described.get_shape())
                if code not in DTYPES:
                    raise CheckpointError(
                        f"{file} holds {name} as {code}, and weights can be {', '.join(DTYPES)}. "
                        "Convert it to float32 or bfloat16."
                    )
                found[name] = StoredTensor(file, DTYPES[code], shape, offset)
                offset = found[name].end
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{file} is truncated or damaged: {error}. Fetch it again."
        ) from error
    return found


def write_file(
    file: Path,
    tensors: Sequence[Entry],
    read: Callable[[str], np.ndarray],
    metadata: Metadata | None = METADATA,
) -> None:
    """Writes one file; `read(name)` gives each tensor when its turn comes.

    The file gets its name once it is complete.
    """
    partial = file.with_name(file.name + ".partial")
    header, stored = lay_out(partial, tensors, metadata)
    with partial.open("wb") as stream:
        stream.write(header)
        for name, tensor in stored.items():
            array = np.asarray(read(name), order="C")
            assert (array.dtype, array.shape) == (tensor.dtype, tensor.shape), name
            stream.write(array.reshape(-1).view(np.uint8).data)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def is_whole(file: Path, tensors: Sequence[Entry], metadata: Metadata | None = METADATA) -> bool:
    """True if the file is complete: `write_file` has written exactly these tensors there."""
    header, stored = lay_out(file, tensors, metadata)
    size = max((tensor.end for tensor in stored.values()), default=len(header))
    try:
        with file.open("rb") as stream:
            return file.stat().st_size == size and stream.read(len(header)) == header
    except OSError:
        return False


def in_order(tensors: Iterable[Entry]) -> list[Entry]:
    """Tensors in safetensors' order: wider types first, so that all are aligned, then by name."""
    return sorted(tensors, key=lambda tensor: (_RANKS[tensor[1]], tensor[0]))


def lay_out(
    file: Path, tensors: Sequence[Entry], metadata: Metadata | None = METADATA
) -> tuple[bytes, dict[str, StoredTensor]]:
    """The header of a `file` of these tensors, in this order, and the place of each tensor.

    Equal to the byte to safetensors' own.
    """
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode(
        errors="surrogatepass"
    )
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {
        name: StoredTensor(file, dtype, shape, len(header) + entries[name]["data_offsets"][0])
        for name, dtype, shape in tensors
    }


def is_dangling(index: Path) -> bool:
    """True if the file is an index, and no file that it names exists."""
    try:
        weight_map = _read_index(index)
    except CheckpointError:
        return False
    named = set((weight_map or {}).values())
    return not any(os.path.lexists(index.parent / name) for name in named)


def make_directory(directory: Path) -> None:
    """Makes it unless it is there. Raises CheckpointError where nothing can be written to it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(directory, os.W_OK) else "no permission to write there"
    except OSError as error:
        reason = error.strerror
    if reason:
        raise CheckpointError(
            f"{directory} cannot be written to: {reason}. Name a directory that can be."
        )


def read_text(path: AnyPath) -> str:
    """The text of a file with the line ends that it has.

    Raises CheckpointError where it is none, FileNotFoundError without it.
    """
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise
    except NotADirectoryError:
        raise CheckpointError(
            f"{path.parent} is no directory. Name one in the published layout: config.json and "
            "safetensors files."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}. Correct it.") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is no text: {error}. Fetch it again.") from error


def _read_index(path: AnyPath) -> Mapping[str, str] | None:
    try:
        weight_map = json.loads(read_text(path))["weight_map"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no index of safetensors files: {error!r}. Fetch it again."
        ) from error
    if not isinstance(weight_map, dict) or not all(map(_is_file_name, weight_map.values())):
        raise CheckpointError(
            f"{path} is no index of safetensors files: its weight_map does not give a file name "
            "for every tensor. Fetch it again."
        )
    return weight_map


def _is_file_name(value: object) -> bool:
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)  # in no file's name
