"""Calls of tools: schemas, marks that are content, the forms of other families."""

import json
import time

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import tool_calls
from tests.verifiers.test_constraints import kept

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


def by_keys(name, **arguments):
    pairs = "".join(
        f"<longcat_arg_key>{key}</longcat_arg_key>\n<longcat_arg_value>{value}</longcat_arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<longcat_tool_call>{name}\n{pairs}</longcat_tool_call>"


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
        by_keys("nowhere", query="a"),
        by_keys("search", limit="5"),
        by_keys("search", query="a", limit="five"),
        by_keys("search", query="a").replace("</longcat_arg_value>", ""),
        by_keys("search", query="a").replace("</longcat_tool_call>", by_keys("x")),
        "<tool_call>no json at all</tool_call>",
        "<tool_call>",
    ],
)
def test_bad_calls(text):
    found = tool_calls.read(text, TOOLS)
    assert found.problem
    assert found.calls == ()
    assert not kept({"kind": "tool_calls", "tools": TOOLS}, "x " + text)


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


# ---- schemas within schemas, and marks that are content

NESTED = {
    "plan": {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["C", "F", 1]},
            "ids": {"type": "array", "items": {"type": "integer"}, "maxItems": 2, "minItems": 1},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
            "who": {
                "type": "object",
                "properties": {"name": {"type": "string", "minLength": 1}, "tags": {
                    "type": "array", "items": {"type": "string", "enum": ["a", "b"]}}},
                "required": ["name"],
            },
            "closed": {"type": "object", "properties": {"x": {}}, "additionalProperties": False},
            "table": {"type": "object", "additionalProperties": {"type": "number"}},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "one": {"oneOf": [{"type": "number"}, {"type": "integer"}]},
            "all": {"allOf": [{"type": "integer"}, {"minimum": 3}]},
            "tree": {"$ref": "#/$defs/node"},
            "fixed": {"const": "x"},
            "none": {"not": {"type": "string"}},
        },
        "$defs": {"node": {"type": "object", "properties": {
            "v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        }, "required": ["v"]}},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"n": 5.0}, {"n": 5.5}),
        ({"n": 9}, {"n": 10}),
        ({"n": 1}, {"n": 0}),
        ({"n": 1e0}, {"n": "1"}),
        ({"unit": "C"}, {"unit": "K"}),
        ({"unit": 1}, {"unit": True}),
        ({"ids": [1, 2.0]}, {"ids": ["a"]}),
        ({"ids": [1]}, {"ids": []}),
        ({"ids": [1, 2]}, {"ids": [1, 2, 3]}),
        ({"pair": ["a", 1.5]}, {"pair": [1.5, "a"]}),
        ({"who": {"name": "Ada", "more": 1}}, {"who": {"tags": []}}),
        ({"who": {"name": "Ada", "tags": ["a", "b"]}}, {"who": {"name": "Ada", "tags": ["c"]}}),
        ({"who": {"name": "A"}}, {"who": {"name": ""}}),
        ({"who": {"name": "A"}}, {"who": {"name": None}}),
        ({"who": {"name": "A"}}, {"who": "Ada"}),
        ({"closed": {"x": [1]}}, {"closed": {"y": 1}}),
        ({"table": {"a": 1, "b": 2.5}}, {"table": {"a": "1"}}),
        ({"either": None}, {"either": "5"}),
        ({"one": 1.5}, {"one": 1}),
        ({"all": 3}, {"all": 2}),
        ({"tree": {"v": 1, "kids": [{"v": 2}]}}, {"tree": {"v": 1, "kids": [{"w": 2}]}}),
        ({"fixed": "x"}, {"fixed": "y"}),
        ({"none": 5}, {"none": "5"}),
    ],
)
def test_schemas_are_checked_all_the_way_down(good, bad):
    tool_calls.check_schema(NESTED["plan"])
    found = tool_calls.read(call({"name": "plan", "arguments": good}), NESTED)
    assert found.calls == (("plan", good),), found.problem
    found = tool_calls.read(call({"name": "plan", "arguments": bad}), NESTED)
    assert found.problem
    assert found.calls == ()


def test_whole_numbers_are_given_as_integers():
    found = tool_calls.read(call('{"name": "plan", "arguments": {"n": 5.0}}'), NESTED)
    assert type(found.calls[0].arguments["n"]) is int
    assert tool_calls.read(call('{"name": "plan", "arguments": {"n": 1e999}}'), NESTED).problem


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "array", "items": {"type": "int"}}}},
        {"properties": {"a": {"properties": {"b": {"type": "text"}}}}},
        {"properties": {"a": {"anyOf": [{"type": "x"}]}}},
        {"properties": {"a": {"anyOf": {"type": "string"}}}},
        {"properties": {"a": {"$ref": "#/$defs/none"}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1/x"}}},
        {"properties": {"a": {"items": 5}}},
        {"properties": {"a": {"enum": "abc"}}},
        {"properties": {"a": {"minimum": "1"}}},
        {"properties": {"a": {}}, "required": "a"},
    ],
)
def test_schemas_that_cannot_be_checked_are_ours(schema):
    with pytest.raises(VerifierError, match=r"schema|type="):
        tool_calls.check_schema(schema)
    with pytest.raises(VerifierError):
        tool_calls.read(call({"name": "f", "arguments": {"a": [{"b": 1}]}}), {"f": schema})


