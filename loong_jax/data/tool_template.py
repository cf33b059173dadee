"""Templates of tools: their description in a prompt, and their answers as tokens.

Descriptions and calls are in the form that LongCat-Flash's model card publishes: name, description
and schema of every tool, and calls as JSON objects in `<longcat_tool_call>` tags. The card does not
say how answers come back; each is put between `<longcat_tool_response>` tags, in the order of the
calls, which is the tag that later releases of the model use.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from loong_jax.data.chat_template import Messages
from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError
from loong_jax.verifiers.tool_calls import CLOSE as CALL_CLOSE
from loong_jax.verifiers.tool_calls import OPEN as CALL_OPEN

RESPONSE_OPEN, RESPONSE_CLOSE = "<longcat_tool_response>", "</longcat_tool_response>"

_TAG = re.compile(r"<(?=/?(?:longcat_\w+|bos|eos|pad|s|unk)>)")


@runtime_checkable
class Described(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments, an object."""
        ...


class ToolTurn(NamedTuple):
    """The answers of tools, and the conversation before them."""

    answers: Sequence[str]
    asked: Messages = ()  # the conversation that the policy answers
    tools: Sequence[Described] = ()
    sampled: Sequence[int] | np.ndarray = ()  # the turn of the policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolTemplate:
    """Text around a turn of tools. The defaults are those of recipes whose prompts have no roles.

    A conversation in LongCat's rounds has `before=" TOOL:"` and `after=" ASSISTANT:"`.
    """

    before: str = ""  # the answers of a turn
    after: str = ""  # them: the policy goes on from here

    def turn_ids(self, tokenizer: Tokenizer, turn: ToolTurn) -> list[int]:
        """The tokens of a turn of tools. No answer can open or close a tag in it."""
        return encode_outside(tokenizer, self.text(turn.answers))

    def text(self, answers: Iterable[str]) -> str:
        parts = (f"{RESPONSE_OPEN}{harmless(answer)}{RESPONSE_CLOSE}" for answer in answers)
        return self.before + "".join(parts) + self.after


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatTurns:
    """Turns as the chat template of the checkpoint writes them."""

    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the template

    def turn_ids(self, tokenizer: Tokenizer, turn: ToolTurn) -> list[int]:
        """The tokens that the template puts between what was sampled and what will be.

        Where the policy has ended its turn with an end token, the template's own is left out.
        Answers hold no token with a meaning of its own. Raises ConfigError where the template
        takes no answers.
        """
        if tokenizer.chat is None:
            raise ConfigError("turns of a chat need a chat template, and the tokenizer has none.")
        answers = [{"role": "tool", "content": harmless(a, tokenizer)} for a in turn.answers]
        schemas = [schema_of(tool) for tool in turn.tools] or None
        text = tokenizer.chat.after_turn(turn.asked, answers, tools=schemas, **self.variables)
        tokens = encode_outside(tokenizer, text)
        has_ended = len(turn.sampled) > 0 and int(turn.sampled[-1]) in tokenizer.end_ids
        return tokens[1:] if has_ended and tokens[:1] and tokens[0] in tokenizer.end_ids else tokens


def schema_of(tool: Described) -> dict[str, Any]:
    """A tool as chat templates take it."""
    described = {"name": tool.name, "description": tool.description}
    return {"type": "function", "function": {**described, "parameters": dict(tool.parameters)}}


def harmless(text: str, tokenizer: Tokenizer | None = None) -> str:
    """The text with a space in every tag, so that a tool writes no token that has a meaning."""
    text = _TAG.sub("< ", text)
    specials = () if tokenizer is None else tokenizer.specials
    names = sorted((n for n in specials if len(n) > 1 and not re.search(r"\s", n)), key=len)[::-1]
    if not names:
        return text
    pattern = re.compile("|".join(map(re.escape, names)))
    while pattern.search(text):
        text = pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text


def encode_outside(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a text that came from outside: '?' for each character that has none."""
    try:
        return tokenizer.encode(text)
    except (ValueError, TypeError):  # TypeError: the library's word for half a pair
        pass
    return tokenizer.encode("".join(c if _has_token(tokenizer, c) else "?" for c in text))


def _has_token(tokenizer: Tokenizer, character: str) -> bool:
    try:
        return bool(tokenizer.encode(character))
    except (ValueError, TypeError):
        return False


def description(tools: Sequence[Described]) -> str:
    """The text that describes the tools, before the messages of a conversation; "" without any."""
    if not tools:
        return ""
    parts = ["## Tools\nYou have access to the following tools: \n\n### Tool namespace: function\n"]
    for tool in tools:
        schema = json.dumps(dict(tool.parameters), indent=2)
        parts.append(
            f"#### Tool name: {tool.name}\n\nDescription: {tool.description}\n\n"
            f"InputSchema: \n{schema}\n"
        )
    call = f'{CALL_OPEN}\n{{"name": <function-name>, "arguments": <args-dict>}}\n{CALL_CLOSE}'
    parts.append(
        "**Note**: For each function call, return a json object with function name and arguments "
        f"within {CALL_OPEN}{CALL_CLOSE} XML tags as follows:\n{call}\n"
        "When multiple functions need to be called simultaneously, each function call should be "
        f"wrapped in its own {CALL_OPEN} tag and placed consecutively. For example:\n{call}{call}\n"
    )
    return "\n".join(parts) + "\n## Messages\n"


def split(text: str) -> list[tuple[str, bool]]:
    """A response of several turns as pieces, each with whether tools wrote it."""
    pieces = re.split(
        f"({re.escape(RESPONSE_OPEN)}.*?{re.escape(RESPONSE_CLOSE)})", text, flags=re.S
    )
    return [(piece, number % 2 == 1) for number, piece in enumerate(pieces) if piece]


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}"
