"""Chat templates: the Jinja program of a checkpoint that writes a conversation as text.

The text is that of transformers' `apply_chat_template` (5.23), byte for byte: the same sandboxed
environment, the same additions to what Jinja knows, the same treatment of what is None and of the
names of thinking. A template is a stranger's program: it sees plain JSON values and nothing else.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from loong_jax.errors import ConfigError

Messages = Sequence[Mapping[str, Any]]  # "role" and "content", and what else a template reads

_THINKING = ("reasoning_content", "thinking", "reasoning")  # names of it; templates read the first
_TURN = "<|loong: what the assistant said|>"
_CUT = "<|loong: the message goes on here|> "  # templates that trim a message take its space


class ChatTemplate:
    """`templates` by name, "default" at least; `variables` are what all of them may read."""

    def __init__(self, templates: str | Mapping[str, str], variables: Mapping[str, Any], name: str):
        """`name` is where they come from. Raises ConfigError for what is no template."""
        self.name = name
        self.sources = {"default": templates} if isinstance(templates, str) else dict(templates)
        if not isinstance(self.sources.get("default"), str):
            raise ConfigError(
                f"{name} has chat templates named {sorted(self.sources)}, and none is the default. "
                'Name one of them "default".'
            )
        self._variables = dict(variables)
        self._compiled = {which: _compiled(name, text) for which, text in self.sources.items()}

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation, special tokens included.

        `variables` go to the template (`enable_thinking`, ...). `continue_final_message` leaves the
        last message open. Where a template fails on calls whose arguments are JSON texts, as
        LongCat-Flash-Thinking-2601's does, it is given the objects. Raises ConfigError for what the
        template refuses.
        """
        asked: dict[str, Any] = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            **variables,
        }
        try:
            return self._render(messages, continue_final_message, asked)
        except ConfigError:
            objects = [_with_objects(message) for message in messages]
            if objects == list(messages):
                raise
        return self._render(objects, continue_final_message, asked)

    def after_turn(
        self,
        messages: Messages,
        new: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text behind the turn with which the assistant answered `messages`.

        That is its end, the messages that are `new`, and the beginning of the next turn. The turn
        itself is not written again: its tokens are there already.
        """
        conversation = [*messages, {"role": "assistant", "content": _TURN}, *new]
        text = self.render(conversation, tools=tools, **variables)
        _, found, after = text.partition(_TURN)
        if not found:
            raise ConfigError(
                f"the chat template of {self.name} leaves out what the assistant says before "
                f"{new[0]['role']!r} does. Take another template."
            )
        return after

    def _render(self, messages: Messages, is_open: bool, asked: Mapping[str, Any]) -> str:
        if not messages:
            raise ConfigError("a conversation has no message. Give one at least.")
        which = (
            "default" if asked["tools"] is None or "tool_use" not in self.sources else "tool_use"
        )
        read = [_read_message(message) for message in messages]
        last = _left_open(read[-1]) if is_open else ""
        try:
            text = self._compiled[which].render(
                messages=read, documents=None, **_plain({**self._variables, **asked})
            )
        except Exception as error:  # whatever a stranger's program does
            raise ConfigError(
                f"the chat template of {self.name} refuses this conversation: {error}. Write the "
                "messages as the template asks, or take another one."
            ) from None
        return _cut(text, last) if is_open else text


def _read_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None, and with its thinking under the name that templates read."""
    found = {key: _plain(value) for key, value in message.items() if value is not None}
    thinking = next((found[name] for name in _THINKING if name in found), None)
    if thinking is not None:
        found = {"thinking": thinking, **found, "reasoning_content": thinking}
    return found


def _with_objects(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message, with arguments of calls as objects where they are JSON texts of objects."""
    calls = []
    for call in message.get("tool_calls") or ():
        place = call["function"] if isinstance(call.get("function"), Mapping) else call
        arguments = _object_of(place.get("arguments"))
        if place is call:
            calls.append({**call, "arguments": arguments})
        else:
            calls.append({**call, "function": {**place, "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else message


def _object_of(arguments: Any) -> Any:
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return found if isinstance(found, dict) else arguments


def _left_open(message: dict[str, Any]) -> str:
    """Marks the end of a message's text, which it returns."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _CUT
        return content
    parts = content if isinstance(content, list) else []
    for part in reversed(parts):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text = part["text"]
            part["text"] = text + _CUT
            return text
    raise ConfigError("the last message has no text to continue. Give it one, or open a new turn.")


def _cut(found: str, text: str) -> str:
    at = found.rfind(_CUT.strip())
    if at < 0 or text.strip() not in found:
        raise ConfigError(
            "the chat template leaves out a part of the last message, which cannot be continued "
            "so. Open a new turn instead."
        )
    is_whole = found.startswith(_CUT, at)
    return found[:at] if is_whole else found[:at].rstrip()


def _plain(value: Any) -> Any:
    """Plain JSON values all through: objects with methods are nothing for a stranger's program."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (
            type(value)(_plain(item) for item in value)
            if type(value) in (list, tuple)
            else [_plain(item) for item in value]
        )
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if hasattr(value, "item"):  # a scalar of NumPy
        return _plain(value.item())
    raise ConfigError(
        f"a conversation holds a {type(value).__name__}, which is no JSON. Write it as text."
    )


# ---- the environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks what the assistant wrote; the text is that of its body."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """Jinja's own, without names that lead into Python."""

    def __init__(*args: Any, **kwargs: Any):  # a variable may be named `self`
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace holds no name like {name!r}")


def _to_json(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _compiled(name: str, source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template of {name} is no Jinja: {error.message} (line {error.lineno}). "
            "Fetch the file again."
        ) from None


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "namespace": _Namespace,
    }
    return environment
