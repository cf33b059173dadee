"""Forms of a response: rendered and read again, told from broken ones, in linear time."""

import dataclasses
import time

import pytest

from loong_jax.problems import response, verdict
from loong_jax.problems.response import FORMS, read, render
from loong_jax.problems.verdict import Verdict

TAGGED = FORMS["tagged"]
THINK, ANSWER = "<longcat_think>a</longcat_think>", "<longcat_answer>b</longcat_answer>"
BROKEN_TAGS = [
    "", "b", ANSWER, THINK, ANSWER + THINK, THINK + ANSWER + ANSWER, THINK + ANSWER + "more",
    "more" + THINK + ANSWER, THINK + "more" + ANSWER, THINK + THINK + ANSWER, THINK + ANSWER[:-1],
    "<longcat_think>" + ANSWER + "</longcat_think>", THINK + ANSWER.replace("b", "<eos>"),
]  # fmt: skip
BROKEN = {
    "tagged": BROKEN_TAGS,
    "longcat": ["", "<longcat_think>t", "<longcat_think>t</longcat_think>",
                "<longcat_think>t</longcat_think><longcat_answer>7</longcat_answer>",
                "<think>t</think>7"],
    "think": ["<|im_end|>", "<think>t", "<think>t</think>", "<think>a</think>b</think>7",
              "x<think>t</think>7"],
    "think-answer": ["<think>t</think>7", "<answer>7</answer>", "<think>t</think><answer>7",
                     "<think>t</think><answer>7</answer><answer>8</answer>",
                     "<think>t</think>so<answer>7</answer>"],
    "boxed": ["7", "\\boxed{}", "\\boxed{7", "<think>\\boxed{7}"],
    "plain": ["", "<think>t</think>7", "<answer>7</answer>", "<longcat_think>7"],
    "completion": ["", "\n7", "<think>7\n"],
}  # fmt: skip


def test_every_form_has_broken_examples():
    assert set(BROKEN) == set(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_what_is_rendered_is_read(name):
    form = FORMS[name]
    for thinking, answer in (("so", "7"), ("a\nb", "x < y {z}"), ("", "12")):
        for end in ("", "<|im_end|>", "</longcat_s>\n<longcat_pad>"):
            found = read(render(form, thinking, answer) + end, form)
            assert found.is_well_formed
            assert found.answer == answer
            if form.think_close or form.boxed:
                assert found.thinking == thinking
        if name != "boxed" and not form.stop:
            assert read(render(form, thinking, answer)).answer.strip() == answer


@pytest.mark.parametrize("name", FORMS)
def test_broken_forms_are_told(name):
    for text in BROKEN[name]:
        assert not read(text, FORMS[name]).is_well_formed, text


def test_a_template_may_open_the_thinking():
    for name in ("longcat", "think", "think-answer"):
        form = FORMS[name]
        whole = render(form, "so", "7")
        assert read(whole.removeprefix(form.think_open), form) == read(whole, form)
        prompted = dataclasses.replace(form, opening="prompt")
        assert render(prompted, "so", "7") == whole.removeprefix(form.think_open)
        assert read(render(prompted, "so", "7"), prompted) == read(whole, form)
        assert read("so it is 7", prompted) == ("so it is 7", "", False)
    assert not read("so</longcat_think><longcat_answer>7</longcat_answer>", TAGGED).is_well_formed


def test_a_prompt_stands_in_the_template():
    form = dataclasses.replace(FORMS["completion"], template="1 + 1 = 2\n{prompt} = ")
    assert form.prompt_of("{2} + 3") == "1 + 1 = 2\n{2} + 3 = "
    assert read("5\n6 + 7 = 13", form).answer == "5"
    with pytest.raises(ValueError, match="no place for the problem"):
        dataclasses.replace(form, template="prompt")
    with pytest.raises(ValueError, match="without its pair"):
        dataclasses.replace(form, think_open="<think>")


def test_end_tokens_are_taken_off_at_the_end_alone():
    for end in response.END_TEXTS:
        assert response.without_end(f"a {end} b {end}\n{end} ") == f"a {end} b "
    assert response.without_end("a\n") == "a\n"
    assert response.without_end("the <s>old</s>") == "the <s>old</s>"
    assert response.without_end("<s>a</s> b</s>") == "<s>a</s> b"


def test_tags_that_a_text_speaks_of_are_content():
    for text in (
        "print('<answer>')",
        "The tag <think> opens it.",
        "`<longcat_think>` opens it.",
        "a `</think>` b",
        "```html\n<think>\n<answer>1</answer>\n</think>\n```",
    ):
        assert read(text) == ("", text, True)


def test_blocks():
    (block,) = response.blocks("1. So:\n   ```py x\n   a\n     b\n   ```\nDone.")
    assert (block.info, block.body, block.is_closed) == ("py x", "a\n  b\n", True)
    first, second = response.blocks("```a\nx\n```b\ny\n~~~\n``\n````")
    assert (first.body, first.is_closed, second.body, second.is_closed) == (
        "x\n", False, "y\n~~~\n``\n", True,
    )  # fmt: skip
    assert [block.body for block in response.blocks("```\nx```\nend")] == ["x"]


@pytest.mark.parametrize(
    "text",
    [
        "<think>" * 10**5,
        "</think>" * 10**5,
        "<think></think>" * 10**5,
        "```\n" * 10**5 + "<think>",
        "```a\n" * 10**5 + "</think>",
        "```" + " " * 10**6 + "`",
        "- " * 10**5 + "</think><think>",
        "~" * 10**6 + "`\n</think>",
        "<eos>" * 10**5,
        "<answer>" * 10**5,
        "think \\boxed{" * 10**5,
        "think" + " " * 10**6 + "<answer>",
        "<longcat_think>" + "</longcat_think><longcat_answer>" * 30000,
    ],
)
def test_hostile_texts_cost_little(text):
    """By tags, and by a form with tags of both kinds, of one kind, with a box and without any."""
    start = time.thread_time()
    for name in (None, "tagged", "think", "boxed", "plain"):
        read(text, FORMS.get(name))
    verdict.extract_answer(text)
    assert time.thread_time() - start < 5


# ---- verdicts on the form


@pytest.mark.parametrize("answer", ["7*x+9", "", " a b ", "\n", "<b>", "1" * 10**6])
def test_finds_the_answer_of_a_whole_response(answer):
    assert verdict.extract_answer(response.render_response("thinking", answer)) == answer


@pytest.mark.parametrize("text", BROKEN_TAGS)
def test_a_broken_form_is_wrong_and_not_ungradable(text):
    judged = verdict.extract_answer(text)
    assert isinstance(judged, Verdict)
    assert (judged.outcome, judged.reason) == ("wrong", "format")


def test_an_answer_in_tags_without_thinking_says_what_it_lacks():
    judged = verdict.answer_of("<longcat_answer>5 3</longcat_answer>")
    assert isinstance(judged, Verdict)
    assert judged.evidence == "<longcat_answer> without </longcat_think> before it"
