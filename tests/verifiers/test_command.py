"""`loong verify`: one verdict a line, in order, whatever the lines hold."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from loong_jax import cli
from loong_jax.errors import VerifierError
from loong_jax.verifiers import command, get_verifier
from tests.verifiers import commanded


def test_a_file_of_records(tmp_path, capsys):
    lines = [
        {"gold": "1/2", "answer": "So \\boxed{0.5}", "id": "a"},
        {"gold": "2", "answer": "2 or 3"},
        b"not json",
        b"[" * 100_000,
        [1, 2],
        {"gold": "5"},
        {"gold": "5", "answer": 5},
        {"gold": "5", "answer": "5", "type": "nonsense"},
        {"gold": "5", "answer": "9**9**9**9"},
        {"gold": "1103_6", "answer": "1103", "question": "Write it in base six."},
        {"gold": "3.1", "answer": "3.2", "tolerance": 0.1},
        {"gold": 7, "answer": "7"},
        b'{"gold": NaN, "answer": "7"}',
        b'{"gold": 1e400, "answer": "7"}',
        b"\xff\xfe",
    ]
    verdicts = commanded.verdicts("math", lines, tmp_path)
    assert [v["verdict"] for v in verdicts] == [
        "correct", "wrong", *["ungradable"] * 7, *["correct"] * 3, *["ungradable"] * 3,
    ]  # fmt: skip
    assert verdicts[0]["id"] == "a"
    assert {"verdict", "reason", "evidence"} <= set(verdicts[0])
    assert all(v["reason"] for v in verdicts if v["verdict"] == "ungradable")
    assert "4 correct, 1 wrong, 10 ungradable" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["verify", "nonsense"], ["verify", "math", "--input", "absent"]])
def test_bad_usage_is_named(words, tmp_path, capsys):
    arguments = [*words, "--output", str(tmp_path / "out")] if len(words) > 2 else words
    assert cli.main(arguments) == 1
    assert "loong verify" in capsys.readouterr().err


def test_an_output_that_cannot_be_replaced_is_refused_before_anything_is_judged(tmp_path, capsys):
    source, pipe = tmp_path / "in.jsonl", tmp_path / "pipe"
    source.write_text('{"gold": "5", "answer": "5"}\n')
    os.mkfifo(pipe)
    for named, destination in ((tmp_path, tmp_path), (pipe, pipe), (source, source / "out.jsonl")):
        arguments = ["verify", "math", "--input", str(source), "--output", str(destination)]
        assert cli.main(arguments) == 1
        assert str(named) in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [source, pipe]
    assert pipe.is_fifo()


def test_what_the_command_prints_to_is_not_replaced(tmp_path):
    """A file that other verdicts were printed to before."""
    source, there = tmp_path / "in.jsonl", tmp_path / "there"
    source.write_text('{"gold": "5", "answer": "5"}\n')
    there.write_text("before\n")
    words = ["verify", "math", "--input", str(source), "--output", "/dev/stdout"]
    with there.open("a") as stdout:
        command_line = [sys.executable, "-m", "loong_jax.cli", *words]
        done = subprocess.run(command_line, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"/dev/stdout is no regular file" in done.stderr
    assert there.read_text() == "before\n"


def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(command, "as_record", full)
    source = tmp_path / "in.jsonl"
    source.write_text('{"gold": "5", "answer": "5"}\n')
    with pytest.raises(VerifierError, match=r"out\.jsonl\.partial: No space left"):
        command.verify_file(get_verifier("math"), source, tmp_path / "out.jsonl")


def test_an_interrupted_run_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_judge", interrupted)
    source = tmp_path / "in.jsonl"
    source.write_text('{"gold": "5", "answer": "5"}\n')
    with pytest.raises(KeyboardInterrupt):
        command.verify_file(get_verifier("math"), source, tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == [source]


def test_one_of_your_own_judges_files(tmp_path, monkeypatch):
    """The class of docs/how-to/add_verifier.md, which reads problems alone."""
    page = (Path(__file__).parents[2] / "docs/how-to/add_verifier.md").read_text()
    code, *_ = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(code)
    records = [{"gold": "[1,2]", "answer": answer} for answer in ("[1, 2]", "[2, 1]", 5)]
    judged = commanded.verdicts("own.py:JsonVerifier", records, tmp_path)
    assert [one["verdict"] for one in judged] == ["correct", "wrong", "ungradable"]
    assert cli.main(["verify", "mine", "--input", "in.jsonl", "--output", "out.jsonl"]) == 1


def test_an_output_that_is_a_link_stays_one(tmp_path):
    source, link = tmp_path / "in.jsonl", tmp_path / "link"
    source.write_text('{"gold": "5", "answer": "5"}\n')
    (tmp_path / "out.jsonl").touch()
    (tmp_path / "loop").symlink_to("loop")
    loop = ["--input", str(source), "--output", str(tmp_path / "loop")]
    assert cli.main(["verify", "math", *loop]) == 0  # leads nowhere, and is replaced
    link.symlink_to("out.jsonl")
    assert cli.main(["verify", "math", "--input", str(source), "--output", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "out.jsonl").read_text())["verdict"] == "correct"
