"""A run directory belongs to one process at a time."""

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
from loong_jax.errors import ConfigError
from loong_jax.run import pipeline

HOLDS = """
import os, sys, time
from pathlib import Path
from loong_jax.run import pipeline
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
