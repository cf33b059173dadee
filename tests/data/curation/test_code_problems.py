"""Code problems by their statements, by a table of runs, and by programs in the sandbox."""

import pytest

from loong_jax.data.curation import stages
from loong_jax.data.curation.code_problems import CodeExecution, CodeStatement, Ran, faults_of

TEXT = "Read n. Print n squared. Sample input: 2. Sample output: 4. 1 <= n <= 100, 1 second."


def squares(*numbers):
    return [{"stdin": f"{n}\n", "stdout": f"{n * n}\n"} for n in numbers]


def problem(tests, **more):
    return {"prompt": TEXT, "tests": tests, **more}


def reason(stage, record):
    found = stages.judge(stage, [record]).reasons.get(0)
    return found and stages.counted(found)


def test_statements():
    five = squares(1, 2, 3, 4, 5)
    stage = CodeStatement(needs_limits=True)
    assert reason(stage, problem(five)) is None
    assert reason(stage, problem(five[:4])) == "too few tests"
    assert reason(stage, problem([*five[:4], five[0], five[1]])) == "too few tests"
    assert reason(stage, problem([*five, {"stdin": "1\n", "stdout": "2"}])) == (
        "contradictory tests"
    )
    assert reason(stage, problem([*five, {"stdin": "9"}])) == "no expected output"
    assert reason(stage, problem(five) | {"prompt": "Print n squared within a second."}) == (
        "no examples"
    )
    assert reason(stage, problem(five) | {"prompt": "Square n. Sample input 2, output 4."}) == (
        "no limits"
    )
    assert reason(stage, {"prompt": "What is 2 + 2?"}) is None
    inside = {"prompt": TEXT, "arguments": {"tests": five[:2]}}
    assert reason(stage, inside) == "too few tests"


def table(*rows):
    """Of each program a letter a test: . passed, x crashed, else what it gave."""
    return [[Ran(c == ".", None if c in ".x" else c) for c in row] for row in rows]


@pytest.mark.parametrize(
    ("rows", "mismatched", "ambiguous"),
    [
        (("....a", "....a", "....a"), (4,), ()),  # three agree, and the test is alone
        (("....a", "....b", "....."), (), (4,)),  # three answers, one expected
        (("....a", ".....", "....."), (), ()),  # one program errs
        (("....x", "....x", "....x"), (), ()),  # too slow, not another answer
        (("aaaaa", "aaaaa", "....."), (), ()),  # wrong programs are not heard
        (("....a", "....a", ".....", ".....", "....."), (), ()),  # most are with the test
    ],
)
def test_faults_by_what_programs_gave(rows, mismatched, ambiguous):
    found = faults_of(table(*rows), 2)
    assert (found.mismatched, found.ambiguous) == (mismatched, ambiguous)


GOOD = ["print(int(input()) ** 2)", "n = int(input())\nprint(n * n)"]


@pytest.mark.bubblewrap
def test_programs_are_asked():
    five = squares(1, 2, 3, 4, 5)
    wrong = [*five[:4], {"stdin": "5\n", "stdout": "26\n"}]
    calls = [{"call": "square", "args": [n], "returns": n * n} for n in range(4)]
    calls += [{"call": "square", "args": [9], "returns": 82}]
    function = "def square(n):\n    return n * n"
    records = [
        problem(five, candidates=GOOD),
        problem(wrong, candidates=GOOD),
        problem(five, candidates=["print(0)", "import sys\nsys.exit(3)"]),
        problem(five, solution="print(int(input()) * 2)", candidates=GOOD),
        problem(five),
        problem(calls, candidates=[function, function + "\n"]),
        problem(five, candidates=GOOD, language="klingon"),
        {"prompt": "What is 2 + 2?"},
    ]
    outcome = stages.judge(CodeExecution(), records)
    assert {i: stages.counted(r) for i, r in outcome.reasons.items()} == {
        1: "mismatched tests",
        2: "unsolved",
        3: "reference fails",
        4: "no candidates",
        5: "mismatched tests",
        6: "cannot run",
    }
    assert outcome.notes == {0: {"code_pass_rate": 1.0}}
    repaired = stages.judge(CodeExecution(repairs=True, min_tests=4), records[1:2])
    assert repaired.notes[0]["bad_tests"] == [4]
    assert not repaired.reasons


@pytest.mark.bubblewrap
def test_tests_may_stand_in_the_arguments():
    arguments = {"language": "python", "tests": squares(1, 2, 3, 4, 5)}
    record = {"prompt": TEXT, "verifier": "code", "arguments": arguments}
    right, wrong = "print(int(input()) ** 2)", "print(2 * int(input()))"
    assert reason(CodeExecution(), record | {"solution": right}) is None
    assert reason(CodeExecution(), record | {"solution": wrong}) == "reference fails"
