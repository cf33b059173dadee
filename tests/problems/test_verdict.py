import time

import pytest

from loong_jax.problems import response, verdict
from loong_jax.problems.verdict import Verdict

THINK, ANSWER = "<longcat_think>a</longcat_think>", "<longcat_answer>b</longcat_answer>"


@pytest.mark.parametrize("answer", ["7*x+9", "", " a b ", "\n", "<b>", "1" * 10**6])
def test_finds_the_answer_of_a_whole_response(answer):
    assert verdict.extract_answer(response.render_response("thinking", answer)) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b",
        ANSWER,
        THINK,
        ANSWER + THINK,
        THINK + ANSWER + ANSWER,
        THINK + ANSWER + "more",
        "more" + THINK + ANSWER,
        THINK + "more" + ANSWER,
        THINK + THINK + ANSWER,
        THINK + ANSWER[:-1],
        "<longcat_think>" + ANSWER + "</longcat_think>",
        THINK + ANSWER.replace("b", "<eos>"),
    ],
)
def test_a_broken_form_is_wrong_and_not_ungradable(text):
    judged = verdict.extract_answer(text)
    assert isinstance(judged, Verdict)
    assert (judged.outcome, judged.reason) == ("wrong", "format")
    assert not response.read(
        text, response.FORMS["tagged"]
    ).is_well_formed  # the form itself agrees


def test_an_answer_in_tags_without_thinking_says_what_it_lacks():
    judged = verdict.answer_of("<longcat_answer>5 3</longcat_answer>")
    assert isinstance(judged, Verdict)
    assert judged.evidence == "<longcat_answer> without </longcat_think> before it"


def test_a_response_full_of_tags_costs_little():
    text = "<longcat_think>" + "</longcat_think><longcat_answer>" * 30000
    start = time.thread_time()
    assert isinstance(verdict.extract_answer(text), Verdict)
    assert time.thread_time() - start < 0.5
