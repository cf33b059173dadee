"""Which answers a judge is asked about, and which of its replies are read."""

import json
import time
import tomllib
from pathlib import Path

import pytest

from loong_jax.verifiers.judge import gate, replies

CASES = tomllib.loads(Path(__file__).with_name("gate.toml").read_text(encoding="utf-8"))


def is_refused(answer, gold="42"):
    return gate.refuse(answer, gold, max_chars=2000) is not None


@pytest.mark.parametrize("answer", CASES["without_content"])
def test_answers_without_content_are_refused(answer):
    assert is_refused(answer)
    assert is_refused(answer.upper())
    assert is_refused(f"**{answer}**\n")
    assert not is_refused(answer, gold=answer)


@pytest.mark.parametrize(("answer", "gold"), CASES["with_content"])
def test_answers_with_content_pass(answer, gold):
    assert not is_refused(answer, gold), gate.refuse(answer, gold, max_chars=2000)


@pytest.mark.parametrize("answer", CASES["speaks_to_the_judge"])
def test_answers_that_speak_to_the_judge_are_refused(answer):
    assert is_refused(answer)
    assert is_refused(answer.upper())
    assert is_refused(f"It is 41. {answer}" if "\n" not in answer and ":" not in answer else answer)


@pytest.mark.parametrize(
    "text",
    ["let us " * 280, "the answer is " * 140, "\n" * 1990 + "x", "首先我们" * 490,
     "treat it as " * 160,
     "solution " * 220 + "\u00e9%", "a" * 1999, "ignore the " * 180, "\\boxed" * 330, "A " * 990],
)  # fmt: skip
def test_the_gate_takes_linear_time(text):
    start = time.thread_time()
    gate.refuse(text, "42", max_chars=2000)
    gate.refuse(text, "the answer " * 180, max_chars=2000)
    assert time.thread_time() - start < 0.5


SAID = '{"reasoning": "ok", "verdict": "correct"}'


@pytest.mark.parametrize(
    "reply",
    [
        SAID,
        f"```json\n{SAID}```",
        f"```JSON\n{SAID}\n```",
        f"```\n{SAID}\n```",
        f"~~~json\n{SAID}\n~~~",
        f"```json\r\n{SAID}\r\n```\r\n",
        f"{SAID}</longcat_s>",
        f"```json\n{SAID}\n```<|im_end|>\n",
        f"<longcat_think>x</longcat_think>\n{SAID}",
        f"x</think>\n\n```json\n{SAID}\n```",
        f"<|channel|>analysis<|message|>x<|channel|>final<|message|>{SAID}",
        '{"reasoning": "it ends by </think>, so yes", "verdict": "correct"}',
        '{"reasoning": "```json\\n{}\\n``` is no answer", "verdict": "correct"}',
        f"  \n{SAID.replace(' ', '  ')}\n\n",
    ],
)
def test_one_object_in_a_frame_is_read(reply):
    assert replies.said(reply, with_reasoning=True)[0] == "correct"
    met = reply.replace('"verdict":', '"met":').replace('"correct"', '{"1": true}')
    assert replies.met(met, ["1"])[0] == {"1": True}


@pytest.mark.parametrize(
    "reply",
    [
        f"Here it is: {SAID}",
        f"{SAID}\nI hope so.",
        f"{SAID}{SAID}",
        f"```json\n{SAID}\n```\n```json\n{SAID}\n```",
        f"```json\n{SAID}\n```\nDone.",
        f"```python\n{SAID}\n```",
        f"<think>{SAID}</think>",
        f"<think>{SAID}",
        f"[{SAID}]",
        json.dumps(SAID),
        SAID.replace("correct", "Correct"),
        SAID.replace('"correct"', "true"),
        SAID.replace('"correct"', '["correct"]'),
        "[" * 50_000,
        SAID.replace('"ok"', '" "'),
        SAID.replace("}", ', "more": 1}'),
        SAID.replace("}", ', "verdict": "wrong"}'),
        "'".join(SAID.split('"')),
        "",
    ],
)
def test_what_is_more_or_less_than_that_is_not(reply):
    with pytest.raises(replies.MalformedReply):
        replies.said(reply, with_reasoning=True)


def test_a_judge_may_be_unsure_and_answers_every_criterion():
    thought = f"<think>{SAID}</think>\n```json\n" + '{"verdict": "unsure"}\n```'
    assert replies.said(thought, with_reasoning=False)[0] == "unsure"
    for met in ('{"1": true}', '{"1": 1, "2": true}'):
        with pytest.raises(replies.MalformedReply):
            replies.met(f'{{"reasoning": "r", "met": {met}}}', ["1", "2"])
