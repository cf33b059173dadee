"""Strict reading of a judge's reply: one JSON object of the agreed shape, or nothing."""

import json
from collections.abc import Sequence
from typing import Any, Literal, get_args

from loong_jax.problems import response
from loong_jax.verifiers import tool_calls

MAX_CHARS = 200_000
Said = Literal["correct", "wrong", "unsure"]


class MalformedReply(ValueError):
    """The reply has not the agreed shape: a refusal, prose, two objects, a key too many."""


def said(text: str, *, with_reasoning: bool) -> tuple[Said, str]:
    """The verdict of a reply and its reasoning, which is empty for a judge without."""
    reply = _object(text, {"reasoning", "verdict"} if with_reasoning else {"verdict"})
    if reply["verdict"] not in get_args(Said):
        raise MalformedReply(f"verdict {reply['verdict']!r:.40}")
    return reply["verdict"], reply.get("reasoning", "")


def met(text: str, numbers: Sequence[str]) -> tuple[dict[str, bool], str]:
    """The criteria of a reply, every number once, true if met; and its reasoning."""
    reply = _object(text, {"reasoning", "met"})
    found = reply["met"]
    if not isinstance(found, dict) or set(found) != set(numbers):
        raise MalformedReply("not all criteria, or more than these")
    if not all(isinstance(value, bool) for value in found.values()):
        raise MalformedReply("a criterion neither true nor false")
    return found, reply["reasoning"]


def _object(text: str, keys: set[str]) -> dict[str, Any]:
    if len(text) > MAX_CHARS:
        raise MalformedReply(f"{len(text)} characters")
    text = response.without_end(text).replace("\r\n", "\n").strip()
    if not text.startswith(("{", "```", "~~~")):  # a reasoning model's own thinking
        text = (response.after_thinking(text) or "").strip()
    try:
        reply = json.loads(response.unframed(text, "json"), object_pairs_hook=tool_calls.once)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"no JSON object: {text[:60]!r}") from error
    if not isinstance(reply, dict) or set(reply) != keys:
        raise MalformedReply(f"keys are not {sorted(keys)}")
    reasoning = reply.get("reasoning", "none is asked for")
    if not isinstance(reasoning, str) or not reasoning.strip():
        raise MalformedReply("no reasoning")
    return reply
