"""Calls of functions in languages that are compiled or loaded by a driver of ours."""

import math
import time
import tomllib
from pathlib import Path

import pytest

from loong_jax.sandbox import executor, languages
from tests import sweeps
from tests.bounds import EXPLODES_S
from tests.verifiers.code.conftest import judged_or_skipped

TEXTS = tomllib.loads(Path(__file__).with_name("calls.toml").read_text(encoding="utf-8"))
ADD, RICH, BIG = TEXTS["ADD"], TEXTS["RICH"], TEXTS["BIG"]
TYPES = TEXTS["TYPES"]

# Java starts a machine for every compilation and call; compilers of the others take seconds
SLOW, SLOWER = (
    [pytest.param(name, marks=mark) for name, mark in names.items()]
    for names in (
        {"c": pytest.mark.slow, "rust": pytest.mark.release},
        {"java": pytest.mark.slow, "typescript": pytest.mark.release},
    )
)
RICH_LANGUAGES = ["cpp", "go", "ruby", SLOW[1], *SLOWER]
LANGUAGES = [SLOW[0], *RICH_LANGUAGES]


def call(name, args, returns):
    return {"call": name, "args": args, "returns": returns}


@pytest.mark.parametrize("language", ["c", "cpp", "go", "ruby", "rust", *SLOWER])
def test_values_go_in_and_come_back(code, language):
    right = [call("add", [2, 3], 5), call("add", [-4, 1], -3)]
    assert judged_or_skipped(code, language, ADD[language], *right).is_correct
    said = judged_or_skipped(code, language, ADD[language], *right, call("add", [2, 3], 6))
    assert said.reason == "wrong answer"
    assert said.details["passed"] == 2


@pytest.mark.parametrize("language", RICH_LANGUAGES)
def test_lists_maps_and_methods(code, language):
    args = [["b", 'ä\n"', "a"], {"x": 2, "y": 5}, False]
    wanted = [['ä\n"', "b", "a"], 3.5]
    said = judged_or_skipped(code, language, RICH[language], call("Solution.f", args, wanted))
    assert said.is_correct, said
    other = [['ä\n"', "a", "b"], 3.5]
    assert not judged_or_skipped(
        code, language, RICH[language], call("Solution.f", args, other)
    ).is_correct


@pytest.mark.parametrize("language", ["cpp", "go", "ruby", SLOW[1], SLOWER[0]])
def test_what_is_not_finite_keeps_its_kind(code, language):
    pairs = [(math.nan, -math.inf), (math.nan, math.nan), (math.nan, math.inf), (0.0, -math.inf)]
    tests = [call("f", [], [*pair, 1.5]) for pair in pairs]
    found = judged_or_skipped(code, language, TEXTS["NOT_FINITE"][language], *tests)
    assert [test["status"] for test in found.details["tests"]] == ["OK", "WA", "WA", "WA"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_integers_keep_every_digit(code, language):
    assert judged_or_skipped(code, language, BIG[language], call("big", [], 2**64 - 1)).is_correct
    assert not judged_or_skipped(
        code, language, BIG[language], call("big", [], 2**64 - 2)
    ).is_correct


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("sources", [TEXTS["ENDS"], TEXTS["FORGES"]], ids=["exits", "forges"])
def test_no_value_is_no_right_value(code, language, sources):
    said = judged_or_skipped(code, language, sources[language], call("f", [1], 2))
    assert said.outcome == "wrong", said


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_function_that_is_not_there_is_the_answers_fault(code, language):
    said = judged_or_skipped(code, language, ADD[language], call("subtract", [2, 3], -1))
    assert said.outcome == "wrong"
    assert said.reason in ("compile error", "run-time error")


def test_a_program_is_compiled_once_for_all_calls_of_a_function(code):
    source = ADD["cpp"] + "// once"
    first = judged_or_skipped(code, "cpp", source, *[call("add", [n, 1], n + 1) for n in range(4)])
    again = judged_or_skipped(code, "cpp", source, call("add", [40, 2], 42))
    assert first.is_correct
    assert again.is_correct
    assert not first.details["compile"]["cached"]
    assert again.details["compile"]["cached"]


@pytest.mark.parametrize(
    ("name", "args", "returns"),
    sweeps.thinned(
        [
            ("mean", [[1, 2, 6], 3], 3.0),
            ("longest", [["a", "äöü", "ab"], 3], "äöü"),
            ("has", ["tree", "r"], True),
            ("has", ["tree", "x"], False),
        ],
        1,
    ),
)
def test_pointers_of_c_are_lists_and_strings(code, name, args, returns):
    said = judged_or_skipped(code, "c", TYPES["c"].replace("_Bool is", "static _Bool is"),
                  call(name, args, returns))  # fmt: skip
    assert said.is_correct, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "returns"),
    [
        ("Counter.grow", [3], 5),
        ("first", [["x", "y"], None], "x"),
        ("first", [[], "z"], "z"),
        ("first", [[], None], None),
        ("groups", [[[2, 1], [2]], [1, 2.5]], [[1, 2], {"1": [1.0, 2.5], "2": [1.0, 2.5]}]),
        ("longest", ["ab", "abc"], "abc"),
    ],
)
def test_types_of_rust(code, name, args, returns):
    said = judged_or_skipped(code, "rust", TYPES["rust"], call(name, args, returns))
    assert said.is_correct, said


@pytest.mark.slow
def test_an_error_of_rust_is_no_value(code):
    said = judged_or_skipped(code, "rust", TYPES["rust"], call("Counter.grow", [-1], None))
    assert said.reason == "run-time error", said
    said = judged_or_skipped(code, "rust", TYPES["rust"], call("first", [["x"]], "x"))
    assert said.reason == "run-time error", said


@pytest.mark.parametrize(
    "text",
    ["f(" * 200_000, "/*" * 400_000, "int " * 200_000, "#\n" * 400_000, "int f(int a)\n" * 50_000],
)
def test_a_declaration_is_looked_for_in_bounded_time(text):
    start = time.process_time()
    assert languages.c_prototype(text, "f", "g") == ""
    assert time.process_time() - start < EXPLODES_S


def test_what_a_language_lacks_for_calls_is_named(code, monkeypatch):
    monkeypatch.setattr(executor, "_resolve", lambda name: None if name == "g++" else name)
    answer = "int f(void) { return 1; } // no g++"
    said = code.verify_record({"language": "c", "answer": answer, "tests": [call("f", [], 1)]})
    assert (said.outcome, said.reason) == ("ungradable", "toolchain")
    assert "apt-get install g++" in said.evidence


def test_what_has_no_driver_is_refused_with_a_remedy(code):
    said = code.verify_record({"language": "perl", "answer": "sub f { 1 }",
                               "tests": [call("f", [], 1)]})  # fmt: skip
    assert said.outcome == "ungradable"
    assert "cpp" in said.evidence
    assert "stdin" in said.evidence
