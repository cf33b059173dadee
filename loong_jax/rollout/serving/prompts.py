"""Texts and conversations to tokens.

`plain` is how our own recipes pose a problem: <bos> and the text; the messages of a conversation
follow each other as they are. `longcat` is our reading of how LongCat-Flash holds a conversation:
rounds are numbered from 0, and an answer ends with a tag of its own. It was not compared with the
template that comes with the published weights.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from loong_jax.data.tokenizer import Tokenizer, load_tokenizer

__all__ = ["ChatStyle", "Message", "chat_text", "load_tokenizer", "text_tokens"]

ChatStyle = Literal["plain", "longcat"]


class Message(NamedTuple):
    role: Literal["system", "user", "assistant"]
    content: str


def text_tokens(tokenizer: Tokenizer, text: str, *, begin: bool = True) -> np.ndarray:
    """int32, with <bos> in front if `begin`. Raises ValueError for text that has no tokens."""
    start = [tokenizer.bos_id] if begin and tokenizer.bos_id is not None else []
    return np.array([*start, *tokenizer.encode(text)], np.int32)


def chat_text(messages: Sequence[Message], style: ChatStyle) -> str:
    """A conversation that the model is to go on with, without <bos>."""
    return _plain(messages) if style == "plain" else _longcat(messages)


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


def _longcat(messages: Sequence[Message]) -> str:
    text, num_rounds = "", 0
    for message in messages:
        if message.role == "system":
            text += f"SYSTEM:{message.content}"
        elif message.role == "user":
            space = " " if text else ""
            text += f"{space}[Round {num_rounds}] USER:{message.content} ASSISTANT:"
            num_rounds += 1
        else:
            text += f"{message.content}</longcat_s>"
    return text
