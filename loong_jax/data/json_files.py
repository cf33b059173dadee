"""JSON and JSON-lines files that survive a kill: written whole, or readable up to the last line."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from loong_jax import remote
from loong_jax.data import disk
from loong_jax.errors import ConfigError, DiskFullError, LoongError
from loong_jax.remote import AnyPath

MAX_NAMED = 8  # bad lines that one error names
Found = TypeVar("Found")


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
    except (ValueError, RecursionError) as error:
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
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise LoongError(
                f"line {number} of {path} is damaged ({error}), and it is not the last. "
                "Restore the file or delete it."
            ) from error
        records.append(record)
    return records


class BadLine(Exception):
    """A fault of a line: value, rule and remedy, in a sentence that the line's number begins."""


def read_lines(
    path: Path, read: Callable[[dict[str, Any], int], Found], *, noun: str
) -> list[Found]:
    """Reads a JSON-lines file: applies `read` to the object and the number, from 1, of each line.

    Blank lines are skipped. Raises ConfigError, which names the first lines that `read` refuses
    with BadLine and their faults; also where there is no line. `noun` is what a line should hold.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}. Name another file.") from None
    found, bad = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise BadLine(f"is {record!r:.80}, not an object. Write one object a line")
            found.append(read(record, number))
        except BadLine as error:
            bad.append(f"line {number} of {path} {error}.")
        except (ValueError, RecursionError) as error:
            bad.append(f"line {number} of {path} is not JSON: {error}. Write one object a line.")
    if bad:
        more = f"\n({len(bad) - MAX_NAMED} more bad lines)" if len(bad) > MAX_NAMED else ""
        raise ConfigError("\n".join(bad[:MAX_NAMED]) + more)
    if not found:
        raise ConfigError(f"{path} holds no {noun}. Write one JSON object a line.")
    return found


def write_jsonl(path: Path | str, records: Iterable[Mapping[str, Any]]) -> Path:
    """Replaces the whole file; see `write_text`."""
    return write_text(path, "".join(json_line(record) for record in records))


def json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(without_nan(record), separators=(",", ":")) + "\n"
