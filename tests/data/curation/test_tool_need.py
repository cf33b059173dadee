"""Tool necessity by its definition; trajectories in one form, judged and sorted."""

import itertools

import pytest

from loong_jax.data.curation import stages, tool_need
from loong_jax.data.curation.tool_need import ToolNecessity, Trajectories, complexity, normalised
from loong_jax.verifiers import tool_calls


def attempts(right, num=10):
    return [i < right for i in range(num)]


def test_queries_stay_by_the_three_thresholds():
    stage = ToolNecessity(tau_1=0.3, tau_2=0.4, tau_3=0.3)
    pairs = list(itertools.product(range(11), range(11)))
    records = [
        {"outcomes_with_tools": attempts(w), "outcomes_without_tools": attempts(o)}
        for w, o in pairs
    ]
    outcome = stages.judge(stage, records)
    for i, (w, o) in enumerate(pairs):
        stays = w / 10 - o / 10 > 0.3 and w / 10 > 0.4 and o / 10 < 0.3
        assert stays == (i not in outcome.reasons), (w, o)
        if stays:
            assert outcome.notes[i]["tool_necessity"] == pytest.approx((w - o) / 10)
    assert {stages.counted(r) for r in outcome.reasons.values()} == {
        "solved without",
        "unsolved with",
        "little gain",
    }
    few = stages.judge(stage, [{"outcomes_with_tools": attempts(3, 3)}])
    assert few.reasons == {0: "too few attempts: 3, 0"}


def call(name, _id=None, **arguments):
    return {"name": name, "arguments": arguments} | ({"id": _id} if _id else {})


OPENAI = [
    {"role": "user", "content": "How warm is it in the capital of Peru?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function",
         "function": {"name": "capital", "arguments": '{"country": "Peru"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "Lima is the capital of Peru."},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c2", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}]},
    {"role": "tool", "tool_call_id": "c2", "content": "19 degrees"},
    {"role": "assistant", "content": "It is 19 degrees."},
]  # fmt: skip
TAGGED = [
    OPENAI[0],
    {"role": "assistant", "content": f'{tool_calls.OPEN}\n{{"name": "capital", "arguments": '
     f'{{"country": "Peru"}}}}\n{tool_calls.CLOSE}'},
    {"role": "tool", "content": "Lima is the capital of Peru."},
    {"role": "assistant", "content": f'{tool_calls.OPEN}\n{{"name": "weather", "arguments": '
     f'{{"city": "Lima"}}}}\n{tool_calls.CLOSE}'},
    {"role": "tool", "content": "19 degrees"},
    OPENAI[-1],
]  # fmt: skip


def without_ids(messages):
    names = {}
    for message in messages:
        for one in message.get("tool_calls", ()):
            names[one["id"]] = one["id"] = f"n{len(names)}"
        if "tool_call_id" in message:
            message["tool_call_id"] = names[message["tool_call_id"]]
    return messages


def test_both_forms_become_one():
    one, other = normalised(OPENAI), normalised(TAGGED)
    assert not isinstance(one, str)
    assert not isinstance(other, str)
    assert without_ids(one) == without_ids(other)
    assert [m["role"] for m in one] == ["user", "assistant", "tool", "assistant", "tool",
                                        "assistant"]  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (OPENAI[:-1], "last word"),
        (OPENAI[:4], "not answered"),
        ([OPENAI[0], OPENAI[2], OPENAI[-1]], "answers no call"),
        ([OPENAI[1], OPENAI[-1]], "before the answers"),
        ([{"role": "robot", "content": "x"}], "role"),
        ([{"role": "assistant", "content": f"{tool_calls.OPEN}x"}], "tags"),
        ([], "last word"),
    ],
)
def test_broken_trajectories_say_why(messages, why):
    assert why in normalised(messages)


def test_parallel_answers_are_put_in_order():
    calls = [call("a", "x"), call("b", "y")]
    found = normalised([
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "y", "content": "2"},
        {"role": "tool", "tool_call_id": "x", "content": "1"},
        {"role": "assistant", "content": "3"},
    ])  # fmt: skip
    assert [m["content"] for m in found] == ["", "1", "2", "3"]


def test_strata_of_complexity():
    assert complexity(normalised(OPENAI)).stratum == "multi-turn/sequential/multi-hop"
    assert complexity(normalised(OPENAI)).num_dependent == 1
    direct = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    assert complexity(direct).stratum == "single-turn/sequential/answer"
    both = [
        {"role": "user", "content": "Weather in Lima and Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [
            call("weather", "1", city="Lima"), call("weather", "2", city="Oslo")]},
        {"role": "tool", "tool_call_id": "1", "content": "19"},
        {"role": "tool", "tool_call_id": "2", "content": "3"},
        {"role": "assistant", "content": "19 and 3"},
    ]  # fmt: skip
    assert complexity(normalised(both)).stratum == "single-turn/parallel/lookup"
    book = call("book", "c3", at="19 degrees")
    long = [*OPENAI[:-1], {"role": "assistant", "content": "", "tool_calls": [book]},
            {"role": "tool", "tool_call_id": "c3", "content": "done"}, OPENAI[-1]]  # fmt: skip
    assert complexity(normalised(long)).depth == "planning"


def test_panels_decide():
    good = {"correctness": [1, 0.5, None], "consistency": [1], "completeness": [0.6]}
    records = [
        {"messages": OPENAI, "judgements": good},
        {"messages": OPENAI, "judgements": good | {"consistency": [0.2, 0.9]}},
        {"messages": OPENAI, "judgements": good | {"completeness": [None]}},
        {"messages": OPENAI[:4], "judgements": good},
        {"prompt": "none"},
    ]
    outcome = stages.judge(Trajectories(), records)
    assert {i: stages.counted(r) for i, r in outcome.reasons.items()} == {
        1: "judged",
        2: "too few judges",
        3: "form",
        4: "form",
    }
    assert outcome.notes[0]["stratum"] == "multi-turn/sequential/multi-hop"
    assert outcome.notes[0]["messages"] == tool_need.normalised(OPENAI)
