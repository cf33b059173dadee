"""How the files of a checkpoint are laid out, remembered so that they can be written again.

Of each file its tensors in their order, its metadata and a digest of its header; of an index its
text. The digest tells whether tensors are those of the file: names, shapes and dtypes.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.models.hf import files
from loong_jax.models.hf.files import Entry, Metadata, StoredTensor
from loong_jax.remote import AnyPath


class FilePlan(NamedTuple):
    """A file that is to be written."""

    name: str
    tensors: list[Entry]  # in their order
    metadata: Metadata | None

    def digest(self) -> str:
        header, _ = files.lay_out(Path(self.name), self.tensors, self.metadata)
        return hashlib.sha256(header).hexdigest()


def read(directory: AnyPath, found: Mapping[str, StoredTensor]) -> str | None:
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
        if not (_is_plain(file.name) and (metadata is None or _is_metadata(metadata))):
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


def fitted(layout: str, tensors: Mapping[str, Entry]) -> tuple[list[FilePlan], str | None] | None:
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
    """Whether a loader takes a file of that name for weights, and it lies in no other directory."""
    return file.endswith(".safetensors") and not file.startswith(".") and "/" not in file


def _is_metadata(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