def test_a_schema_that_refers_to_itself_ends():
    schema = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(VerifierError, match="deep"):
        tool_calls.read(call({"name": "f", "arguments": {"a": 1}}), {"f": schema})


WRITE = {"write": {"properties": {"text": {"type": "string"}, "note": {"type": ["string", "null"]},
                                  "n": {"type": "integer"}}, "required": ["text"]}}  # fmt: skip
MARKS = [
    "end with </longcat_tool_call> please", "start with <longcat_tool_call> please",
    "</think>", "close with </think> here", "<think>", "</longcat_think> ends it",
    "<longcat_think>", "the <s>old</s> price", "<answer>5</answer>", "</tool_call>",
    "<longcat_answer>x</longcat_answer>", "```\n</think>\n```", "</s>", "<|im_end|>",
    "<tool_call>{\"name\": \"write\"}</tool_call>", "a\n\n</thinking>\n\nb",
]  # fmt: skip


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("before", ["", "<think>I look.</think>\n", "I looked.</longcat_think>"])
def test_marks_inside_an_argument_are_content(mark, before):
    wanted = {"kind": "tool_calls", "tools": WRITE, "exactly": 1}
    text = before + call({"name": "write", "arguments": {"text": mark}})
    assert kept(wanted, text)
    assert tool_calls.read(tool_calls.spoken(text), WRITE).calls[0].arguments == {"text": mark}
    if "longcat_tool_call" not in mark:
        assert kept(wanted, before + by_keys("write", text=mark, n=4))
    assert not kept(wanted, before + call({"name": "write", "arguments": {"text": mark, "x": 1}}))
    assert not kept(wanted, before + call('{"name": "write", "arguments": {"text": "' + mark))


@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ("<think>" + call(search(query="a")) + "</think>No.", False),
        ("<think>" + call(search(query="a")), False),
        ("<think>x</think>" + call(search(query="a")), True),
        ("<think>as <longcat_tool_call> says</think>" + call(search(query="a")), True),
        (call(search(query="a")) + "<think>x", True),
    ],
)
def test_calls_of_thinking_are_none(text, is_call):
    assert kept({"kind": "tool_calls", "tools": TOOLS}, text) is is_call


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"text": "5", "note": "7"}, {"text": "5", "note": "7"}),
        ({"text": "null", "note": "null"}, {"text": "null", "note": None}),
        ({"text": "true", "note": "maybe"}, {"text": "true", "note": "maybe"}),
        ({"text": "a\nb", "n": "5"}, {"text": "a\nb", "n": 5}),
        ({"text": "a\nb", "n": "5.0"}, {"text": "a\nb", "n": 5}),
        ({"text": ""}, {"text": ""}),
        ({"text": "<b>x</b>"}, {"text": "<b>x</b>"}),
        ({"text": "[1, 2]"}, {"text": "[1, 2]"}),
        ({"text": "  x "}, {"text": "  x "}),
        ({"text": "<longcat_arg_key>n</longcat_arg_key>"},
         {"text": "<longcat_arg_key>n</longcat_arg_key>"}),
    ],
)  # fmt: skip
def test_values_between_tags_are_read_by_their_schema(given, arguments):
    assert tool_calls.read(by_keys("write", **given), WRITE).calls == (("write", arguments),)
    glued = by_keys("write", **given).replace(">\n<", "><").replace("write\n", "write")
    assert tool_calls.read(glued, WRITE).calls == (("write", arguments),)


@pytest.mark.parametrize(
    "text",
    [
        by_keys("write", text="a", n="five"),
        by_keys("write", text="a", n="5.5"),
        by_keys("write", n="5"),
        by_keys("write", text="a").replace("</longcat_arg_value>", "</longcat_arg_value> and"),
        by_keys("write", text="a").replace("<longcat_arg_value>", "x<longcat_arg_value>"),
        by_keys("write", text="a")[: -len("</longcat_tool_call>")],
        by_keys("write", text="a")[: -len("</longcat_tool_call>")] + by_keys("write", text="b"),
        by_keys("write", text="a</longcat_arg_value>b"),
        by_keys("write it", text="a"),
        by_keys("", text="a"),
        by_keys("write", text="a") + "</longcat_tool_call>",
    ],
)
def test_calls_by_keys_are_strict(text):
    assert tool_calls.read(text, WRITE).problem


@pytest.mark.parametrize(
    "text",
    [
        "<longcat_tool_call>" * 50_000,
        "<longcat_tool_call>x<longcat_arg_key>" * 10_000,
        call('{"name": "write", "arguments": {"text": "' + "</longcat_tool_call>" * 9_000),
        "<longcat_tool_call>x" + "<longcat_arg_key>a</longcat_arg_key><longcat_arg_value>" * 5_000,
        "<think>" * 20_000 + "</think>" * 20_000 + call({"name": "write"}),
        ("</think>" + "<longcat_tool_call>") * 10_000,
    ],
)
def test_hostile_calls_are_refused_in_bounded_time(text):
    start = time.thread_time()
    assert not kept({"kind": "tool_calls", "tools": WRITE}, text)
    assert time.thread_time() - start < 1.0
