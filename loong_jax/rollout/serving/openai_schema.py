"""Bodies of the OpenAI-compatible interface: what is understood, and what answers look like.

What would change an answer and is not built is refused, never ignored; what changes nothing about
it is let through. `top_k`, `min_p` and `chat_template_kwargs` are
additions.
Source: platform.openai.com/docs/api-reference.
"""

import codecs
import dataclasses
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax.rollout.serving.request import Message, ServingLimits

MAX_SEED = 2**63
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 100.0  # beside 0; logits are divided by it in float32


class ApiError(Exception):
    """Becomes the error body of a response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A body that was read; `prompts` are texts or tokens, `messages` a conversation."""

    prompts: tuple[str | tuple[int, ...], ...] = ()
    messages: tuple[Message, ...] = ()
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the chat template
    sampling: Mapping[str, Any]  # as `Frontend.sampling` takes it
    num_samples: int = 1
    seed: int | None = None
    streams: bool = False
    wants_usage: bool = False  # a last chunk with the usage
    wants_log_probs: bool = False


# Nothing in an answer depends on these.
HARMLESS = {
    *("metadata", "model", "parallel_tool_calls", "prompt_cache_key", "safety_identifier"),
    *("service_tier", "store", "user", "verbosity"),
}
# The same of a message.
MESSAGE = {"role", "content", "name"}
# Understood with these values alone.
ONLY: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none",),
    "modalities": (["text"],),
}
# Variables that the server itself gives to a chat template.
RESERVED = {"add_generation_prompt", "continue_final_message", "documents", "messages", "tools"}
READ = {
    *("max_tokens", "max_completion_tokens", "n", "best_of", "temperature", "top_p", "top_k"),
    *("min_p", "seed", "stop", "stream", "stream_options", "logprobs"),
}


def parse_json(body: bytes) -> dict[str, Any]:
    """Strict JSON with an object outside. Raises ApiError."""

    def refuse(constant: str):
        raise ValueError(f"{constant} is no JSON")

    try:
        found = json.loads(body.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"The body is no JSON in UTF-8: {reason}.") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"The body is a JSON {_kind(found)}, not an object.")
    return found


def parse(body: Mapping[str, Any], *, is_chat: bool, limits: ServingLimits) -> Asked:
    """Reads a body. Raises ApiError where it is not understood or breaks a limit."""
    chat = {"messages", "top_logprobs", "chat_template_kwargs"}
    known = READ | HARMLESS | (chat if is_chat else {"prompt"})
    body = {name: value for name, value in body.items() if value is not None}
    for name, value in body.items():
        if name in ONLY:
            if value not in ONLY[name]:
                raise _wrong(name, "is not built here. Leave it out", code="unsupported_parameter")
        elif name not in known:
            meant = difflib.get_close_matches(name, known, 1)
            remedy = f"Write {meant[0]}" if meant else "Leave it out"
            raise _wrong(_shown(name), f"is not known. {remedy}", code="unknown_parameter")
    num_samples = _int(body, "n", 1, low=1, high=limits.max_samples)
    if body.get("best_of", num_samples) != num_samples:
        raise _wrong("best_of", "must equal n")
    options = body.get("stream_options", {})
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise _wrong("stream_options", "must be an object with include_usage")
    content: dict[str, Any]
    if is_chat:
        variables = body.get("chat_template_kwargs", {})
        if not isinstance(variables, dict) or set(variables) & RESERVED:
            rule = f"must be an object without {', '.join(sorted(RESERVED))}"
            raise _wrong("chat_template_kwargs", rule)
        content = {"messages": _messages(body.get("messages")), "variables": variables}
    else:
        content = {"prompts": _prompts(body.get("prompt"), limits)}
    temperature = _number(body, "temperature", 1.0, low=0.0, high=MAX_TEMPERATURE)
    if 0 < temperature < MIN_TEMPERATURE:
        raise _wrong("temperature", f"must be 0, or at least {MIN_TEMPERATURE}")
    max_tokens = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    return Asked(
        **content,
        sampling=dict(
            max_tokens=_int(body, max_tokens, None, low=1, high=2**31 - 1),
            temperature=temperature,
            top_p=_number(body, "top_p", 1.0, low=0.0, high=1.0),
            top_k=max(0, _int(body, "top_k", 0, low=-1, high=2**31 - 1)),
            min_p=_number(body, "min_p", 0.0, low=0.0, high=1.0),
            stops=_stops(body.get("stop", []), limits),
        ),
        num_samples=num_samples,
        seed=_int(body, "seed", None, low=-MAX_SEED, high=MAX_SEED - 1),
        streams=_bool(body, "stream"),
        wants_usage=_bool(options, "include_usage"),
        wants_log_probs=_wants_log_probs(body, is_chat),
    )


def _wants_log_probs(body: Mapping[str, Any], is_chat: bool) -> bool:
    name = "top_logprobs" if is_chat else "logprobs"
    if _int(body, name, 0, low=0, high=20):
        raise _wrong(
            name,
            "must be 0: log-probabilities are given for the tokens drawn, not for others",
            code="unsupported_parameter",
        )
    return _bool(body, "logprobs") if is_chat else "logprobs" in body


