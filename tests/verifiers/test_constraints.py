"""Constraints on the form of an answer, and calls of tools."""

import json

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import constraints, get_verifier, tool_calls

LIST = "# Title\n\nIntro line.\n\n- one\n* two\n+ three\n\n1. a\n2) b\n\n"
LIST += "```\ncode\n```\n[name] [place]"


def kept(constraint, text):
    return constraints.check([constraint], text)[0].is_kept


@pytest.mark.parametrize(
    ("of", "text", "number"),
    [
        ("words", "One two, don't well-known.", 4),
        ("words", "我喜欢猫 cats", 5),
        ("words", "ありがとう", 5),
        ("characters", "  abc\n", 3),
        ("sentences", "One. Two! Three? ...", 3),
        ("sentences", "一。二\uff01三", 3),
        ("lines", LIST, 11),
        ("paragraphs", LIST, 5),
        ("bullets", LIST, 3),
        ("numbered_items", LIST, 2),
        ("headings", LIST, 1),
        ("code_blocks", LIST, 1),
        ("placeholders", LIST, 2),
        ({"text": "cat"}, "Cat, cats and a CAT.", 2),
    ],
)
def test_counts(of, text, number):
    for limits, expected in (
        ({"exactly": number}, True),
        ({"exactly": number + 1}, False),
        ({"at_least": number, "at_most": number}, True),
        ({"at_least": number + 1}, False),
        ({"at_most": number - 1}, False),
    ):
        assert kept({"kind": "count", "of": of, **limits}, text) is expected, limits


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        ({"kind": "include", "texts": ["cat", "dog"]}, "A DOG, a cat.", "A dog, cats."),
        ({"kind": "include", "texts": ["Cat"], "exact": True}, "Cats", "cat"),
        ({"kind": "exclude", "texts": [","]}, "a b", "a, b"),
        ({"kind": "exclude", "texts": ["cat"]}, "concatenate", "The cat."),
        ({"kind": "starts_with", "text": "Dear"}, "Dear all", "dear all"),
        ({"kind": "ends_with", "text": "Bye."}, "x Bye.", "Bye. x"),
        ({"kind": "case", "is": "lower"}, "all small 1", "Not"),
        ({"kind": "case", "is": "upper"}, "ALL 1", "nOT"),
        ({"kind": "script", "is": "cyrillic"}, "привет 5!", "привет a"),
        ({"kind": "script", "is": "CJK"}, "你好", "你好 ok"),
        ({"kind": "json"}, "[1]", "[1"),
        ({"kind": "json", "keys": ["a"]}, '```json\n{"a": 1}\n```', '{"b": 1}'),
    ],
)
def test_kinds_on_both_sides(constraint, good, bad):
    assert kept(constraint, good)
    assert not kept(constraint, bad)
    assert kept(constraint, f"<think>{bad}</think>{good}")  # thinking is left out
    assert not kept(constraint, f"<think>{good}</think>{bad}")


@pytest.mark.parametrize("text", ["", " ", "!!!", "\n\n", "x" * 300_000])
def test_no_content_keeps_nothing(text):
    for constraint in (
        {"kind": "exclude", "texts": ["a"]},
        {"kind": "count", "of": "words", "at_most": 9},
        {"kind": "script", "is": "LATIN"},
    ):
        assert not kept(constraint, text)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        "x",
        [5],
        [{}],
        [{"kind": "magic"}],
        [{"kind": ["json"]}],
        [{"kind": "count", "of": "cats"}],
        [{"kind": "count", "of": "words"}],
        [{"kind": "count", "of": "words", "at_least": -1}],
        [{"kind": "count", "of": "words", "at_least": True}],
        [{"kind": "include", "texts": []}],
        [{"kind": "include", "texts": "cat"}],
        [{"kind": "starts_with"}],
        [{"kind": "case", "is": "odd"}],
        [{"kind": "json", "keys": 5}],
        [{"kind": "tool_calls", "tools": 5}],
        [{"kind": "json"}] * 51,
    ],
)
def test_malformed_constraints_are_ours(bad):
    with pytest.raises(VerifierError):
        constraints.check(bad, "text")
    one = get_verifier("constraints")
    assert one.verify_record({"constraints": bad, "answer": "text"}).outcome == "ungradable"
    assert one.score(bad, "text").value is None


def test_verdict_needs_all_and_the_score_is_the_share():
    one = get_verifier("constraints")
    wanted = [
        {"kind": "count", "of": "words", "exactly": 2},
        {"kind": "case", "is": "lower"},
        {"kind": "ends_with", "text": "z"},
        {"kind": "include", "texts": ["xy"]},
    ]
    assert one.judge(wanted, "xy zz").is_correct
    judged = one.judge(wanted, "xy Zz Zz")
    assert (judged.outcome, judged.reason) == ("wrong", "constraint")
    assert "words exactly 2: 3" in judged.evidence
    assert one.score(wanted, "xy Zz Zz").value == 0.5
    assert one.score(wanted, "").value == 0.0


