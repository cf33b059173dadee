import json

import pytest

from loong_jax.data import problem_files
from loong_jax.errors import ConfigError
from loong_jax.problems import response
from loong_jax.verifiers import get_verifier


def write(tmp_path, *records):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records))
    return path


def test_a_line_is_a_problem_that_its_verifier_can_judge(tmp_path):
    code = {"language": "python", "tests": [{"stdin": "1\n", "stdout": "2\n"}]}
    found = problem_files.read(
        write(
            tmp_path,
            {"prompt": "What is 7 * 8?", "gold": "56"},
            "",
            {"prompt": "Add one.", "verifier": "code", "arguments": code, "level": 3, "id": "a"},
            {"prompt": "What is 7 * 8?", "gold": "56", "level": 2},
        )
    )
    sums, program = found.problems
    assert found.num_repeated == 1
    assert (sums.domain, sums.level, sums.verifier) == ("stem", 1, "math")
    assert (program.uid, program.domain, program.level, program.arguments) == ("a", "code", 3, code)
    assert {name: len(p) for name, p in found.by_domain().items()} == {"stem": 1, "code": 1}
    judge = get_verifier("math")
    assert judge.verify(sums, "So it is \\boxed{56}.").is_correct
    assert judge.verify(sums, "So it is \\boxed{57}.").outcome == "wrong"
    judge.close()


def test_names_do_not_depend_on_place_and_differ_with_the_answer(tmp_path):
    first = problem_files.read(write(tmp_path, {"prompt": "x?", "gold": "1"})).problems
    second = problem_files.read(
        write(tmp_path, {"prompt": "x?", "gold": "2"}, {"prompt": "x?", "gold": "1"})
    ).problems
    assert first[0].uid == second[1].uid != second[0].uid


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "line 2 of .* is not JSON"),
        ("[1]", "not an object"),
        ({"prompt": "x?"}, "line 2 of .* has no gold"),
        ({"gold": "1"}, "has no prompt"),
        ({"prompt": "x?", "gold": 1}, r'gold=1, which must be of type str\. Write "1"\.'),
        (
            {"prompt": "x?", "gold": "1", "level": True},
            "level=True, which must be of type int. Write a whole",
        ),
        ({"prompt": "x?", "gold": "1", "levle": 2}, r"\['levle'\].*\. Write level\. Known"),
        ({"prompt": "x?", "verifier": "maths"}, "verifier='maths', which is unknown"),
        ({"prompt": "x?", "gold": "1", "domain": " "}, "is no word"),
        ({"prompt": "x?", "gold": "1", "level": -1}, "level=-1"),
        (
            {"prompt": "x?", "gold": "1", "id": "one"},
            "line 2 .*the id 'one', which another problem has in line 1",
        ),
        ({"prompt": "x?", "verifier": "code"}, "has no tests"),
        ({"prompt": "x?", "gold": "1", "tests": [{}], "verifier": "math"}, "for verifier 'code'"),
        ({"prompt": "x?", "gold": "1", "uid": "a", "id": "a"}, "both uid and id"),
        ({"prompt": "x?", "messages": [{"role": "user", "content": "y"}]}, "both prompt and"),
        ({"messages": [{"role": "user", "text": "y"}], "gold": "1"}, r"messages\[0\]=.*content"),
        ({"messages": [{"role": "tool", "content": "y"}], "gold": "1"}, "role 'tool'"),
        ({"messages": [{"role": "assistant", "content": "y"}], "gold": "1"}, "the user's"),
        ({"prompt": "x?", "tests": [{}], "solution": "as so"}, "solution without an answer"),
        ({"prompt": "x?", "gold": "1", "solution": "<longcat_think>x"}, "form is broken"),
        ({"prompt": "x\ud800?", "gold": "1"}, r"line 2 .*'.ud800', half of a surrogate pair"),
        ({"prompt": "x?", "gold": "1", "origin": "\udfff"}, "half of a surrogate pair"),
        ('{"prompt": ' + "[" * 100_000, "is not JSON: maximum recursion"),
    ],
)
def test_what_is_no_problem_is_named_with_its_line(tmp_path, record, message):
    first = {"prompt": "y?", "gold": "1", "id": "one"}
    with pytest.raises(ConfigError, match=message):
        problem_files.read(write(tmp_path, first, record))


def test_a_file_without_problems_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no problem"):
        problem_files.read(write(tmp_path, ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        problem_files.read(tmp_path / "absent.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        problem_files.read(tmp_path / "binary")


def test_bad_lines_are_named_together(tmp_path):
    with pytest.raises(ConfigError) as caught:
        problem_files.read(write(tmp_path, {"prompt": "x?"}, {"prompt": "y?", "gold": "1"}, "{"))
    first, second = str(caught.value).splitlines()
    assert "line 1 of" in first
    assert "has no gold" in first
    assert "line 3 of" in second
    assert "is not JSON" in second
    with pytest.raises(ConfigError, match=r"\(12 more bad lines\)"):
        problem_files.read(write(tmp_path, *["{"] * 20))


def test_conversations_tests_and_solutions_are_read(tmp_path):
    tests = [{"stdin": "1\n", "stdout": "2\n"}]
    whole = response.render_response("so", "print(int(input()) + 1)")
    found = problem_files.read(
        write(
            tmp_path,
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "What is 1 + 1?"},
                ],
                "gold": "2",
                "solution": "one and one",
            },
            {"prompt": "Add one.", "tests": tests, "solution": whole, "uid": "add"},
            {"prompt": "x?", "gold": "1"},
        )
    )
    talk, program, plain = found.posed
    assert talk.problem.prompt == "Be brief.\nWhat is 1 + 1?"
    assert talk.messages == (("system", "Be brief."), ("user", "What is 1 + 1?"))
    assert talk.solution == response.render_response("one and one", "2")
    assert program.problem.verifier == "code"
    assert program.problem.arguments == {"language": "python", "tests": tests}
    assert (program.solution, program.problem.uid, program.line) == (whole, "add", 2)
    assert [posed.answer for posed in found.posed] == ["2", "print(int(input()) + 1)", "1"]
    assert (plain.solution, plain.line) == (None, 3)


def test_problems_that_read_alike_are_on_one_side_of_the_split(tmp_path):
    texts = ["What is  2 + 2?", "what is 2 + 2? ", "What is 2 + 3?"]
    found = problem_files.read(write(tmp_path, *({"prompt": t, "gold": "4"} for t in texts)))
    first, second, third = (problem.canonical for problem in found.problems)
    assert first == second != third


def test_keys_of_a_corpus_keep_one_order_in_every_process():
    record = {"licence": "MIT", "origin": "us", "level": 2, "domain": "stem", "verifier": "math",
              "gold": "4", "prompt": "What is 2 + 2?", "id": "a", "copies": 3}  # fmt: skip
    assert list(problem_files.from_record(record) or ()) == [
        "id", "prompt", "gold", "verifier", "domain", "level", "origin", "licence"
    ]  # fmt: skip
