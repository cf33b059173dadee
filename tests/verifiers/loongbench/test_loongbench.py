"""Answers of LoongBench's domains, and rationales in the sandbox."""

import ast
import json
import os
import shutil
import tempfile
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loong_jax.errors import VerifierError
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.loongbench import domains, literals, quantities, rationales
from loong_jax.verifiers.loongbench.rationales import RationaleRunner
from tests.bounds import EXPLODES_S
from tests.doubles.problems import made_problem

DATA = Path(__file__).parents[4].parent / "shared" / "data" / "loongbench"


@pytest.fixture(scope="module")
def verifier():
    one = get_verifier("loongbench")
    yield one
    one.close()


CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}: {c[1]} <- {c[2]}"[:70] for c in CASES])
def test_answers_by_domain(verifier, case):
    domain, gold, answer, expected, *more = case
    record = {"domain": domain, "gold": gold, "answer": answer, **(more[0] if more else {})}
    judged = verifier.verify_record(record)
    assert judged.outcome == expected, judged
    arguments = {key: value for key, value in record.items() if key in ("domain", "tolerance")}
    problem = made_problem(verifier="loongbench", gold=gold, arguments=arguments)
    assert verifier.verify(problem, answer).outcome == expected


def test_every_domain_has_cases_on_both_sides():
    said = {(domains.get_domain(case[0]).name, case[3]) for case in CASES}
    for name in domains.DOMAINS:
        assert (name, "correct") in said
        assert name == "game" or (name, "wrong") in said


@pytest.mark.parametrize(
    "answer",
    ["", " ", ":", "[" * 100_000, "{" * 5000 + "}" * 5000, "9**9**9**9", "1" * 10**6, "\x00",
     "__import__('os').system('true')", "[__import__('os')]", "{0: open('/etc/passwd')}", "-" * 999,
     "array(" * 2000, "{1: " * 3000, "\ud800", "((1, 2), (1, 3)" * 2000],
)  # fmt: skip
@pytest.mark.parametrize("domain", domains.DOMAINS)
def test_hostile_answers_are_never_right(verifier, domain, answer):
    golds = {"advanced_math": "22", "programming": "1 2"}
    gold = golds.get(domain, "[(1, 2), (1, 3)]")
    before_s = time.process_time()
    judged = verifier.verify_record({"domain": domain, "gold": gold, "answer": answer})
    assert not judged.is_correct
    assert time.process_time() - before_s < EXPLODES_S


def test_records_that_are_none(verifier):
    good = {"domain": "game", "gold": "1", "answer": "1"}
    for change in ({"domain": "chess"}, {"gold": ""}, {"gold": None}, {"gold": True}, {"answer": 5},
                   {"metadata": []}, {"tolerance": -1}, {"tolerance": "x"},
                   {"packages": [5]}):  # fmt: skip
        judged = verifier.verify_record(good | change)
        assert (judged.outcome, judged.reason) == ("ungradable", "record"), change
    assert verifier.verify_record(good).is_correct
    assert verifier.verify_record(good | {"tolerance": 1, "answer": "2"}).is_correct


LEAVES = (
    st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.none()
    | st.text("abcXYZ 0'\\-_,:[]{}", max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("abc", max_size=3) | st.integers(0, 99), inner, max_size=4)
    ),
    max_leaves=12,
)


