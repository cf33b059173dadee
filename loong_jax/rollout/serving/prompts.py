"""Texts and conversations to tokens.

`template` is the chat template that comes with the weights. `plain` is how our own recipes pose a
problem: <bos> and the text; the messages of a conversation follow each other as they are. `longcat`
is how LongCat-Flash-Chat holds a conversation, for weights that came without their template: rounds
are numbered from 0, and an answer ends with a tag of its own.
"""

import json
from collections.abc import Mapping, Sequence
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
