"""Texts and conversations to tokens, and tokens to text as they come.

`template` is the chat template that comes with the weights. `plain` is how our own recipes pose a
problem: <bos> and the text; the messages of a conversation follow each other as they are. `longcat`
is how LongCat-Flash-Chat holds a conversation, for weights that came without their template: rounds
are numbered from 0, and an answer ends with a tag of its own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError

ChatStyle = Literal["template", "plain", "longcat"]


class Message(NamedTuple):
    role: Literal["system", "user", "assistant"]
    content: str


def choose_style(asked: ChatStyle | None, tokenizer: Tokenizer, hf_config: str | None) -> ChatStyle:
    """The template of the weights, where there is one and nothing else is asked for.

    `hf_config` is the config.json that the weights came with. Raises ConfigError where there is no
    template to follow.
    """
    if asked == "template" and tokenizer.chat is None:
        raise ConfigError(
            "chat_style=template, and no chat template lies beside the tokenizer. Put "
            "chat_template.jinja there, or choose another style."
        )
    if asked is not None:
        return asked
    if tokenizer.chat is not None:
        return "template"
    kind = "" if hf_config is None else json.loads(hf_config).get("model_type", "longcat_flash")
    return "longcat" if str(kind).startswith("longcat") else "plain"


def text_tokens(tokenizer: Tokenizer, text: str, *, begin: bool = True) -> np.ndarray:
    """int32, with <bos> in front if `begin`. Raises ValueError for text that has no tokens."""
    return np.array(tokenizer.prompt_ids(text) if begin else tokenizer.encode(text), np.int32)


def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    style: ChatStyle,
    variables: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """int32: a conversation that the model is to go on with; `variables` go to its template.

    A last message of the assistant is continued. Raises ConfigError for what the template refuses.
    """
    if style != "template" or tokenizer.chat is None:
        return text_tokens(tokenizer, chat_text(messages, style))
    is_open = messages[-1].role == "assistant"
    given = [message._asdict() for message in messages]
    found = tokenizer.prompt_ids(given, continue_final_message=is_open, **(variables or {}))
    return np.array(found, np.int32)


def chat_text(messages: Sequence[Message], style: ChatStyle) -> str:
    """A conversation that the model is to go on with, without <bos>."""
    return _longcat(messages) if style == "longcat" else _plain(messages)


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


def _longcat(messages: Sequence[Message]) -> str:
    parts, num_rounds = [], 0
    for message in messages:
        if message.role == "system":
            parts.append(f"SYSTEM:{message.content}")
        elif message.role == "user":
            parts.append(f"[Round {num_rounds}] USER:{message.content}")
            num_rounds += 1
        else:
            parts.append(f"ASSISTANT:{message.content}</longcat_s>")
    if messages[-1].role == "assistant":  # its answer goes on
        return " ".join(parts).removesuffix("</longcat_s>")
    return " ".join((*parts, "ASSISTANT:"))


# A character of UTF-8 has at most four bytes and a token at least one, so that as many tokens at
# the end may be the beginning of a character.
MAX_BEGINNING = 3

Decode = Callable[[Sequence[int]], str]


class TextStream:
    """The text of one sample. `decode` gives the text of consecutive tokens.

    A token may end inside a character, and its text may depend on those before it. So what is open
    is decoded together with the tokens before, back to the last place but one where text was whole.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()):
        self._decode, self._stops = decode, tuple(stops)
        self._tokens: list[int] = []
        self._num_closed = 0  # of these, whose text is given already
        self._held = ""  # text that may be the beginning of a stop string
        self.is_stopped = False  # a stop string is complete; what follows it is dropped

    def push(self, token: int) -> str:
        """The text that is certain now, behind what was returned before."""
        self._tokens.append(token)
        end = self._end_of_certain()
        if end <= self._num_closed:
            return ""
        text = self._open_text(end)
        self._tokens = self._tokens[self._num_closed :]
        self._num_closed = end - self._num_closed
        return self._pass_on(text)

    def finish(self) -> str:
        """The text that is held back still, once no more tokens come."""
        if self.is_stopped:
            return ""
        text = self._pass_on(self._open_text(len(self._tokens)))
        rest, self._held, self._tokens, self._num_closed = self._held, "", [], 0
        return text + rest

    def _end_of_certain(self) -> int:
        """The number of tokens whose text is final, whatever comes."""
        text, end = self._decode(self._tokens), len(self._tokens)
        if not text.endswith("\ufffd"):
            return end
        end -= MAX_BEGINNING
        while end > self._num_closed and not self._parts_at(text, end):
            end -= 1
        return end

    def _parts_at(self, text: str, end: int) -> bool:
        """True where a character ends there: the text of all is that of both sides."""
        before, after = self._decode(self._tokens[:end]), self._decode(self._tokens[end:])
        return text.startswith(before) and text[len(before) :].endswith(after)

    def _open_text(self, end: int) -> str:
        closed = self._decode(self._tokens[: self._num_closed])
        return self._decode(self._tokens[:end])[len(closed) :]

    def _pass_on(self, text: str) -> str:
        if self.is_stopped:
            return ""
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return held[: min(found)]
        num_kept = max((_overlap(held, stop) for stop in self._stops), default=0)
        end = len(held) - num_kept
        self._held = held[end:]
        return held[:end]


def _overlap(text: str, stop: str) -> int:
    """The number of characters at the end of `text` that are the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
