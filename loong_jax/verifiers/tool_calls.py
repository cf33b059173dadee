"""Calls of tools: `<longcat_tool_call>{"name": ..., "arguments": {...}}</longcat_tool_call>`.

LongCat-Flash-Thinking-2601 writes the name and `<longcat_arg_key>` and `<longcat_arg_value>` for
each argument between these tags; Qwen and others write the object in `<tool_call>` tags. What is
read here is what an agent's turn may execute, so it is strict: tags in pairs, one JSON
object in each, a known name, arguments of the declared types and no others. A tag within an
argument is part of it.
"""

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from loong_jax.errors import VerifierError
from loong_jax.problems import response

OPEN, CLOSE = "<longcat_tool_call>", "</longcat_tool_call>"
TAGS = ((OPEN, CLOSE), ("<tool_call>", "</tool_call>"))
MAX_CALLS = 64
_NAME = re.compile(r"\s*([^\s<{]+)\s*(?=<)")
_PAIR = re.compile(
    r"<longcat_arg_key>(.*?)</longcat_arg_key>\s*<longcat_arg_value>(.*?)</longcat_arg_value>\s*",
    re.S,
)
_CLOSES = re.compile("|".join(re.escape(closing) for _, closing in response.THINKING))
_MENTIONED = re.compile(rf"\w[ \t]+(?:{_CLOSES.pattern})(?:[ \t]*[.,;:!?)]|[ \t]+(?=[a-z]))")
# Checked keywords of a schema; `pattern` and its like would run expressions that come with a tool.
_CHECKED = (
    *("$ref", "type", "enum", "const", "not", "anyOf", "oneOf", "allOf", "required"),
    *("properties", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
    *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
)


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


class ToolCalls(NamedTuple):
    """The calls of a text in order, or the first problem and no calls."""

    calls: tuple[ToolCall, ...] = ()
    problem: str = ""


def spoken(text: str) -> str | None:
    """The text after the thinking, calls as written; None for thinking that does not end.

    A sentence may speak of a tag that ends thinking, where none was opened.
    """
    start = 0
    is_opened = text.lstrip().startswith(tuple(opening for opening, _ in response.THINKING))
    if is_opened:
        closings = (text.find(closing) for _, closing in response.THINKING)
        start = min((at for at in closings if at >= 0), default=len(text))
    openings = (text.find(opening, start) for opening, _ in TAGS)
    start = min((at for at in openings if at >= 0), default=len(text))
    if not is_opened and not _CLOSES.search(_MENTIONED.sub("", text[:start])):
        return text
    said = response.after_thinking(text[:start])
    return None if said is None else said + text[start:]


def read(text: str, tools: Any = None) -> ToolCalls:
    """Reads all calls of a text.

    `tools` maps names to JSON schemas of their arguments: what `check_schema` knows of them is
    checked; left out, any name and any arguments do. VerifierError where it is malformed.
    """
    if tools is not None and (
        not isinstance(tools, Mapping) or not all(isinstance(s, Mapping) for s in tools.values())
    ):
        raise VerifierError(f"tools={tools!r:.80} maps no names to schemas. Give such an object.")
    known = {name: _validator(_text(schema)) for name, schema in (tools or {}).items()}
    opening, closing = tags_in(text) or TAGS[0]
    calls, at = [], 0
    while True:
        start = text.find(opening, at)
        between = text[at : start if start >= 0 else len(text)]
        if closing in between or len(calls) > MAX_CALLS:
            return ToolCalls(problem=f"tags are not paired, or more than {MAX_CALLS}")
        if start < 0:
            return ToolCalls(tuple(calls))
        try:
            call, at = _call(text, start + len(opening), None if tools is None else known)
        except json.JSONDecodeError as error:
            return ToolCalls(problem=f"no JSON, or tags are not paired: {error}")
        except (ValueError, RecursionError) as error:
            return ToolCalls(problem=str(error)[:200])
        if not text.startswith(closing, at):
            return ToolCalls(problem="tags are not paired, or hold more than a call")
        calls.append(call)
        at += len(closing)


def tags_in(text: str) -> tuple[str, str] | None:
    """The tags of calls that a text has, the first kind of them."""
    found = [(text.find(tag), tags) for tags in TAGS for tag in tags if tag in text]
    return min(found)[1] if found else None


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises VerifierError for a schema whose arguments `read` could not check.

    Checked are the keywords of `_CHECKED`, and `$ref` within the schema, at any depth; others say
    nothing here.
    """
    _validator(_text(schema))


def _text(schema: Mapping[str, Any]) -> str:
    """A schema of arguments, closed unless it says otherwise."""
    return json.dumps({"additionalProperties": False, **schema}, default=dict, sort_keys=True)


@functools.lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    import jsonschema
    import jsonschema.validators

    full = jsonschema.Draft202012Validator
    kind = jsonschema.validators.create(
        full.META_SCHEMA, {name: full.VALIDATORS[name] for name in _CHECKED},
        type_checker=full.TYPE_CHECKER,
    )  # fmt: skip
    schema = _stated(json.loads(text))
    try:
        full.check_schema(schema)
        for part in _parts(schema):
            if (target := part.get("$ref")) is not None:
                _require(target, schema)
    except (jsonschema.SchemaError, RecursionError) as error:
        raise VerifierError(f"a tool's schema is malformed: {error!s:.200}") from None
    return kind(schema)


def _stated(part: Any) -> Any:
    """Without what is null, as many servers write what they leave out, and without patterns."""
    if isinstance(part, list):
        return [_stated(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _stated(one) if name not in ("const", "enum") else one
        for name, one in part.items()
        if (one is not None or name == "const") and name != "patternProperties"
    }


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _parts(one)


def _require(target: Any, root: Any) -> None:
    """`$ref` must name a part of the whole schema: nothing is fetched."""
    first, *names = str(target).split("/")
    for name in names:
        root = root.get(name) if isinstance(root, dict) else None
    if first != "#" or root is None:
        raise VerifierError(
            f"$ref={target!r:.80} is no part of the schema. Write #/$defs/NAME, and NAME under "
            "$defs."
        )


def _misfit(validator: Any, value: Any) -> str:
    """The fault of a value by its schema; "" where it fits."""
    try:
        error = next(validator.iter_errors(value), None)
    except RecursionError:
        raise VerifierError("schemas are too deep. Unroll what $ref repeats.") from None
    return "" if error is None else f"{error.json_path}: {error.message}"


def _call(text: str, at: int, known: Mapping[str, Any] | None) -> tuple[ToolCall, int]:
    """The call that starts there, and where it ends; ValueError says why it is none."""
    if named := _NAME.match(text, at):
        name, at = named[1], named.end()
        pairs = []
        while pair := _PAIR.match(text, at):
            pairs.append(pair.groups())
            at = pair.end()
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key twice")
        arguments = {key: _value(said, key, (known or {}).get(name)) for key, said in pairs}
    else:
        found, at = _DECODER.raw_decode(text, _end_of_space(text, at))
        if not isinstance(found, dict) or set(found) != {"name", "arguments"}:
            raise ValueError("keys are not name and arguments")
        name, arguments = found["name"], found["arguments"]
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError("name is no text, or arguments are no object")
        at = _end_of_space(text, at)
    if known is not None:
        if name not in known:
            raise ValueError(f"tool {name!r:.60} is unknown")
        if problem := _misfit(known[name], arguments):
            raise ValueError(problem)
    return ToolCall(name, arguments), at


def _end_of_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _value(text: str, key: str, validator: Any) -> Any:
    """JSON where the schema takes what it says, else the text."""
    try:
        value = json.loads(text, **_STRICT)
    except (ValueError, RecursionError):
        return text
    declared = (validator.schema.get("properties") or {}).get(key) if validator else None
    if not declared or declared is True:
        return value
    one = validator.evolve(schema=declared)
    return text if _misfit(one, value) and not _misfit(one, text) else value


# ---- JSON, strictly


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def refuse(name: str) -> Any:
    """Refuses NaN and infinities, which Python would read."""
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> int | float:
    """5.0 is an integer in JSON, and tools want one."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is beyond any number")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_STRICT: dict[str, Any] = {
    "object_pairs_hook": once, "parse_constant": refuse, "parse_float": _number,
}  # fmt: skip
_DECODER = json.JSONDecoder(**_STRICT)