# ---- tools

TOOLS = {
    "search": {
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": ["integer", "null"]},
            "mode": {"type": "string", "enum": ["fast", "deep"]},
            "exact": {"type": "boolean"},
            "weight": {"type": "number"},
        },
        "required": ["query"],
    },
    "free": {"additionalProperties": True},
}


def call(body):
    body = body if isinstance(body, str) else json.dumps(body)
    return f"<longcat_tool_call>\n{body}\n</longcat_tool_call>"


def search(**arguments):
    return {"name": "search", "arguments": arguments}


@pytest.mark.parametrize(
    "body",
    [
        search(query="a"),
        search(query="", limit=5),
        search(query="a", limit=None, mode="deep"),
        search(query="a", exact=True, weight=1),
        search(query="</tag>{", weight=0.5),
        {"arguments": {"query": "a"}, "name": "search"},
        {"name": "free", "arguments": {"x": [1]}},
    ],
)
def test_good_calls(body):
    text = f"Let me look.{call(body)} and {call(search(query='b'))}"
    found = tool_calls.read(text, TOOLS)
    assert found.problem == ""
    assert found.calls[0]._asdict() == body
    assert len(found.calls) == 2


@pytest.mark.parametrize(
    "text",
    [
        call("{}"),
        call("[]"),
        call('{"name": "search"}'),
        call('{"name": "search", "arguments": []}'),
        call({"name": "nowhere", "arguments": {}}),
        call(search()),
        call(search(query=5)),
        call(search(query="a", limit=True)),
        call(search(query="a", limit=1.5)),
        call(search(query="a", exact=1)),
        call(search(query="a", mode="slow")),
        call(search(query="a", other=1)),
        call(search(query="a") | {"id": 1}),
        call('{"name": "search", "arguments": {"query": "a", "query": "b"}}'),
        call('{"name": "search", "arguments": {"query": "a", "weight": NaN}}'),
        call("{'name': 'search', 'arguments': {'query': 'a'}}"),
        call("[" * 10_000),
        "<longcat_tool_call>",
        "</longcat_tool_call>",
        call(search(query="a")) + "</longcat_tool_call>",
        "<longcat_tool_call>" + call(search(query="a")),
        call(search(query="a")) * 65,
    ],
)
def test_bad_calls(text):
    found = tool_calls.read(text, TOOLS)
    assert found.problem
    assert found.calls == ()
    assert not kept({"kind": "tool_calls", "tools": TOOLS}, "x " + text)


def by_keys(name, **arguments):
    pairs = "".join(
        f"<longcat_arg_key>{key}</longcat_arg_key>\n<longcat_arg_value>{value}</longcat_arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<longcat_tool_call>{name}\n{pairs}</longcat_tool_call>"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (by_keys("search", query="5", limit="5"), {"query": "5", "limit": 5}),  # a text stays one
        (by_keys("search", query='{"a": 1}\nb'), {"query": '{"a": 1}\nb'}),
        (
            '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>',
            {"query": "a"},
        ),
    ],
)
def test_calls_in_the_forms_of_other_families(text, arguments):
    assert tool_calls.read(text * 2, TOOLS).calls == (("search", arguments),) * 2


@pytest.mark.parametrize(
    "text",
    [
        by_keys("nowhere", query="a"),
        by_keys("search", limit="5"),
        by_keys("search", query="a", limit="five"),
        by_keys("search", query="a").replace("</longcat_arg_value>", ""),
        by_keys("search", query="a").replace("</longcat_tool_call>", by_keys("x")),
        "<tool_call>no json at all</tool_call>",
        "<tool_call>",
    ],
)
def test_bad_calls_in_these_forms(text):
    found = tool_calls.read(text, TOOLS)
    assert found.problem
    assert not found.calls


def test_a_schema_may_be_a_boolean():
    tools = {"f": {"properties": {"any": True, "never": False}}, "g": {"properties": None}}
    for schema in tools.values():
        tool_calls.check_schema(schema)
    for value in (1, "a", [None], {"b": False}):
        assert tool_calls.read(call({"name": "f", "arguments": {"any": value}}), tools).calls
        assert tool_calls.read(call({"name": "f", "arguments": {"never": value}}), tools).problem
    assert tool_calls.read(call({"name": "g", "arguments": {}}), tools).calls
    for odd in ({"properties": [1]}, {"properties": {"a": "string"}}):
        with pytest.raises(VerifierError, match="schema"):
            tool_calls.check_schema(odd)


def test_numbers_of_calls():
    one = call(search(query="a"))
    assert not kept({"kind": "tool_calls"}, "no call")
    assert kept({"kind": "tool_calls", "at_most": 2}, one * 2)
    assert not kept({"kind": "tool_calls", "at_most": 2}, one * 3)
    with pytest.raises(VerifierError, match="complex"):
        tool_calls.read(one, {"search": {"properties": {"query": {"type": "complex"}}}})
