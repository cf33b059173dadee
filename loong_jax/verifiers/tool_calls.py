"""Calls of tools: `<longcat_tool_call>{"name": ..., "arguments": {...}}</longcat_tool_call>`.

LongCat-Flash-Thinking-2601 writes the name and `<longcat_arg_key>` and `<longcat_arg_value>` for
each argument between these tags; Qwen and others write the object in `<tool_call>` tags. What is
read here is what an agent's turn may execute, so it is strict: tags in pairs, one JSON
object in each, a known name, arguments of the declared types and no others. A tag within an
argument is part of it.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from loong_jax.data import response
from loong_jax.errors import VerifierError

OPEN, CLOSE = "<longcat_tool_call>", "</longcat_tool_call>"
TAGS = ((OPEN, CLOSE), ("<tool_call>", "</tool_call>"))
MAX_CALLS = 64
_MAX_DEPTH = 50  # of schemas within schemas
_NAME = re.compile(r"\s*([^\s<{]+)\s*(?=<)")
_PAIR = re.compile(
    r"<longcat_arg_key>(.*?)</longcat_arg_key>\s*<longcat_arg_value>(.*?)</longcat_arg_value>\s*",
    re.S,
)
_CLOSES = re.compile("|".join(re.escape(closing) for _, closing in response.THINKING))
_MENTIONED = re.compile(rf"\w[ \t]+(?:{_CLOSES.pattern})(?:[ \t]*[.,;:!?)]|[ \t]+(?=[a-z]))")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_BOUNDS = {  # keyword: the type it speaks of, what is compared, and what must hold
    "minimum": ("number", lambda value, bound: value >= bound),
    "maximum": ("number", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda value, bound: value < bound),
    "minLength": ("string", lambda value, bound: len(value) >= bound),
    "maxLength": ("string", lambda value, bound: len(value) <= bound),
    "minItems": ("array", lambda value, bound: len(value) >= bound),
    "maxItems": ("array", lambda value, bound: len(value) <= bound),
}
_CHOICES = {  # keyword: how many of its schemas a value may fit
    "anyOf": lambda num, of: num >= 1,
    "oneOf": lambda num, of: num == 1,
    "allOf": lambda num, of: num == of,
}
_KEYWORDS: dict[str, Any] = {  # and what each is: an object of schemas, a schema, a list, ...
    **dict.fromkeys(("properties", "$defs", "definitions"), (dict, Mapping)),
    **dict.fromkeys(("items", "additionalProperties", "not"), object),
    **dict.fromkeys(("required", "enum", "prefixItems", *_CHOICES), list),
    **dict.fromkeys(_BOUNDS, (int, float)),
    "type": (str, list),
    "$ref": str,
}


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


class ToolCalls(NamedTuple):
    """The calls of a text in order, or the first problem and no calls."""

    calls: tuple[ToolCall, ...] = ()
    problem: str = ""


def spoken(text: str) -> str | None:
    """What follows the thinking, calls as they are written; None for thinking that does not end.

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
    for schema in (tools or {}).values():
        check_schema(schema)
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
            call, at = _call(text, start + len(opening), tools)
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

    Checked are type, enum, const, properties, required, additionalProperties, items, prefixItems,
    anyOf, oneOf, allOf, not, bounds of numbers and lengths, and `$ref` within the schema, at any
    depth; other keywords, `pattern` among them, say nothing here.
    """
    todo: list[tuple[Any, str]] = [(schema, "the arguments")]
    while todo:
        one, where = todo.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict | Mapping):
            raise VerifierError(f"the schema of {where} is {one!r:.60}. Give an object.")
        for keyword, value in one.items():
            kind = _KEYWORDS.get(keyword)
            if kind is None or value is None:
                continue
            if not isinstance(value, kind):
                raise VerifierError(f"{keyword}={value!r:.60} in the schema of {where} is of "
                                    "another kind. See JSON Schema.")  # fmt: skip
            if keyword == "type" and (unknown := [k for k in _types(one) if k not in _TYPES]):
                raise VerifierError(
                    f"type={unknown[0]!r:.60} in the schema of {where} is unknown. Choose one of "
                    f"{list(_TYPES)}."
                )
            if keyword == "$ref":
                _resolved(one, schema)
            elif keyword in ("properties", "$defs", "definitions"):
                todo += [(of, f"{name!r:.60}") for name, of in value.items()]
            elif kind is object:
                todo.append((value, f"{keyword} of {where}"[:80]))
            elif keyword in _CHOICES or keyword == "prefixItems":
                todo += [(of, f"{keyword} of {where}"[:80]) for of in value]


def _call(text: str, at: int, tools: Mapping[str, Any] | None) -> tuple[ToolCall, int]:
    """The call that starts there, and where it ends; ValueError says why it is none."""
    if named := _NAME.match(text, at):
        name, at = named[1], named.end()
        pairs = []
        while pair := _PAIR.match(text, at):
            pairs.append(pair.groups())
            at = pair.end()
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key twice")
        schema = (tools or {}).get(name, {})
        declared = schema.get("properties") or {}
        arguments = {key: _value(said, declared.get(key, True), schema) for key, said in pairs}
    else:
        found, at = _DECODER.raw_decode(text, _end_of_space(text, at))
        if not isinstance(found, dict) or set(found) != {"name", "arguments"}:
            raise ValueError("keys are not name and arguments")
        name, arguments = found["name"], found["arguments"]
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError("name is no text, or arguments are no object")
        at = _end_of_space(text, at)
    if tools is not None:
        if name not in tools:
            raise ValueError(f"tool {name!r:.60} is unknown")
        whole = {"additionalProperties": False, **tools[name]}
        if problem := _misfit(whole, arguments, "the call", tools[name]):
            raise ValueError(problem)
    return ToolCall(name, arguments), at


def _end_of_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """JSON where the schema takes what it says, else the text."""
    try:
        value = json.loads(text, **_STRICT)
    except (ValueError, RecursionError):
        return text
    takes_text = not _misfit(schema, text, "", root)
    is_declared = isinstance(schema, Mapping) and bool(schema)
    prefers_text = takes_text and is_declared and _misfit(schema, value, "", root) != ""
    return text if prefers_text else value


# ---- schemas


def _types(schema: Mapping[str, Any]) -> list[Any]:
    kinds = schema.get("type", [])
    return kinds if isinstance(kinds, list) else [kinds]


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """What `$ref` names: a part of the whole schema."""
    part: Any = root
    first, *names = str(schema["$ref"]).split("/")
    for name in names:
        part = part.get(name) if isinstance(part, Mapping) else None
    if first != "#" or part is None:
        raise VerifierError(
            f"$ref={schema['$ref']!r:.80} is no part of the schema. Write #/$defs/NAME, and NAME "
            "under $defs."
        )
    return part


def _misfit(schema: Any, value: Any, where: str, root: Mapping[str, Any], depth: int = 0) -> str:
    """Why a value does not fit a schema; "" where it does."""
    if isinstance(schema, bool):
        return "" if schema else f"{where} may not be given"
    if depth > _MAX_DEPTH:
        raise VerifierError(f"schemas are more than {_MAX_DEPTH} deep. Unroll what $ref repeats.")

    def misfit(inner: Any, item: Any, place: str = where) -> str:
        return _misfit(inner, item, place, root, depth + 1)

    if "$ref" in schema and (said := misfit(_resolved(schema, root), value)):
        return said
    for keyword, stated in schema.items():
        if keyword == "type":
            if not any([_is_of(value, kind) for kind in _types(schema)]):
                return f"{where} is no {' or '.join(_types(schema))}"
        elif keyword in ("enum", "const"):
            allowed = stated if keyword == "enum" else [stated]
            if allowed is not None and not any(_is_same(value, one) for one in allowed):
                return f"{where} is none of {allowed!r:.80}"
        elif keyword in _BOUNDS:
            kind, holds = _BOUNDS[keyword]
            if _is_of(value, kind) and not holds(value, stated):
                return f"{where} breaks {keyword} {stated!r:.40}"
        elif keyword in _CHOICES and stated:
            num_fitting = sum(not misfit(choice, value) for choice in stated)
            if not _CHOICES[keyword](num_fitting, len(stated)):
                return f"{where} does not fit {keyword}"
    if "not" in schema and not misfit(schema["not"], value):
        return f"{where} fits what it must not"
    if isinstance(value, list):
        first = schema.get("prefixItems") or []
        rest = [schema.get("items", True)] * (len(value) - len(first))
        inside = zip([*first, *rest], value, strict=False)
        return next((said for inner, item in inside if (said := misfit(inner, item))), "")
    if isinstance(value, dict):
        if missing := [name for name in schema.get("required") or [] if name not in value]:
            return f"arguments {missing!r:.80} of {where} are missing"
        known = schema.get("properties") or {}
        other = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name not in known and other is False:
                return f"argument {name!r:.60} is unknown"
            if said := misfit(known.get(name, other), item, f"argument {name!r:.60}"):
                return said
    return ""


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # which is an int in Python and none in JSON
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _is_same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


# ---- JSON, strictly


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def refuse(name: str) -> Any:
    """For NaN and infinities, which Python would read."""
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