def _messages(found: Any) -> tuple[Message, ...]:
    if not isinstance(found, list) or not found:
        raise _wrong("messages", "must be a list with at least one message")
    messages = []
    for i, entry in enumerate(found):
        at = f"messages[{i}]"
        if not isinstance(entry, dict):
            raise _wrong(at, f"is a JSON {_kind(entry)}, not an object")
        role = "system" if entry.get("role") == "developer" else entry.get("role")
        if role not in ("system", "user", "assistant"):
            raise _wrong(f"{at}.role", "must be system, developer, user or assistant")
        if odd := [name for name, value in entry.items() if value and name not in MESSAGE]:
            rule = "is not built here. Leave it out"
            raise _wrong(f"{at}.{_shown(odd[0])}", rule, code="unsupported_parameter")
        messages.append(Message(role, _content(entry.get("content"), f"{at}.content")))
    if all(message.role == "system" for message in messages):
        raise _wrong("messages", "must hold a message of the user")
    return tuple(messages)


def _content(found: Any, at: str) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        parts = [part for part in found if isinstance(part, dict)]
        parts = [part.get("text") for part in parts if part.get("type", "text") == "text"]
        texts = [text for text in parts if isinstance(text, str)]
        if len(texts) == len(found):
            return "".join(texts)
    raise _wrong(at, "must be a text, or a list of parts of type text")


def _prompts(found: Any, limits: ServingLimits) -> tuple[str | tuple[int, ...], ...]:
    """One or several texts, or one or several lists of tokens."""
    if isinstance(found, str):
        return (found,)
    if not isinstance(found, list) or not found:
        raise _wrong("prompt", "must be a text, a list of tokens, or a list of either")
    prompts = [found] if all(_is_int(token) for token in found) else found
    if len(prompts) > limits.max_samples:
        raise _wrong("prompt", f"has {len(prompts)} prompts; at most {limits.max_samples} may be")
    for i, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            continue
        if not isinstance(prompt, list) or not prompt or not all(map(_is_int, prompt)):
            raise _wrong(f"prompt[{i}]", "must be a text or a list of tokens")
        if not all(0 <= token < 2**31 for token in prompt):
            raise _wrong(f"prompt[{i}]", "has tokens outside 0..2**31-1")
    return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts)


def _stops(found: Any, limits: ServingLimits) -> tuple[str, ...]:
    stops = [found] if isinstance(found, str) else found
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _wrong("stop", "must be a text or a list of texts")
    if len(stops) > limits.max_stops:
        raise _wrong("stop", f"has {len(stops)} texts; at most {limits.max_stops} may be")
    if any(not 0 < len(stop) <= limits.max_stop_chars for stop in stops):
        raise _wrong("stop", f"must have 1 to {limits.max_stop_chars} characters each")
    return tuple(stops)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _int(body: Mapping[str, Any], name: str, default: Any, *, low: int, high: int) -> Any:
    if name not in body:
        return default
    value = body[name]
    if not _is_int(value) or not low <= value <= high:
        raise _wrong(name, f"must be a whole number from {low} to {high}")
    return value


def _number(
    body: Mapping[str, Any], name: str, default: float, *, low: float, high: float
) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, f"is a JSON {_kind(value)}, not a number")
    if not low <= value <= high:
        raise _wrong(name, f"must be a number from {low:g} to {high:g}")
    return float(value)


def _bool(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(name, "must be true or false")
    return value


def _wrong(name: str, rule: str, *, code: str | None = None) -> ApiError:
    return ApiError(400, f"{name} {rule}.", param=name, code=code)


def _shown(name: str) -> str:
    """A name of the client's as an answer may repeat it: short, and in UTF-8."""
    return name[:60].encode("utf-8", "backslashreplace").decode()


def _kind(value: Any) -> str:
    return {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}.get(
        type(value), "number"
    )


# ---- answers


class TextOffsets:
    """Offsets of tokens in a text, in characters; tokens come as UTF-8, one after the other."""

    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0  # that are complete

    def push(self, piece: bytes) -> int:
        """The offset of the next token: of its character, where it begins inside one."""
        start = self._num_chars
        self._num_chars += len(self._decoder.decode(piece))
        return start


def usage(num_prompt_tokens: int, num_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
    }


def chat_log_probs(pieces: Sequence[bytes], log_probs: Sequence[float]) -> dict[str, Any]:
    """`pieces` are single tokens in UTF-8."""
    content = [
        {
            "token": piece.decode("utf-8", "replace"),
            "logprob": _finite(log_prob),
            "bytes": list(piece),
            "top_logprobs": [],
        }
        for piece, log_prob in zip(pieces, log_probs, strict=True)
    ]
    return {"content": content, "refusal": None}


def text_log_probs(
    pieces: Sequence[bytes], log_probs: Sequence[float], offsets: TextOffsets
) -> dict[str, Any]:
    """`offsets` have seen the tokens before."""
    return {
        "tokens": [piece.decode("utf-8", "replace") for piece in pieces],
        "token_logprobs": [_finite(log_prob) for log_prob in log_probs],
        "top_logprobs": None,
        "text_offset": [offsets.push(piece) for piece in pieces],
    }


def _finite(log_prob: float) -> float:
    """JSON knows no infinities; this is what stands for them in that interface."""
    return log_prob if math.isfinite(log_prob) else -9999.0
