"""Stages run once, in order, and go on where they were interrupted, one process at a time."""

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from loong_jax import cli
from loong_jax.configs import Difference
from loong_jax.data import json_files
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.run import pipeline, run
from loong_jax.run.pipeline import StageGraph, stage_directory

NEEDED = {"a": (), "b": ("a",), "c": ("a", "b")}


def graph(run_dir, needed=NEEDED, **where):
    return StageGraph(needed=needed, run_dir=run_dir, **where)


def recording(log, fail_in=None):
    def run(name, directories):
        log.append((name, sorted(directories.inputs)))
        if name == fail_in:
            raise RuntimeError("interrupted")
        return {"name": name}

    return run


def test_runs_in_order_and_skips_what_is_done(tmp_path):
    log = []
    with pytest.raises(RuntimeError, match="interrupted"):
        graph(tmp_path).run(recording(log, fail_in="b"))
    graph(tmp_path).run(recording(log))
    assert log == [("a", []), ("b", ["a"]), ("b", ["a"]), ("c", ["a", "b"])]
    assert json_files.read_json(stage_directory(tmp_path, "c") / "done.json")["name"] == "c"
    skipped = []
    graph(tmp_path).run(recording(log), on_skip=skipped.append)
    assert (len(log), skipped) == (4, list(NEEDED))


def test_only_one_stage_takes_its_inputs_from_another_run(tmp_path):
    log = []
    with pytest.raises(CheckpointError, match="'a' is not done"):
        graph(tmp_path / "new", only="b").run(recording(log))
    graph(tmp_path / "old").run(recording(log))
    graph(tmp_path / "new", only="b", source=tmp_path / "old").run(recording(log))
    assert log[-1] == ("b", ["a"])


def test_refuses_unknown_and_misordered_stages(tmp_path):
    with pytest.raises(ConfigError, match="'z' is unknown"):
        graph(tmp_path, only="z").refuse_missing()
    with pytest.raises(ConfigError, match="comes before"):
        graph(tmp_path, dict(reversed(NEEDED.items()))).refuse_missing()


def test_what_is_missing_is_said_before_any_stage_works(tmp_path):
    log = []
    lost = NEEDED | {"d": ("c", "elsewhere")}
    with pytest.raises(CheckpointError, match="'elsewhere' is not done"):
        graph(tmp_path / "new", lost).run(recording(log))
    assert log == []
    needed = {"a": (), "b": ("a",)}
    with pytest.raises(CheckpointError, match=r"old holds no stages.*--from"):
        graph(tmp_path / "new", needed, source=tmp_path / "old").refuse_missing()
    with pytest.raises(CheckpointError, match="'a' is not done"):
        graph(tmp_path / "new", needed, only="b").refuse_missing()
    graph(tmp_path / "new", needed, only="b", given={"a": tmp_path}).refuse_missing()
    graph(tmp_path / "new", needed).refuse_missing()


def test_the_time_of_a_stage_adds_up_over_its_interruptions(tmp_path):
    graph(tmp_path, {"a": ()}).run(lambda *_: {"earlier_s": 70.0})
    assert json_files.read_json(stage_directory(tmp_path, "a") / "done.json")["wall_s"] >= 70


HOLDS = """
import os, sys, time
from pathlib import Path
from loong_jax.configs import Difference
from loong_jax.run import pipeline, run
with pipeline.holding(Path(sys.argv[1])):
    if os.fork() == 0:  # a child that outlives its parent holds nothing
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print("holds", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds `tmp_path` and has forked; both end with the test."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"holds\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path, holder, capsys):
    who = f"process {holder.pid} on {socket.gethostname()} works in it"
    with pytest.raises(ConfigError, match=who), pipeline.holding(tmp_path):
        pass
    for recipe in (["sft"], ["pod-sft", "--mesh.fsdp", "8", "--mesh.expert", "1"]):
        assert cli.main(["train", *recipe, "--run-dir", str(tmp_path)]) == 1
        assert who in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [pipeline.LOCK]
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(10)
    with pipeline.holding(tmp_path):
        found = json.loads((tmp_path / pipeline.LOCK).read_text())
    assert found["pid"] == os.getpid()
    with pipeline.holding(tmp_path):
        pass  # released at the end


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with caplog.at_level(logging.WARNING), pipeline.holding(tmp_path):
        assert "cannot be locked (No locks available)" in caplog.text


def test_a_stage_that_is_done_keeps_its_steps(tmp_path):
    """The settings of a run say what was trained; one that is not done may be longer."""
    json_files.write_json(tmp_path / "stages" / "rl" / "done.json", {})
    longer = [Difference(f"stages.{name}.num_steps", 6, 8) for name in ("sft", "rl")]
    run._refuse_more_steps(longer[:1], tmp_path)
    with pytest.raises(ConfigError, match=r"has 6, you gave 8, and stage rl is done.*--start-from"):
        run._refuse_more_steps(longer, tmp_path)
