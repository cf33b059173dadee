"""Merging directories of safetensors files, from disk to disk.

Nothing is held but what one leaf needs (`streaming` says what), so memory depends on the largest
tensor alone.
"""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from loong_jax.data import json_files
from loong_jax.errors import CheckpointError
from loong_jax.merge import fusion, pieces
from loong_jax.merge.fusion import MergedLeaf
from loong_jax.merge.plan import Plan
from loong_jax.models.hf import files, quantised, read_config_json, unfinished
from loong_jax.models.hf.files import StoredTensor
from loong_jax.remote import AnyPath

REPORT = "fusion.json"
_SOURCE = "a merge"  # tells its unfinished files from those of an export
_BESIDES = (".json", ".txt", ".model", ".jinja", ".md", ".py")  # also copied from the base


class StoredFile:
    """An open file whose parts are read, or written, by position, so that threads may share it."""

    def __init__(self, path: Path, *, is_new: bool = False):
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC if is_new else os.O_RDONLY
        self._descriptor = os.open(path, flags, 0o666)

    def read(self, offset: int, into: np.ndarray) -> None:
        view = into.view(np.uint8).data
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if not count:
                raise CheckpointError(f"{self.path} ends early. Fetch it again.")
            view, offset = view[count:], offset + count

    def write(self, offset: int, data: np.ndarray | bytes) -> None:
        view = memoryview(data) if isinstance(data, bytes) else data.view(np.uint8).data
        while view:
            count = os.pwrite(self._descriptor, view, offset)
            view, offset = view[count:], offset + count

    def close(self) -> None:
        os.close(self._descriptor)


class TensorOnDisk:
    """A tensor of a safetensors file: `pieces.WritableLeaf`, where the file is new."""

    def __init__(self, stored: StoredTensor, file: StoredFile):
        self.shape, self.dtype = stored.shape, stored.dtype
        self.ndim, self.size = len(stored.shape), math.prod(stored.shape)
        self._offset, self._file = stored.offset, file

    def read(self, start: int, stop: int, into: np.ndarray | None = None) -> np.ndarray:
        found = pieces.aligned(stop - start, self.dtype) if into is None else into
        self._file.read(self._offset + start * self.dtype.itemsize, found)
        return found

    def write(self, start: int, vector: np.ndarray) -> None:
        self._file.write(self._offset + start * self.dtype.itemsize, vector)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.read(0, self.size).reshape(self.shape).astype(dtype or self.dtype, copy=False)


class TensorByRows:
    """A stored leaf: a float8 matrix with its scales, as what it means, or a tensor of a URL."""

    def __init__(self, tensor: quantised.Tensor):
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.ndim, self.size = len(tensor.shape), math.prod(tensor.shape)
        self._row = math.prod(tensor.shape[1:])
        self._tensor, self._opened = tensor, {}

    def read(self, start: int, stop: int, into: np.ndarray | None = None) -> np.ndarray:
        found = pieces.aligned(stop - start, self.dtype) if into is None else into
        first, last = start // self._row, -(-stop // self._row)
        rows = self._tensor.rows(self._opened, first, last).reshape(-1)
        found[...] = rows[start - first * self._row :][: stop - start]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._tensor.view(self._opened).astype(dtype or self.dtype, copy=False)


class PublishedWeights:
    """The tensors of a directory by path (`model/layers/0/up/weight`), unread."""

    def __init__(self, directory: AnyPath):
        if isinstance(directory, Path):
            unfinished.refuse_unfinished(directory)
        self.directory = directory
        has_config = (directory / "config.json").is_file()
        self.config_text, config = read_config_json(directory) if has_config else ("", {})
        stored = quantised.dequantised(files.stored_tensors(directory), config)
        self.is_dequantised = quantised.is_quantised(stored)
        if self.is_dequantised and has_config:
            whole = quantised.without_quantisation(config)
            self.config_text = json.dumps(whole, indent=2) + "\n"
        self._files = {
            file: StoredFile(file)
            for file in {tensor.file for tensor in stored.values()}
            if isinstance(file, Path)
        }
        self.stored = stored
        self.leaves = {
            path_of(name): TensorOnDisk(tensor, self._files[tensor.file])
            if isinstance(tensor, StoredTensor) and isinstance(tensor.file, Path)
            else TensorByRows(tensor)
            for name, tensor in stored.items()
        }

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def path_of(name: str) -> str:
    return name.replace(".", "/")


def is_published(directory: AnyPath) -> bool:
    return directory.is_dir() and any(directory.glob("*.safetensors"))


def write(
    plan: Plan,
    base: PublishedWeights,
    output: Path,
    *,
    on_leaf: Callable[[MergedLeaf], None] | None = None,
    report: Callable[[], str] | None = None,
) -> None:
    """Merges into files of the names and contents that the base's have, one leaf at a time.

    What else lies beside the base's weights (config, tokenizer, index) is copied. `on_leaf` sees
    every merged leaf, with counts; without it nothing is counted. `report` gives the text of
    fusion.json once all are merged. Files get their places when all are whole, as those of an
    export do (`unfinished`); a merge that was killed, or failed, starts over.
    """
    by_file: dict[AnyPath, list[str]] = {}
    for name, tensor in base.stored.items():
        by_file.setdefault(tensor.file, []).append(name)
    text = base.config_text.encode()
    unfinished.refuse_unfinished(output, but_of=_SOURCE)
    with unfinished.begun(output, text, _SOURCE) as export:
        (output / files.INDEX).unlink(missing_ok=True)  # of a merge whose weights were deleted
        written = []
        for file, names in sorted(by_file.items()):
            entries = [(name, base.stored[name].dtype, base.stored[name].shape) for name in names]
            _write_file(export.aside / file.name, entries, plan, on_leaf)
            written.append(file.name)
        for file in sorted(base.directory.iterdir()):
            is_beside = file.suffix in _BESIDES and file.is_file() and file.name != REPORT
            if is_beside and not (output / file.name).exists():
                _copy_beside(file, export.aside / file.name, base)
                written.append(file.name)
        if report is not None:
            (export.aside / REPORT).write_text(report())
            written.append(REPORT)
        unfinished.finish(export, written)


def _copy_beside(file: AnyPath, target: Path, base: PublishedWeights) -> None:
    """Copies a file beside the base's weights; its marks of quantisation are left out."""
    if file.name == "config.json":
        target.write_text(base.config_text, encoding="utf-8", newline="")
    elif file.name == files.INDEX and base.is_dequantised:
        weight_map = {name: tensor.file.name for name, tensor in base.stored.items()}
        json_files.write_json(target, {"metadata": {}, "weight_map": weight_map})
    else:
        target.write_bytes(file.read_bytes())


def _write_file(
    path: Path,
    entries: list[tuple[str, np.dtype, tuple[int, ...]]],
    plan: Plan,
    on_leaf: Callable[[MergedLeaf], None] | None,
) -> None:
    header, stored = files.lay_out(path, entries)
    file = StoredFile(path, is_new=True)
    try:
        file.write(0, header)
        for name, tensor in stored.items():
            merged = TensorOnDisk(tensor, file)
            leaf = fusion.merge_leaf(plan, path_of(name), count=on_leaf is not None, into=merged)
            if leaf.value is not merged:  # leaves that are not merged are copied
                read = pieces.reader(leaf.value)
                for start, stop in pieces.ranges(merged.size, 1):
                    merged.write(start, read(start, stop))
            if on_leaf is not None:
                on_leaf(leaf)
    finally:
        file.close()
