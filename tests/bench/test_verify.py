"""The bench of the maths verifier, small: every figure is there and counts what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loong_jax import cli
from loong_jax.bench import verify

CASES = Path(__file__).parents[1] / "verifiers" / "maths" / "cases"


def run(tmp_path: Path, names: str, *options: str) -> dict:
    file = tmp_path / "verify.json"
    cases = [str(CASES / f"{name}.jsonl") for name in names.split()]
    chosen = ["--parts", "math", "--json", str(file), "--rounds", "1", *options]
    assert cli.main(["bench", "verify", "--cases", *cases, *chosen]) == 0
    return json.loads(file.read_text())


def test_alone(tmp_path, capsys):
    result = run(tmp_path, "magnitudes bases cost", "--no-peer")
    total = result["judges"]["loong_jax"]["accuracy"]["total"]
    assert total["accepted"] == total["positives"] > 0
    assert total["false positives"] == 0 < total["negatives"]
    assert result["speed"]["all cases"]["verdicts_per_cpu_s"]["loong_jax"] > 0
    assert "magnitudes" in capsys.readouterr().out


@pytest.mark.peers
def test_beside_math_verify(tmp_path, monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.setattr(verify, "_LONG_CHARS", 600)  # and no hostile case: the peer takes seconds
    result = run(tmp_path, "magnitudes bases")
    assert set(result["judges"]) == {"loong_jax", "Math-Verify"}
    for judge in result["judges"].values():
        assert judge["accuracy"]["total"]["positives"] > 0
    for figures in result["speed"].values():
        assert figures["speedup"] > 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "Expecting value"),
        ("[1]", "list"),
        ('{"gold": "1", "answer": "1"}', "expected is None"),
        ('{"gold": "1", "answer": 1, "expected": true}', "answer is 1"),
        ('{"gold": "1", "answer": "1", "expected": "yes"}', "expected is 'yes'"),
        ('{"gold": "1", "answer": "1", "expected": 1}', "expected is 1"),
    ],
)
def test_a_line_that_is_no_case_is_named(line, why, tmp_path, capsys):
    path = tmp_path / "cases.jsonl"
    path.write_text(f'{{"gold": "1", "answer": "1", "expected": true}}\n\n{line}\n')
    assert cli.main(["bench", "verify", "--parts", "math", "--cases", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"line 3 of {path} is no case" in said
    assert why in said


def test_work_that_a_judge_has_done_by_a_process_that_goes_on_counts():
    """As sympy's is, which our verifier keeps."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    running = []

    def judge(gold, answer):
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-c", burn], stdin=pipe, stdout=pipe)
        running.append(child)
        child.stdout.readline()
        return True

    case = verify.Case("", "1", "1", True, False)
    try:
        found = verify._speed({"judge": judge}, [case], 1)
        assert found["verdicts_per_cpu_s"]["judge"] < 1 / 0.25
    finally:
        for child in running:
            child.communicate(b"\n")
