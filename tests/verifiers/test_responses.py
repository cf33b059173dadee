"""Neighbours of reported responses: end tokens, tags, fences and thinking, for every verifier."""

import json
from pathlib import Path

import pytest

from loong_jax.data import problem_files
from loong_jax.environments import get_environment
from loong_jax.problems import verdict
from loong_jax.problems.verdict import Verdict
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.judge import gate
from tests.doubles.problems import made_problem

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "response_cases.jsonl").read_text().splitlines()
]
KINDS = sorted({case["kind"] for case in CASES})


@pytest.fixture(scope="module")
def made():
    verifiers = {name: get_verifier(name) for name in ("math", "code", "logic", "constraints")}
    yield verifiers
    for verifier in verifiers.values():
        verifier.close()


def judged(made, case, directory):
    if case["verifier"] == "logic":
        puzzle = get_environment(case["task"])
        problem = puzzle.problem(case["level"], case["seed"])
        text = case["wrap"].replace("%s", puzzle.solve(problem).answer)
        return made["logic"].verify(problem, text)
    if case["verifier"] == "own_problems":
        path = directory / "problems.jsonl"
        path.write_text(json.dumps(case["line"]) + "\n")
        (posed,) = problem_files.read(path).posed
        return made[posed.problem.verifier].verify(posed.problem, posed.solution)
    if case.get("whole_response"):
        arguments = {"language": case["language"], "tests": case["tests"]}
        return made["code"].verify(
            made_problem(verifier="code", arguments=arguments), case["answer"]
        )
    return made[case["verifier"]].verify_record(case)


@pytest.mark.parametrize("kind", KINDS)
def test_responses_of_real_models_are_read(made, kind, tmp_path):
    mistakes = []
    for case in CASES:
        if case["kind"] == kind:
            found = judged(made, case, tmp_path)
            if (found.outcome == "correct") != case["expected"]:
                mistakes.append((case, found.outcome, found.reason, found.evidence))
    assert not mistakes


def test_what_a_judge_is_shown():
    for text, shown in (
        ("<longcat_think>It is 41</longcat_think>It is 42</longcat_s>", "It is 42"),
        ("<think>41</think>\n\\boxed{42}<|im_end|>", "42"),
        ("<think>t</think><answer>42</answer>", "42"),
        ("t</think>42", "42"),
        ("42", "42"),
    ):
        assert gate.extracted(text) == shown
    for text in ("<think>It is 42", "<longcat_think>It is 42</longcat_s>", "<answer>1</answer>"
                 "<answer>42</answer>", "<longcat_answer>42</longcat_answer>", "<|im_end|>",
                 "<think>42</think>", "x" * 1_000_001):  # fmt: skip
        assert isinstance(gate.extracted(text), Verdict), text[:80]


def test_environments_take_thinking_alone_and_no_bare_text():
    assert verdict.extract_answer("<longcat_think>x</longcat_think>7</longcat_s>") == "7"
    assert verdict.extract_answer("<think>x</think><answer>7</answer>") == "7"
    assert isinstance(verdict.extract_answer("7"), Verdict)
    assert isinstance(verdict.extract_answer("<think>x 7"), Verdict)
