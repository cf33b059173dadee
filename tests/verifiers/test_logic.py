"""The verifier `logic`: the span of the answer, records, and what is our fault."""

import time

import pytest

from loong_jax.environments import PUZZLES, get_environment
from loong_jax.problems.response import render_response
from loong_jax.problems.verdict import answer_span
from loong_jax.verifiers import get_verifier
from tests.bounds import EXPLODES_S
from tests.verifiers import commanded

PROBLEM = get_environment("sudoku").problem(2, 5)
GOLD = get_environment("sudoku").solve(PROBLEM).answer
WRONG = GOLD.replace("1", "2", 1)
RECORD = {"task": "sudoku", "level": 2, "seed": 5}


@pytest.fixture(scope="module")
def verifier():
    return get_verifier("logic")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (GOLD, "correct"),
        (render_response("thinking", GOLD), "correct"),
        (f"<think>Answer: {WRONG}</think>\n{GOLD}", "correct"),
        (f"Some words.\nAnswer:\n{GOLD}", "correct"),
        (f"**Final answer:**\n```\n{GOLD}\n```", "correct"),
        (f"```text\n{GOLD}\n```", "correct"),
        (f"Some words.\n{GOLD}", "wrong"),
        (f"Answer: {GOLD}\nAnswer: {GOLD}", "wrong"),
        (f"Answer: {WRONG}\nAnswer: {GOLD}", "wrong"),
        (render_response("thinking", WRONG), "wrong"),
        (render_response("t", GOLD) + render_response("t", GOLD), "wrong"),
        (f"<longcat_answer>{GOLD}</longcat_answer>", "wrong"),
        (f"Answer:\n{GOLD}\nor another", "wrong"),
        ("", "wrong"),
        ("Answer:", "wrong"),
        ("<think>" * 10_000, "wrong"),
        ("Answer:\n" * 100_000, "wrong"),
        ("```\n" * 200_000, "wrong"),
        ("9" * 2_000_000, "wrong"),
    ],
)
def test_the_answer_is_read_by_one_rule(verifier, text, outcome):
    before_s = time.process_time()
    judged = verifier.verify(PROBLEM, text)
    assert time.process_time() - before_s < EXPLODES_S
    assert judged.outcome == outcome, judged
    assert judged.isolation == "none"


def test_spans():
    assert answer_span("a\nANSWER: 5\n") == "5"
    assert answer_span("the answer: 5") == "the answer: 5"
    assert answer_span("1 < 2") == "1 < 2"


def test_both_kinds_of_records(verifier):
    whole = {"problem": PROBLEM.to_json()}
    for record in (RECORD, whole):
        assert verifier.verify_record(record | {"answer": GOLD}).is_correct
        assert verifier.verify_record(record | {"answer": WRONG}).reason == "value"
        assert verifier.verify_record(record | {"answer": "nothing"}).reason == "format"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "record"),
        (RECORD, "record"),
        (RECORD | {"answer": 5}, "record"),
        (RECORD | {"answer": GOLD, "level": 9}, "record"),
        (RECORD | {"answer": GOLD, "level": True}, "record"),
        (RECORD | {"answer": GOLD, "seed": "5"}, "record"),
        (RECORD | {"answer": GOLD, "task": "chess"}, "record"),
        ({"answer": GOLD, "problem": 5}, "record"),
        ({"answer": GOLD, "problem": {}}, "record"),
        ({"answer": GOLD, "problem": {"arguments": {}}}, "problem"),
        ({"answer": GOLD, "problem": {"arguments": {"task": "sudoku", "state": {}}}}, "problem"),
        ({"answer": GOLD, "problem": {"arguments": {"task": [], "state": {}}}}, "problem"),
    ],
)
def test_broken_records_are_ungradable(verifier, record, reason):
    judged = verifier.verify_record(record)
    assert (judged.outcome, judged.reason) == ("ungradable", reason)


@pytest.mark.parametrize("name", PUZZLES)
def test_every_task_through_the_command(name, tmp_path):
    judge = get_environment(name)
    gold = judge.solve(judge.problem(1, 3)).answer
    record = {"task": name, "level": 1, "seed": 3}
    answers = [gold, f"Answer: {gold}", f"{gold}\n{gold}", "__import__('os').system('true')", ""]
    lines = [record | {"answer": answer, "id": i} for i, answer in enumerate(answers)]
    verdicts = commanded.verdicts("logic", [*lines, b"junk"], tmp_path)
    wanted = ["correct", "correct", "wrong", "wrong", "wrong", "ungradable"]
    assert [v["verdict"] for v in verdicts] == wanted
    assert [v.get("id") for v in verdicts] == [0, 1, 2, 3, 4, None]
