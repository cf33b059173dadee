"""Records of requests to an author, and of their results."""

import dataclasses
from collections.abc import Mapping
from typing import Any


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