def plain(value):
    """Tuples as lists, as our reader gives them."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_literals_are_read_as_python_reads_them(value):
    text = repr(value)
    assert literals.read(text) == plain(ast.literal_eval(text))
    assert literals.equal(literals.read(text), literals.read(text))


@settings(max_examples=300, deadline=None)
@given(st.text("[](){}:,'\"\\ 0-1.e_abnp", max_size=40))
def test_whatever_python_refuses_is_refused(text):
    try:
        value = literals.read(text)
    except literals.NotALiteral:
        return
    assert value == value or value != value


def test_literal_equality_is_typed():
    equal, read = literals.equal, literals.read
    assert equal(read("{1, 2}"), read("[2, 1]"))
    assert not equal(read("[1, 2]"), read("{2, 1}"))
    assert not equal(read("1"), read("True"))
    assert not equal(read("[1, 1, 2]"), read("[1, 2, 2]"))
    assert not equal(read("{1, 2}"), read("[1, 1]"))
    assert equal(read("array([1.0, 2.0])"), read("[np.float64(1.0), 2]"))
    assert equal(read("[1.0]"), read("[1.01]"), relative=0.02)
    assert not equal(read("[1]"), read("[1.01]"), relative=0.02)
    assert not equal(read("{1: 2}"), read("{1: 2, 3: 4}"))


@pytest.mark.parametrize(
    ("text", "same"),
    [("m/s^2", "m s^-2"), ("J/(mol*K)", "J mol^{-1} K^{-1}"), ("N/C", "V/m"), ("1/K", "K^-1"),
     ("$\\frac{\\mathrm{K}}{\\mathrm{m}}$", "K/m"), ("Pa*m^6/mol^2", "J*m^3/mol^2"),
     ("$\\mu \\mathrm{C}$", "μC"), ("N*m**2/C", "V*m"), ("m/s/s", "m/s^2")],
)  # fmt: skip
def test_units_are_products(text, same):
    assert quantities.read_unit(text) == quantities.read_unit(same)
    assert quantities.read_unit(text) != quantities.read_unit("m")


def test_rows_as_they_are_published():
    row = domains.read_row(
        {"question": "?", "final_answer": "5", "rationale": "print(5)",
         "metadata": {"domain": "Quant", "required_dependencies": ["QuantLib==1.37"],
                      "answer_tolerance": "0.5"}}
    )  # fmt: skip
    assert (row.domain.name, row.packages, row.tolerance) == ("finance", ("QuantLib==1.37",), 0.5)
    with pytest.raises(VerifierError, match="chess"):
        domains.get_domain("chess")
    assert rationales.package_name("Scikit_Learn>=1.2 ; extra") == "scikit-learn"


# ---- rationales


@pytest.fixture(scope="module")
def packages():
    """A directory of packages that everybody may read, as pip fills one."""
    directory = Path(tempfile.mkdtemp(prefix="packages-"))
    os.chmod(directory, 0o755)
    (directory / "toybox.py").write_text("def answer():\n    return 42\n")
    about = directory / "toybox-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toybox\nVersion: 1.0\n")
    yield directory
    shutil.rmtree(directory)


@pytest.mark.bubblewrap
def test_rationales_run_with_their_packages_and_nothing_else(packages, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("gold")
    runner = RationaleRunner(packages)

    def output(source, *needed):
        return runner.run(source, needed)

    try:
        assert output("import toybox\nprint(toybox.answer())", "toybox==1.0").output == "42\n"
        main = "import sys\nif __name__ == '__main__':\n    print('main')\n    sys.exit(0)"
        assert output(main).output == "main\n"
        assert output("print(1)", "toybox", "nowhere==3").missing == "nowhere"
        assert output("import nowhere.inner").missing == "nowhere"
        assert output("print(1)", "json").output == "1\n"  # the standard library's
        assert output("import sys; sys.exit(3)").failure.startswith("error: SystemExit")
        assert "ValueError" in output("print(1)\nraise ValueError(5)").failure
        assert output("print(callable(help), callable(exit))").output == "True True\n"
        assert output("table = '" + "7" * 280_000 + "'\nprint(len(table))").output == "280000\n"
        assert output("#" * 300_001).failure.startswith("limit")
        assert "No such file" in output(f"print(open({str(secret)!r}).read())").failure
        assert "Error" in output("import os; os.mkdir('/packages/x')").failure
        dial = "import socket; socket.create_connection(('1.1.1.1', 53), 1)"
        assert "Error" in output(dial).failure
        assert not output("print('x' * 10**6)").failure
        assert len(output("print('x' * 10**6)").output) <= 2**16
    finally:
        runner.close()


def test_directories_out_of_reach_are_named(tmp_path):
    with pytest.raises(VerifierError, match="no directory"):
        RationaleRunner(tmp_path / "none").run("print(1)")


@pytest.mark.bubblewrap
def test_golds_of_the_published_rows_answer_themselves(verifier):
    if not DATA.is_dir():
        pytest.skip(f"{DATA.name} is not beside the checkout")
    for file in sorted(DATA.glob("*.jsonl")):
        for line in file.read_text().splitlines()[:60]:
            record = json.loads(line)
            record["answer"] = record["final_answer"]
            judged = verifier.verify_record(record)
            assert judged.is_correct, (record["uid"], record["final_answer"], judged)
