"""Chat templates against transformers' texts, and against strangers who write them."""

import json

import pytest

from loong_jax.data.chat_template import ChatTemplate
from loong_jax.errors import ConfigError
from tests.data import chat_cases, make_chat_fixture


def text_of(template, case):
    """Our text, or None where the template refuses."""
    ours = ChatTemplate(template, chat_cases.TOKENS, "here")
    try:
        return ours.render(case.messages, tools=case.tools, **case.options)
    except ConfigError:
        return None


def test_every_text_is_that_of_transformers():
    expected = json.loads(make_chat_fixture.FIXTURE.read_text())["texts"]
    cases = chat_cases.all_cases()
    assert len(expected) == len(cases)
    assert sum(text is not None for text in expected) >= 100
    for (name, case), text in zip(cases, expected, strict=True):
        assert (
            text is None
            if is_read_as_object(name, case)
            else text_of(chat_cases.TEMPLATES[name], case) == text
        ), (name, case)


def is_read_as_object(name, case):
    """A call with a JSON text, on which this template fails in transformers."""
    calls = [call for message in case.messages for call in message.get("tool_calls", ())]
    is_text = any(isinstance(call["function"]["arguments"], str) for call in calls)
    return name == "tagged_thinking" and is_text


@pytest.mark.peers
def test_random_conversations_are_those_of_the_transformers_that_is_installed():
    pytest.importorskip("transformers")
    num_texts = 0
    for name, template in chat_cases.TEMPLATES.items():
        for case in (*chat_cases.CASES, *chat_cases.random_cases(name, 60)):
            expected = make_chat_fixture.transformers_text(template, case)
            if not is_read_as_object(name, case):
                assert text_of(template, case) == expected, (name, case)
            num_texts += expected is not None
    assert num_texts > 300


def test_a_template_for_tools_is_taken_where_there_are_tools():
    both = {"default": "plain", "tool_use": "tools: {{ tools|length }}", "rag": "x"}
    template = ChatTemplate(both, {}, "here")
    messages = [chat_cases.USER]
    assert template.render(messages) == "plain"
    assert template.render(messages, tools=[chat_cases.TOOL]) == "tools: 1"
    with pytest.raises(ConfigError, match="default"):
        ChatTemplate({"rag": "x"}, {}, "here")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace(_x=1) %}", "_x"),
        ("{{ dict.__subclasses__() }}", "unsafe"),
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ messages[7].content.text }}", "refuses"),
        ("{% for m in messages %}{{ m.content + 1 }}{% endfor %}", "refuses"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses"),
        ("{{ 'x' * 10 ** 12 }}", "refuses"),
    ],
)
def test_what_a_template_may_not_do_is_an_error_with_its_name(program, said):
    with pytest.raises(ConfigError, match=said) as caught:
        ChatTemplate(program, {}, "models/this").render([chat_cases.USER])
    assert "models/this" in str(caught.value)


def test_what_is_no_template_is_said_when_it_is_read():
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate("a\n{% for %}", {}, "here")
    with pytest.raises(ConfigError, match="no message"):
        ChatTemplate("a", {}, "here").render([])


def test_arguments_that_are_json_texts_are_read_where_a_template_needs_objects():
    template = ChatTemplate(chat_cases.TEMPLATES["tagged_thinking"], {}, "here")
    texts = [
        template.render(chat_cases.turns_of_tools(arguments))
        for arguments in ({"code": "1", "n": 2}, '{"code": "1", "n": 2}')
    ]
    assert texts[0] == texts[1]
    assert "<longcat_arg_key>n</longcat_arg_key>" in texts[0]
