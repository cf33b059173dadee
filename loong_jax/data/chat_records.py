"""Conversations to learn from: JSON lines, and their tokens with the loss on what was answered.

A line has `messages`, a list of objects with `role` and `content` as chat templates take them, and
perhaps `tools`; or `prompt` and `response`. Other keys are left alone.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loong_jax.data import json_files
from loong_jax.data.json_files import BadLine
from loong_jax.data.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool", "ipython", "observation")


class Conversation(NamedTuple):
    """A conversation to train on: all its answers, or the last one alone."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    line: int = 0
    last_alone: bool = False


def read(file: Path) -> list[Conversation]:
    """All conversations of a file. ConfigError names the first lines that are none."""
    return json_files.read_lines(file, _conversation, noun="conversation")


def taught(conversations: Sequence[Conversation], tokenizer: Tokenizer) -> list[Conversation]:
    """The conversations, or each answer of one alone where its rendering does not only grow.

    Templates that drop earlier thinking show an answer otherwise once another one follows.
    """
    found = []
    for one in conversations:
        told = itertools.chain([("", "", "")], _answers(one, tokenizer))
        if all(
            asked.startswith(before) and whole.startswith(asked)
            for (_, _, before), (_, asked, whole) in itertools.pairwise(told)
        ):
            found.append(one)
            continue
        for place, message in enumerate(one.messages):
            if message["role"] == "assistant":
                messages = one.messages[: place + 1]
                found.append(one._replace(messages=messages, last_alone=True))
    return found


def encode(tokenizer: Tokenizer, one: Conversation) -> dict[str, np.ndarray]:
    """`tokens`, and `loss_mask`: true for what answers hold, their end tokens included."""
    tokens: list[int] = []
    mask: list[bool] = []
    done = ""
    for said, asked, whole in _answers(one, tokenizer):
        before = tokenizer.encode(asked.removeprefix(done))
        if not done and tokenizer.chat is None and tokenizer.bos_id is not None:
            before = [tokenizer.bos_id, *before]
        answer = tokenizer.encode(whole[len(asked) :] if whole.startswith(asked) else said)
        end = next((n for n, t in enumerate(answer[::-1]) if t in tokenizer.end_ids), None)
        if end is None:
            answer, end = [*answer, tokenizer.eos_id], 0
        tokens += [*before, *answer]
        mask += [False] * len(before) + [True] * (len(answer) - end) + [False] * end
        done = whole
    return {"tokens": np.array(tokens, np.int32), "loss_mask": np.array(mask)}


def _answers(one: Conversation, tokenizer: Tokenizer) -> Iterator[tuple[str, str, str]]:
    """Each answer, the rendered text before it with the generation prompt, and that with it."""
    first = len(one.messages) - 1 if one.last_alone else 0
    for place, message in enumerate(one.messages[first:], first):
        if message["role"] == "assistant":
            asked = _render(one, place, tokenizer, add_generation_prompt=True)
            whole = _render(one, place + 1, tokenizer, add_generation_prompt=False)
            yield str(message.get("content") or ""), asked, whole


def _render(one: Conversation, count: int, tokenizer: Tokenizer, **settings: Any) -> str:
    messages = one.messages[:count]
    if tokenizer.chat is None:
        return "\n".join(str(message.get("content") or "") for message in messages)
    tools = [dict(tool) for tool in one.tools] or None
    return tokenizer.chat.render([dict(m) for m in messages], tools=tools, **settings)


def _conversation(record: dict[str, Any], number: int) -> Conversation:
    messages = record.get("messages")
    if messages is None:
        texts = record.get("prompt"), record.get("response")
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise BadLine(
                f"has the keys {sorted(record)}. Give messages, or prompt and response as texts"
            )
        roles = ("user", "assistant")
        pairs = zip(roles, texts, strict=True)
        messages = [{"role": role, "content": text} for role, text in pairs]
    tools = record.get("tools") or []
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise BadLine(
            f"has messages={messages!r:.80}. Give a list of objects with content and a role of "
            f"{ROLES}"
        )
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadLine(f"has tools={tools!r:.80}. Give a list of objects")
    if not messages or messages[-1]["role"] != "assistant":
        raise BadLine("does not end with a message of the assistant, which is what is learnt")
    return Conversation(tuple(messages), tuple(tools), number)


def _is_message(message: object) -> bool:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return False
    content = message.get("content")
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))
