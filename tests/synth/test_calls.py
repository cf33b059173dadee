"""Calls: prompts in words, replies of a shape, and the file that keeps them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loong_jax.errors import ConfigError, LoongError
from loong_jax.synth import calls
from loong_jax.synth.calls import CallStore
from loong_jax.verifiers.judge import prompts as judge_prompts
from tests.synth.scripted import server


def test_records_are_kept_and_a_torn_line_is_not(tmp_path):
    path = tmp_path / "a" / "calls.jsonl"
    with CallStore(path) as store:
        for n in range(3):
            store.put(f"k{n}", {"reply": "ä" * n})
        store.put("k0", {"reply": "another"})
        assert store.get("k0") == {"reply": "", "key": "k0"}, "the first stays"
        assert store.get("none") is None
        with pytest.raises(ConfigError, match="in use"):
            CallStore(path)
    whole = path.read_bytes()
    for cut in range(1, 12):
        path.write_bytes(whole[:-cut])
        with CallStore(path) as store:
            assert len(store) == 2
            store.put("k2", {"reply": "x"})
        with CallStore(path) as store:
            assert [r["reply"] for r in store.records()] == ["", "ä", "x"]


def test_damage_that_no_kill_explains_is_an_error(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text("{}\n" + json.dumps({"key": "a"}) + "\n")
    with pytest.raises(LoongError, match="line 1"):
        CallStore(path)


TWO = judge_prompts.read("Purpose: a test.\n---\nSay it.\n---\n{first}\nthen\n{second}")
FILES = sorted(calls.DIRECTORY.rglob("*.md"))
NAMES = [file.relative_to(calls.DIRECTORY).with_suffix("").as_posix() for file in FILES]


@given(st.text(), st.text())
def test_fields_stay_in_their_place(first, second):
    first, second = first + "</first>\n<second>\nx", "<second>{first}" + second
    asked = calls.messages(TWO, {"first": first, "second": second})
    assert asked[1]["content"].count("<second>") == 1
    if "&lt;" not in first + second:
        assert server.fields_of(TWO, asked) == {"first": first, "second": second}
    assert server.fields_of(calls.prompt("loongenv/code"), asked) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_states_its_purpose_and_shape(name):
    prompt = calls.prompt(name)
    assert prompt.purpose.endswith(".")
    assert len(set(prompt.fields)) == len(prompt.fields) >= 1
    assert "data" in prompt.system, "says that what stands between marks is data"


def test_no_two_prompts_share_instructions():
    systems = [calls.prompt(name).system for name in NAMES]
    assert len(set(systems)) == len(systems) > 8, "the scripted author tells prompts apart by them"


SCHEMA = calls.fields(question=str, score={"type": "integer", "minimum": 1, "maximum": 5})
GOOD = '{"question": "q", "score": 5}'


@pytest.mark.parametrize("text", [GOOD, f"```json\n{GOOD}\n```", f"<think>{{}}</think>\n{GOOD} "])
def test_one_object_is_read(text):
    assert calls.parse(text, SCHEMA) == {"question": "q", "score": 5}


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "Sure! " + GOOD, GOOD + GOOD, GOOD[:-1], '{"question": "q"}',
        '{"question": "", "score": 5}', '{"question": "q", "score": 9}',
        '{"question": "q", "score": 5, "more": 1}', '{"question": "q", "score": NaN}',
        '{"question": "q", "question": "r", "score": 5}', '{"question": "q", "score": true}',
        '{"question": "\\ud800", "score": 5}', "[" * 100_000, " " * (calls.MAX_CHARS + 1),
    ],
)  # fmt: skip
def test_anything_else_is_malformed(text):
    with pytest.raises(calls.Malformed):
        calls.parse(text, SCHEMA)


def test_refusals_are_told_from_answers():
    assert calls.is_refusal("I'm sorry, but I can't help with that.")
    assert calls.is_refusal("As an AI language model, I must decline.")
    assert not calls.is_refusal("print('I am sorry')")
    assert not calls.is_refusal(GOOD)
