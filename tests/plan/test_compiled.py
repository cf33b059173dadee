"""The parent's side of the compiling process: its environment, its failures, its result."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loong_jax import interrupts
from loong_jax.plan import compiled
from tests.plan import test_plan


@pytest.fixture(autouse=True)
def paired(monkeypatch):
    monkeypatch.setattr(compiled, "check_versions", lambda: None)


def answer(monkeypatch, run):
    monkeypatch.setattr(compiled.subprocess, "run", run)


def test_the_child_gets_what_libtpu_needs_and_its_files_are_read(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    seen = {}

    def run(command, env, **_):
        seen.update(env)
        request_path, directory = map(Path, command[-2:])
        asked = json.loads(request_path.read_text())
        program = {
            "memory": {"argument": 1, "output": 1, "alias": 1, "temp": 1, "generated_code": 1},
            "arguments": {"weights": asked["batch"]},
            "host_bytes": 0,
            "resident": {"optimizer": 3},
            "runs": 2,
            "shardings": {},
        }
        result = {
            "coordinates": [[0, 0, 0, 0]],
            "weights": {"total": 1},
            "programs": {"update": program},
        }
        (directory / "compiled.json").write_text(json.dumps(result))
        (directory / "update.hlo").write_text("HloModule m")
        return subprocess.CompletedProcess(command, 0, "", "")

    answer(monkeypatch, run)
    (found,) = compiled.compile_ahead(test_plan.make_request(), timeout_s=5, keep=tmp_path / "kept")
    assert found.text == "HloModule m"
    assert (found.name, found.runs, found.resident) == ("update", 2, {"optimizer": 3})
    assert found.arguments == {"weights": 8}
    assert found.coordinates == ((0, 0, 0, 0),)
    assert {name: seen[name] for name in compiled.ENVIRONMENT} == {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    assert "XLA_FLAGS" not in seen
    assert (tmp_path / "kept" / "request.json").exists()


def test_a_child_that_fails_is_quoted(monkeypatch):
    said = "Traceback ...\njax.errors.JaxRuntimeError: INVALID_ARGUMENT: No such option\nnote\n"

    def run(command, **_):
        return subprocess.CompletedProcess(command, 1, "", said)

    answer(monkeypatch, run)
    with pytest.raises(compiled.CompilerError, match="No such option"):
        compiled.compile_ahead(test_plan.make_request(), timeout_s=5)


def test_a_child_that_takes_too_long_is_named(monkeypatch):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    answer(monkeypatch, run)
    with pytest.raises(compiled.CompilerError, match="longer than 5 s"):
        compiled.compile_ahead(test_plan.make_request(), timeout_s=5)


def test_sigterm_ends_the_child_and_leaves_no_files(monkeypatch):
    directories = []

    def run(command, **_):
        directories.append(Path(command[-1]))
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("SIGTERM was not heard")

    answer(monkeypatch, run)
    with pytest.raises(interrupts.Terminated), interrupts.handled():
        compiled.compile_ahead(test_plan.make_request(), timeout_s=5)
    assert not directories[0].exists()


ORPHAN = """
import os, time
from loong_jax.plan import compiled
if not os.fork():
    compiled.end_with(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
parent, (heard, ready) = os.getpid(), os.pipe()
if os.fork():
    os.read(heard, 1)
    os._exit(0)
compiled.end_with(parent)
os.write(ready, b"1")
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end a child with its parent")
def test_a_child_ends_with_its_parent_and_does_not_start_after_it():
    """Whose output stays open as long as either lives."""
    command = [sys.executable, "-c", ORPHAN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "has ended" in done.stderr
