"""Requests to an author, their results, and every call with its reply in one JSON-lines file.

A call is written before its reply is used: a process that is killed loses no reply it received; the
next one reads them back by key. One process at a time writes to a file.
"""

import dataclasses
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import ConfigError, LoongError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One question to an author: a prompt file and what is filled in.

    `seed` tells repetitions of the same question apart, in the key of the call and on the wire.
    With a `schema` (JSON Schema) the reply must be one JSON object that meets it.
    """

    role: str  # who is asked, such as "question" or "coder": chooses settings
    prompt_name: str  # a file of synth/prompts without its ending, such as "loongenv/code"
    fields: Mapping[str, str]
    seed: int = 0
    schema: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of requests by a role; None takes the endpoint's."""

    model: str | None = None
    temperature: float | None = None
    max_reply_tokens: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transcript:
    """One call as it was made. JSON values, nothing that differs between two equal runs."""

    key: str  # hash of model, settings, seed and messages: equal calls have equal keys
    role: str
    prompt_name: str
    prompt_digest: str  # of the prompt's file
    model: str
    settings: Mapping[str, Any]
    seed: int
    messages: tuple[Mapping[str, str], ...]
    reply: str | None = None
    finish_reason: str = ""
    failure: str | None = None
    detail: str = ""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    is_estimate: bool = False  # of the tokens

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Transcript":
        return cls(**{**record, "messages": tuple(record["messages"])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """`text` and `parsed` are None where `failure` is not; `parsed` needs a schema.

    A failure is `refused`, `timed_out`, `malformed`, `truncated`, `over_budget`, `unreachable`,
    `down` or `http_<status>`. A malformed or refusing text is in the
    transcript.
    """

    text: str | None
    parsed: Any
    failure: str | None
    transcript: Transcript
    was_stored: bool = False  # known before it was asked for, not paid for now


class CallStore:
    """Records by key. The first record of a key stays. Safe to share between threads.

    A last line that a kill left unfinished is cut off on opening. Survives the death of the
    process at any point, though not that of the machine.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._places: dict[str, tuple[int, int]] = {}  # key -> offset and size of its line
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise ConfigError(
                f"{self.path} is in use by another process. Wait for it, or name another directory."
            ) from None
        self._end = self._index()

    def __enter__(self) -> "CallStore":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def get(self, key: str) -> dict[str, Any] | None:
        place = self._places.get(key)
        if place is None:
            return None
        return json.loads(os.pread(self._fd, place[1], place[0]))

    def put(self, key: str, record: Mapping[str, Any]) -> None:
        """Writes a record whole; LoongError where the disk takes none, so nothing goes unkept."""
        line = json.dumps({**record, "key": key}, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if key in self._places:
                return
            try:
                written = os.write(self._fd, line)
                if written != len(line):
                    os.ftruncate(self._fd, self._end)
                    raise OSError(f"{written} of {len(line)} bytes were written")
            except OSError as error:
                raise LoongError(
                    f"{self.path} cannot be written: {error}. Free some disk."
                ) from error
            self._places[key] = (self._end, len(line))
            self._end += len(line)

    def records(self) -> Iterator[dict[str, Any]]:
        """All records in the order they were written."""
        for offset, size in list(self._places.values()):
            yield json.loads(os.pread(self._fd, size, offset))

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _index(self) -> int:
        """Finds every line's place and cuts off an unfinished last one; returns the end."""
        end = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    key = json.loads(line)["key"]
                except (ValueError, KeyError, TypeError):
                    raise LoongError(
                        f"line {number} of {self.path} is damaged. Restore the file, or delete the "
                        "line: its call is then made again."
                    ) from None
                self._places.setdefault(key, (end, len(line)))
                end += len(line)
        os.ftruncate(self._fd, end)
        return end
