"""Calls of tools: `<longcat_tool_call>{"name": ..., "arguments": {...}}</longcat_tool_call>`.

LongCat-Flash-Thinking-2601 writes the name and `<longcat_arg_key>` and `<longcat_arg_value>` for
each argument between these tags; Qwen and others write the object in `<tool_call>` tags. What is
read here is what an agent's turn may execute, so it is strict: tags in pairs, one JSON
object in each, a known name, arguments of the declared types and no others.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from loong_jax.errors import VerifierError

OPEN, CLOSE = "<longcat_tool_call>", "</longcat_tool_call>"
TAGS = ((OPEN, CLOSE), ("<tool_call>", "</tool_call>"))
MAX_CALLS = 64
_PAIR = re.compile(
    r"<longcat_arg_key>(.*?)</longcat_arg_key>\s*<longcat_arg_value>(.*?)</longcat_arg_value>\s*",
    re.S,
)
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


class ToolCalls(NamedTuple):
    """The calls of a text in order, or the first problem and no calls."""

    calls: tuple[ToolCall, ...] = ()
    problem: str = ""


def read(text: str, tools: Any = None) -> ToolCalls:
    """Reads all calls of a text.

    `tools` maps names to JSON schemas of their arguments, of which `properties` with `type` and
    `enum`, `required` and `additionalProperties` are checked; left out, any name and any arguments
    do. VerifierError where it is malformed.
    """
    if tools is not None and (
        not isinstance(tools, Mapping) or not all(isinstance(s, Mapping) for s in tools.values())
    ):
        raise VerifierError(f"tools={tools!r:.80} maps no names to schemas. Give such an object.")
    opening, closing = tags_in(text) or TAGS[0]
    first, *rest = text.split(opening)
    if closing in first or len(rest) > MAX_CALLS:
        return ToolCalls(problem=f"tags are not paired, or more than {MAX_CALLS}")
    calls = []
    for part in rest:
        body, close, after = part.partition(closing)
        if not close or closing in after:
            return ToolCalls(problem="tags are not paired")
        call = _call(body, tools)
        if isinstance(call, str):
            return ToolCalls(problem=call)
        calls.append(call)
    return ToolCalls(tuple(calls))


def tags_in(text: str) -> tuple[str, str] | None:
    """The tags of calls that a text has, the first kind of them."""
    return next((tags for tags in TAGS if any(tag in text for tag in tags)), None)


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises VerifierError for a schema whose arguments `read` could not check."""
    for name, declared in _properties(schema).items():
        kinds = declared.get("type", [])
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            if kind not in _TYPES:
                raise VerifierError(
                    f"type={kind!r:.60} of argument {name!r:.60} is unknown. Choose one of "
                    f"{list(_TYPES)}."
                )


def _call(body: str, tools: Mapping[str, Any] | None) -> ToolCall | str:
    name, opened, pairs = body.partition("<longcat_arg_key>")
    if opened or (name.strip() and "{" not in name and len(name.split()) == 1):
        return _call_by_keys(name.strip(), opened + pairs, tools)
    try:
        found = json.loads(body, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"[:120]
    if not isinstance(found, dict) or set(found) != {"name", "arguments"}:
        return "keys are not name and arguments"
    name, arguments = found["name"], found["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return "name is no text, or arguments are no object"
    return _checked(name, arguments, tools)


def _call_by_keys(name: str, pairs: str, tools: Mapping[str, Any] | None) -> ToolCall | str:
    """Values are texts where the schema says so, and JSON elsewhere if they can be."""
    if _PAIR.sub("", pairs).strip():
        return "keys and values are not paired"
    found = _PAIR.findall(pairs)
    if len(dict(found)) != len(found):
        return "a key twice"
    declared = _properties(tools[name]) if tools is not None and name in tools else {}
    arguments = {key: _value(text, declared.get(key, {})) for key, text in found}
    return _checked(name, arguments, tools)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _checked(
    name: str, arguments: dict[str, Any], tools: Mapping[str, Any] | None
) -> ToolCall | str:
    if tools is None:
        return ToolCall(name, arguments)
    if name not in tools:
        return f"tool {name!r:.60} is unknown"
    return _misfit(tools[name], arguments) or ToolCall(name, arguments)


def _properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Schemas of the arguments by name: `true` takes any value, `false` none."""
    found = schema.get("properties") or {}
    if not isinstance(found, Mapping):
        raise VerifierError(f"properties={found!r:.60} are no object. Map names to schemas.")
    odd = [name for name, declared in found.items() if not isinstance(declared, bool | Mapping)]
    if odd:
        raise VerifierError(
            f"the schema of argument {odd[0]!r:.60} is {found[odd[0]]!r:.60}. Give an object, true "
            "or false."
        )
    of_bool = {True: {}, False: {"enum": []}}
    return {n: of_bool[s] if isinstance(s, bool) else s for n, s in found.items()}


def _misfit(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    properties = _properties(schema)
    missing = [name for name in schema.get("required") or [] if name not in arguments]
    if missing:
        return f"arguments {missing!r:.80} are missing"
    for name, value in arguments.items():
        if name not in properties:
            if schema.get("additionalProperties", False):
                continue
            return f"argument {name!r:.60} is unknown"
        declared = properties[name]
        kinds = declared.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(_is_of(value, kind) for kind in kinds):
            return f"argument {name!r:.60} is no {' or '.join(kinds)}"
        if "enum" in declared and value not in declared["enum"]:
            return f"argument {name!r:.60} is none of {declared['enum']!r:.80}"
    return ""


def _is_of(value: Any, kind: str) -> bool:
    if kind not in _TYPES:
        raise VerifierError(
            f"type={kind!r:.60} of a tool is unknown. Choose one of {list(_TYPES)}."
        )
    if isinstance(value, bool):  # which is an int in Python and none in JSON
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
