"""Conversations and chat templates that go through transformers and through us alike.

The templates are written here, each in the style of a family that is published: they use what those
use of Jinja. `make_chat_fixture.py` stores what transformers makes of the cases.
"""

import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

TEMPLATES = {
    path.stem: path.read_text("utf-8")
    for path in sorted((Path(__file__).parent / "chat_templates").glob("*.jinja"))
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": 'Runs a program & says "what" it <prints>: é, 中, 😀.',
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["code"],
        },
    },
}


class Case(NamedTuple):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    options: Mapping[str, Any] = MappingProxyType({})


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(arguments, name="python"):
    return {"type": "function", "id": "1", "function": {"name": name, "arguments": arguments}}


def turns_of_tools(arguments, *, content="", count=1):
    calls = [call(arguments)] * count
    return [
        say("user", "What is 6 * 7?"),
        say("assistant", content, tool_calls=calls, reasoning_content="I compute."),
        *[say("tool", '{"out": "42\\n"}') for _ in calls],
    ]


SYSTEM, USER = say("system", " Be brief. "), say("user", "hi é中😀 <|im_end|>\n")
ANSWER = say("assistant", "<think>\nlong ago\n</think>\n\nHello! ")
PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
CASES = [
    Case([USER]),
    Case([SYSTEM, USER]),
    Case([SYSTEM]),
    Case([USER], options={"add_generation_prompt": False}),
    Case([SYSTEM, USER, ANSWER, say("user", "and?")]),
    Case([USER, ANSWER, say("user", "and?"), ANSWER], options={"add_generation_prompt": False}),
    Case([USER, ANSWER, SYSTEM, say("user", "and?")]),
    Case([USER, say("assistant", "It is ")], options={"continue_final_message": True}),
    Case([USER, say("assistant", "x" * 9)], options={"continue_final_message": True}),
    Case([USER, say("assistant", "")], options={"continue_final_message": True}),
    Case([USER, say("assistant", PARTS)], options={"continue_final_message": True}),
    Case([USER], tools=[TOOL]),
    Case([SYSTEM, USER], tools=[TOOL, TOOL]),
    Case(turns_of_tools({"code": "print(6 * 7)\n", "n": 1}), tools=[TOOL]),
    Case(turns_of_tools('{"code": "print(6 * 7)\\n"}', content="Let me see."), tools=[TOOL]),
    Case(turns_of_tools({"code": "é<b>'\"", "n": 0.5}, count=2), tools=[TOOL]),
    Case([*turns_of_tools({}), say("assistant", "42"), say("user", "sure?")], tools=[TOOL]),
    Case([USER], options={"enable_thinking": False}),
    Case([USER], options={"enable_thinking": True}),
    Case(
        [USER, say("assistant", "a", reasoning_content="old"), USER, say("assistant", "b")],
        options={"save_history_reasoning_content": True, "add_generation_prompt": False},
    ),
    Case([USER, say("assistant", "a", thinking="old"), USER]),
    Case([USER, say("assistant", None, tool_calls=[call({"n": None, "code": [1, {"a": True}]})])]),
    Case([say("user", "Ünï\u2028\u200d‮x\x00")], options={"date_string": "1 Jan 2026"}),
    Case([say("critic", "no such role"), USER]),
    Case([say("user", PARTS)]),
]


def random_cases(seed, count):
    """Conversations of any length with odd texts, tools and thinking."""
    chance = random.Random(seed)
    letters = [*'a \né中😀<|>\\"\u200d', "</think>", "{{", "}}"]

    def text():
        return "".join(chance.choice(letters) for _ in range(chance.randrange(9)))

    for _ in range(count):
        messages = [say("system", text())] if chance.random() < 0.4 else []
        for _ in range(chance.randrange(1, 4)):
            messages.append(say("user", text()))
            extra = {"reasoning_content": text()} if chance.random() < 0.4 else {}
            if chance.random() < 0.4:
                arguments = {"code": text(), "n": chance.randrange(9)}
                extra["tool_calls"] = [call(arguments) for _ in range(chance.randrange(1, 3))]
            messages.append(say("assistant", text(), **extra))
            messages += [say("tool", text()) for _ in extra.get("tool_calls", ())]
        options = {}
        if messages[-1]["role"] == "assistant" and chance.random() < 0.3:
            options["continue_final_message"] = True
        elif chance.random() < 0.7:
            messages.append(say("user", text()))
        for name in ("enable_thinking", "save_history_reasoning_content"):
            if chance.random() < 0.3:
                options[name] = chance.random() < 0.5
        yield Case(messages, [TOOL] if chance.random() < 0.4 else None, options)


def all_cases():
    """(name of the template, case)"""
    return list(itertools.product(TEMPLATES, CASES))
