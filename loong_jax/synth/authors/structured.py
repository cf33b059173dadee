"""Strict reading of an author's reply: a refusal, or one JSON object of the agreed shape."""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema

from loong_jax.problems import response
from loong_jax.verifiers import tool_calls

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
