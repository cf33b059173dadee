"""Calls of an author: requests in words, replies as they came or as JSON of an agreed shape.

Every call with its reply is a line of one file, written before the reply is used: a process that is
killed loses no reply it received; the next one reads them back by key. One process at a time writes
to a file.

A prompt is a file of synth/prompts with three parts between lines of three dashes: its purpose, the
system message, the user message. `{name}` in the user message becomes the field of that name
between `<name>` and `</name>` on lines of their own. Marks inside a field are escaped, so text of a
model cannot leave its place, and a reader of the messages finds every field again.
"""

import dataclasses
import fcntl
import functools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

from loong_jax.errors import ConfigError, LoongError
from loong_jax.problems import response
from loong_jax.verifiers import tool_calls
from loong_jax.verifiers.judge import prompts


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
    `down` or `http_<status>`. A malformed or refusing text is in the transcript.
    """

    text: str | None
    parsed: Any
    failure: str | None
    transcript: Transcript


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


# ---- requests in words

DIRECTORY = Path(__file__).parent / "prompts"


@functools.cache
def prompt(name: str) -> prompts.Prompt:
    """The prompt of this name, such as "loongenv/code"."""
    return prompts.read((DIRECTORY / f"{name}.md").read_text(encoding="utf-8"))


def messages(prompt: prompts.Prompt, fields: Mapping[str, str]) -> list[dict[str, str]]:
    marks = re.compile(rf"</?(?:{'|'.join(prompt.fields) or '$^'})>")

    def filled(match: re.Match[str]) -> str:
        value = marks.sub(lambda mark: f"&lt;{mark[0][1:]}", fields[match[1]])
        return f"<{match[1]}>\n{value}\n</{match[1]}>"

    user = prompts.FIELD.sub(filled, prompt.user)
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": user}]


# ---- replies of an agreed shape

MAX_CHARS = 500_000
_REFUSAL = re.compile(
    r"(?:i'?m|i am) (?:very |so |really )?sorry\b|sorry[,.]? (?:but )?i (?:can|could|am|will)"
    r"|i (?:can ?not|can't|am unable to|'?m unable to|won't|must decline)"
    r"|as an ai\b|unfortunately,? i (?:can|am)",
    re.IGNORECASE,
)
_CURLY_APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"


class Malformed(ValueError):
    """The text is not the object that was asked for."""


def is_refusal(text: str) -> bool:
    """True if a reply that is no answer begins as refusals do."""
    text = text.replace(_CURLY_APOSTROPHE, "'").strip().lstrip("\"'*_ ")
    return _REFUSAL.match(text) is not None


def without_thinking(text: str) -> str:
    """The reply of a reasoning model without its thinking."""
    return text.rpartition("</think>")[2].strip()


def parse(text: str, schema: Mapping[str, Any]) -> Any:
    """The one JSON object of a reply, perhaps in a fence; Malformed where it breaks the schema."""
    if len(text) > MAX_CHARS:
        raise Malformed(f"{len(text)} characters are more than {MAX_CHARS}")
    text = response.unframed(without_thinking(text), "json").strip()
    try:
        found = json.loads(
            text, object_pairs_hook=tool_calls.once, parse_constant=tool_calls.refuse
        )
        json.dumps(found, ensure_ascii=False).encode()  # no half of a surrogate pair is in it
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON ({error}): {text[:60]!r}"[:200]) from None
    error = next(_validator(json.dumps(schema, sort_keys=True)).iter_errors(found), None)
    if error is not None:
        raise Malformed(f"{error.json_path}: {error.message}"[:200])
    return found


def fields(**properties: Any) -> dict[str, Any]:
    """The schema of an object with exactly these keys, each `str`, `bool` or a schema.

    Texts may not be empty.
    """
    kinds: dict[type, dict[str, Any]] = {
        str: {"type": "string", "minLength": 1},
        bool: {"type": "boolean"},
    }
    shapes = {
        name: kinds[kind] if isinstance(kind, type) else kind for name, kind in properties.items()
    }
    names = list(properties)
    return {
        "type": "object",
        "properties": shapes,
        "required": names,
        "additionalProperties": False,
    }


@functools.lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema))
