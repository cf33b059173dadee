"""JSON and JSON-lines files that survive a kill: written whole, or readable up to the last line."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loong_jax import remote
from loong_jax.data import disk
from loong_jax.errors import DiskFullError, LoongError
from loong_jax.remote import AnyPath


def without_nan(value: Any) -> Any:
    """The same value with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and JAX arrays and scalars
        return without_nan(value.tolist())
    return value


def write_text(path: Path | str, text: str) -> Path:
    """Replaces the file in one rename; a reader sees the old text or the new, never a part."""
    path = Path(path)
    with disk.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with disk.writing(path):
            partial.write_text(text, encoding="utf-8")
    except DiskFullError:
        partial.unlink(missing_ok=True)
        raise
    os.replace(partial, path)
    return path


def write_json(path: Path | str, value: Any) -> Path:
    return write_text(path, json.dumps(without_nan(value), indent=1) + "\n")


def read_json(path: AnyPath | str, default: Any = None) -> Any:
    """Content of a JSON file; `default` where it does not exist, LoongError where it is damaged."""
    try:
        return json.loads(remote.located(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except ValueError as error:
        raise LoongError(
            f"{path} is not JSON ({error}). Delete it and repeat the command that wrote it."
        ) from error


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """Records of a JSON-lines file; [] where there is none.

    A last line without its line feed, or one that is no JSON, is what a kill leaves behind and is
    dropped. Damage further up raises LoongError, since no kill explains it.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    whole, _, _ = data.rpartition(b"\n")
    records, lines = [], whole.split(b"\n") if whole else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if number == len(lines):
                break
            raise LoongError(
                f"line {number} of {path} is damaged ({error}), and it is not the last. "
                "Restore the file or delete it."
            ) from error
        records.append(record)
    return records


def write_jsonl(path: Path | str, records: Iterable[Mapping[str, Any]]) -> Path:
    """Replaces the whole file; see `write_text`."""
    return write_text(path, "".join(json_line(record) for record in records))


def json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(without_nan(record), separators=(",", ":")) + "\n"
