"""Pass rates, balance and votes, from records and from files of attempts."""

import json

import pytest

from loong_jax.data.curation import outcomes, stages
from loong_jax.data.curation.outcomes import Balanced, MajorityVote, PassRate
from loong_jax.errors import ConfigError


def said(stage, *records):
    outcome = stages.judge(stage, list(records))
    return [
        stages.counted(outcome.reasons[i]) if i in outcome.reasons else outcome.notes.get(i)
        for i in range(len(records))
    ]


def attempts(right, wrong, lost=0):
    return {"prompt": "x", "outcomes": [True] * right + [False] * wrong + [None] * lost}


def test_pass_rates():
    assert said(PassRate(at_least=0.1), attempts(8, 0), attempts(7, 1), attempts(0, 8),
                attempts(3, 0, 5), attempts(2, 2, 9), {"prompt": "x"}) == [
        "too easy", {"pass_rate": 0.875}, "too hard", "too few attempts", {"pass_rate": 0.5},
        "too few attempts"]  # fmt: skip


def test_balance():
    assert said(Balanced(), attempts(8, 0), attempts(0, 8), attempts(7, 1), attempts(5, 3),
                attempts(1, 1)) == [
        "all correct", "all wrong", "unbalanced", {"pass_rate": 0.625}, "too few attempts"
    ]  # fmt: skip


def test_attempts_come_from_files(tmp_path):
    lines = [{"id": "a", "correct": i < 3, "said": "1\u20282"} for i in range(4)]
    lines += [{"uid": "b", "outcome": "ungradable"}, {"uid": "b", "outcome": "correct"}]
    lines += [{"id": "c", "verdict": {"outcome": "wrong"}}] * 4
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
    )
    evaluated = {"domains": {"stem": {"correct_per_problem": {"a": [3, 4], "b": [1, 1]}},
                             "code": {"correct_per_problem": {"c": [0, 4]}}}}  # fmt: skip
    (tmp_path / "b.json").write_text(json.dumps(evaluated))
    records = [{"id": name, "prompt": "x"} for name in "abcd"]
    for name in ("a.jsonl", "b.json"):
        found = [outcomes.passed_of(record, tmp_path / name) for record in records]
        assert found == [(3, 4), (1, 1), (0, 4), (0, 0)]


@pytest.mark.parametrize("line", ["{", "[1]", '{"correct": true}', '{"id": 1, "correct": 7}'])
def test_what_is_no_attempt_is_refused(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(ConfigError, match="line 1"):
        outcomes.passed_of({"id": "a"}, tmp_path / "a.jsonl")
    (tmp_path / "b.json").write_text(line)
    with pytest.raises(ConfigError, match="loong eval"):
        outcomes.passed_of({"id": "a"}, tmp_path / "b.json")


def test_votes_against_the_gold():
    def record(gold, *answers):
        return {"prompt": "x", "gold": gold, "answers": list(answers)}

    half = record("1/2", "0.5", "\\frac{1}{2}", "$1/2$", "3")
    outvoted = record("2", "1/2", "0.5", "\\boxed{\\frac{1}{2}}", "3")
    split = record("2", "1", "2", "3", "4")
    unfound = record("9", "1", "2", "3", "4")
    assert said(MajorityVote(), half, outvoted, split, unfound, record("2", "2")) == [
        None, "gold outvoted", None, "gold not found", "too few answers"]  # fmt: skip
    assert said(MajorityVote(needs_agreement=True), split) == ["no agreement"]
