"""Stages of a curation: each looks at records, drops some with a reason, adds notes to others.

A record is a JSON object: `prompt` (or `messages`), perhaps `gold`, `response`, `id`, `domain`,
`origin`, `licence`, and whatever else its source has. Notes of earlier stages stand under `notes`.

Stages are small frozen dataclasses of three forms, told apart by the methods they have:

- `RecordFilter.reason(record)`: a record by itself, a reason or notes;
- `ChunkFilter.judge(records)`: a few thousand at a time, where that is faster;
- `CorpusFilter.sketch(records)`, then `decide(sketch)`: the whole corpus, through small arrays.

None of them changes a record or remembers one, so that a chain can stop anywhere and go on.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

Record: TypeAlias = Mapping[str, Any]
Said: TypeAlias = str | Mapping[str, Any] | None
Sketch: TypeAlias = dict[str, np.ndarray]  # arrays with one row per record


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The decisions of a stage, by the index of the record among those it was given.

    A reason is a word or a few, perhaps with a detail after a colon: "duplicate: of item-7". What
    stands before the colon is what is counted.
    """

    reasons: Mapping[int, str] = dataclasses.field(default_factory=dict)  # of the dropped
    notes: Mapping[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


@runtime_checkable
class RecordFilter(_Named, Protocol):
    def reason(self, record: Record) -> Said:
        """The reason to drop the record, or notes on one that stays."""
        ...


@runtime_checkable
class ChunkFilter(_Named, Protocol):
    def judge(self, records: Sequence[Record]) -> Outcome: ...


@runtime_checkable
class CorpusFilter(_Named, Protocol):
    def sketch(self, records: Sequence[Record]) -> Sketch: ...

    def decide(self, sketch: Sketch) -> Outcome:
        """Decides on all records; the rows of `sketch` are those of all chunks, in order."""
        ...


Stage: TypeAlias = RecordFilter | ChunkFilter | CorpusFilter


def write_arrays(path: Path, arrays: Sketch) -> None:
    """An .npz file, in place by one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    partial.replace(path)


def judge(stage: RecordFilter | ChunkFilter, records: Sequence[Record]) -> Outcome:
    """Applies a stage of either of the first two forms to a few records."""
    if isinstance(stage, ChunkFilter):
        return stage.judge(records)
    said = {index: stage.reason(record) for index, record in enumerate(records)}
    reasons = {index: one for index, one in said.items() if isinstance(one, str)}
    return Outcome(reasons, {i: one for i, one in said.items() if isinstance(one, Mapping)})


def prompt_of(record: Record) -> str:
    """The prompt of a record: `prompt`, else its messages that are not the assistant's."""
    prompt = record.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = record.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return ""
    asked = (m for m in messages if isinstance(m, Mapping) and m.get("role") != "assistant")
    return "\n".join(m["content"] for m in asked if isinstance(m.get("content"), str))


def text_of(record: Record, key: str) -> str:
    """The text under a key; "" where there is none. `prompt` may be made of messages."""
    if key == "prompt":
        return prompt_of(record)
    value = record.get(key)
    return value if isinstance(value, str) else ""


def list_of(record: Record, key: str) -> Sequence[Any]:
    value = record.get(key)
    return value if isinstance(value, list | tuple) else ()


def note_of(record: Record, key: str) -> Any:
    """The note of an earlier stage under that key, else the record's own field."""
    notes = record.get("notes")
    if isinstance(notes, Mapping) and key in notes:
        return notes[key]
    return record.get(key)


def counted(reason: str) -> str:
    return reason.partition(":")[0]
