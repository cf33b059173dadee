"""Constraints on the form of an answer, and on texts as people write them."""

import tomllib
from pathlib import Path

import pytest

from loong_jax.errors import VerifierError
from loong_jax.verifiers import constraints, get_verifier

CASES = tomllib.loads(Path(__file__).with_name("constraints.toml").read_text(encoding="utf-8"))
WAYS = {"exclude": False, "include": True}
LIST = "# Title\n\nIntro line.\n\n- one\n* two\n+ three\n\n1. a\n2) b\n\n"
LIST += "```\ncode\n```\n[name] [place]"


def kept(constraint, text):
    return constraints.check([constraint], text)[0].is_kept


def number(of, text, most=60):
    return next(n for n in range(most) if kept({"kind": "count", "of": of, "exactly": n}, text))


@pytest.mark.parametrize(
    ("of", "text", "count"),
    [
        *CASES["counts"],
        ("lines", LIST, 11),
        ("paragraphs", LIST, 5),
        ("bullets", LIST, 3),
        ("numbered_items", LIST, 2),
        ("headings", LIST, 1),
        ("code_blocks", LIST, 1),
        ("placeholders", LIST, 2),
    ],
)
def test_counts(of, text, count):
    for limits, expected in (
        ({"exactly": count}, True),
        ({"exactly": count + 1}, False),
        ({"at_least": count, "at_most": count}, True),
        ({"at_least": count + 1}, False),
        ({"at_most": max(count - 1, 0)}, not count),
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
        [{"kind": "count", "of": ["words"], "at_least": 1}],
        [{"kind": "count", "of": "words"}],
        [{"kind": "count", "of": "words", "at_least": -1}],
        [{"kind": "count", "of": "words", "at_least": True}],
        [{"kind": "include", "texts": []}],
        [{"kind": "include", "texts": [""]}],
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
    assert one.verify_record({"constraints": bad, "answer": "text"}).reason == "constraints"
    assert one.score(bad, "text").value is None


def test_verdict_needs_all_and_the_score_is_the_share():
    one = get_verifier("constraints")
    wanted = [
        {"kind": "count", "of": "words", "exactly": 2},
        {"kind": "case", "is": "lower"},
        {"kind": "ends_with", "text": "z"},
        {"kind": "include", "texts": ["xy"]},
    ]
    assert one.verify_record({"constraints": wanted, "answer": "xy zz"}).is_correct
    judged = one.verify_record({"constraints": wanted, "answer": "xy Zz Zz"})
    assert (judged.outcome, judged.reason) == ("wrong", "constraint")
    assert "words exactly 2: 3" in judged.evidence
    assert one.score(wanted, "xy Zz Zz").value == 0.5
    assert one.score(wanted, "").value == 0.0


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("of", "lines", "count"), CASES["line_ends"])
def test_ends_of_lines_are_those_of_any_system(end, of, lines, count):
    assert number(of, end.join(lines)) == count
    assert kept({"kind": "starts_with", "text": lines[0]}, end.join(lines) + end)
    assert kept({"kind": "ends_with", "text": lines[-1]}, end.join(lines) + end)


@pytest.mark.parametrize(("text", "wanted", "is_there"), CASES["keywords"])
def test_keywords_are_whole_words_where_words_have_spaces(text, wanted, is_there):
    for kind, is_kept in WAYS.items():
        assert kept({"kind": kind, "texts": [wanted]}, text) is (is_kept is is_there)
    assert (number({"text": wanted}, text) > 0) is is_there


@pytest.mark.parametrize(("text", "wanted"), CASES["as_written"])
def test_texts_are_checked_as_they_are_written(text, wanted):
    for constraint in ({}, {"exact": True}):
        wanted = wanted if constraint or wanted != "write" else "Write"
        wanted = "Write" if wanted == "write" else wanted
        assert kept({"kind": "include", "texts": [wanted], **constraint}, text)
        assert not kept({"kind": "exclude", "texts": [wanted], **constraint}, text)


@pytest.mark.parametrize(("text", "hidden"), CASES["hidden"])
def test_thinking_and_ends_are_no_part_of_it(text, hidden):
    assert not kept({"kind": "include", "texts": [hidden], "exact": True}, text)


@pytest.mark.parametrize(("text", "is_kept"), CASES["json"])
def test_json_is_the_whole_answer(text, is_kept):
    assert kept({"kind": "json", "keys": ["a"]}, text) is is_kept
