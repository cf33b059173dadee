"""Bodies, and conversations as text."""

import pytest

from loong_jax.data.chat_template import ChatTemplate
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rollout.serving import openai_schema
from loong_jax.rollout.serving import request as requests
from loong_jax.rollout.serving.openai_schema import ApiError, Asked, TextOffsets
from loong_jax.rollout.serving.request import Message, ServingLimits


def test_every_field_arrives():
    body = dict(
        prompt=["a", [1, 2]],
        max_tokens=3,
        n=2,
        best_of=2,
        temperature=0.5,
        top_p=0.25,
        top_k=-1,
        min_p=0.125,
        seed=-4,
        stop="x",
        stream=True,
        stream_options={"include_usage": True},
        logprobs=0,
        model="m",
        user="u",
        echo=False,
        presence_penalty=0,
        suffix=None,
    )
    assert openai_schema.parse(body, is_chat=False, limits=ServingLimits()) == Asked(
        prompts=("a", (1, 2)),
        sampling=dict(
            max_tokens=3, temperature=0.5, top_p=0.25, top_k=0, min_p=0.125, stops=("x",)
        ),
        num_samples=2,
        seed=-4,
        streams=True,
        wants_usage=True,
        wants_log_probs=True,
    )
    body = dict(
        messages=[
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
        ],
        max_tokens=3,
        max_completion_tokens=4,
        logprobs=False,
        top_logprobs=0,
    )
    asked = openai_schema.parse(body, is_chat=True, limits=ServingLimits())
    assert asked.messages == (Message("system", "s"), Message("user", "ab"))
    assert asked.sampling["max_tokens"] == 4
    assert not asked.wants_log_probs


def test_an_error_names_its_field():
    with pytest.raises(ApiError) as caught:
        openai_schema.parse(
            {"prompt": "a", "temperature": [1]}, is_chat=False, limits=ServingLimits()
        )
    assert caught.value.status == 400
    assert caught.value.body["error"] == {
        "message": "temperature is a JSON array, not a number.",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": None,
    }


def test_log_probabilities_stay_json():
    found = openai_schema.text_log_probs([b"a", b"bc"], [-0.5, -float("inf")], TextOffsets())
    assert found["token_logprobs"] == [-0.5, -9999.0]
    assert found["text_offset"] == [0, 1]


def test_tokens_inside_a_character_have_its_place_and_their_own_bytes():
    pieces = [b"a", b"\xf0\x9f", b"\x98", b"\x80b", b"\xff", b"c"]
    offsets = TextOffsets()
    found = openai_schema.text_log_probs(pieces[:3], [-1.0] * 3, offsets)["text_offset"]
    found += openai_schema.text_log_probs(pieces[3:], [-1.0] * 3, offsets)["text_offset"]
    assert found == [0, 1, 1, 1, 3, 4]  # of "a\U0001f600b\ufffdc"
    content = openai_schema.chat_log_probs(pieces, [-1.0] * 6)["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content) == b"".join(pieces)


TURNS = [
    Message("system", "S"),
    Message("user", "u"),
    Message("assistant", "a"),
    Message("user", "v"),
]


@pytest.mark.parametrize(
    ("roles", "wanted"),
    [
        ("u", "[Round 0] USER:0 ASSISTANT:"),
        ("suau", "SYSTEM:0 [Round 0] USER:1 ASSISTANT:2</longcat_s> [Round 1] USER:3 ASSISTANT:"),
        ("ua", "[Round 0] USER:0 ASSISTANT:1"),  # an answer that goes on
        ("usu", "[Round 0] USER:0 SYSTEM:1 [Round 1] USER:2 ASSISTANT:"),
        ("us", "[Round 0] USER:0 SYSTEM:1 ASSISTANT:"),
        ("uau", "[Round 0] USER:0 ASSISTANT:1</longcat_s> [Round 1] USER:2 ASSISTANT:"),
    ],
)
def test_a_conversation_ends_where_the_model_goes_on(roles, wanted):
    names = {"u": "user", "a": "assistant", "s": "system"}
    messages = [Message(names[role], str(i)) for i, role in enumerate(roles)]
    assert requests.chat_text(messages, "longcat") == wanted
    assert requests.chat_text(messages, "plain") == "\n".join("0123"[: len(roles)])


def test_instructions_alone_are_no_conversation():
    body = {"messages": [{"role": "developer", "content": "be brief"}]}
    with pytest.raises(ApiError, match="a message of the user"):
        openai_schema.parse(body, is_chat=True, limits=ServingLimits())


def test_the_server_alone_says_what_a_template_opens():
    body = {"messages": [{"role": "user", "content": "u"}]}
    variables = {"enable_thinking": False}
    asked = body | {"chat_template_kwargs": variables}
    assert openai_schema.parse(asked, is_chat=True, limits=ServingLimits()).variables == variables
    asked["chat_template_kwargs"] = {"tools": []}
    with pytest.raises(ApiError, match="chat_template_kwargs"):
        openai_schema.parse(asked, is_chat=True, limits=ServingLimits())


def test_the_template_of_the_weights_is_the_style_unless_another_is_asked_for():
    with_template, without = AsciiTokenizer(), AsciiTokenizer()
    with_template.chat = ChatTemplate("{{ messages[-1].content }}!", {}, "here")
    for model_type in ("longcat_flash", "qwen2"):
        config = f'{{"model_type": "{model_type}"}}'
        assert requests.choose_style(None, with_template, config) == "template"
        assert requests.choose_style("longcat", with_template, config) == "longcat"
    assert requests.choose_style(None, without, "{}") == "longcat"
    assert requests.choose_style(None, without, '{"model_type": "qwen2"}') == "plain"
    assert requests.choose_style(None, without, None) == "plain"
    with pytest.raises(ConfigError, match=r"chat_template\.jinja"):
        requests.choose_style("template", without, None)
    found = requests.chat_ids(with_template, TURNS[:2], "template")
    assert with_template.decode(found) == "u!"
    with_template.chat = ChatTemplate("{{ messages[0].content }}", {}, "here")
    with pytest.raises(ConfigError, match="cannot be continued"):
        requests.chat_ids(with_template, TURNS[:3], "template")
