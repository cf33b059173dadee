"""Training over several processes: four of them on this machine, stopped, resumed, compared."""

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from loong_jax import cli, recipes
from loong_jax.models.moe import MoEConfig
from loong_jax.recipes import MeshSettings, Recipe
from loong_jax.rl.sft import first_cursors
from loong_jax.rl.trainer import TrainState
from loong_jax.run import pod_sft
from loong_jax.run.distributed import PREEMPTED
from tests import xla_flags
from tests.doubles import tiny
from tests.doubles.toy_policy import toy_policy
from tests.sweeps import thinned

ROOT = Path(__file__).resolve().parents[2]
NUM_DEVICES = 8  # of all processes together
NUM_STEPS = 20
PHASE_TIMEOUT_S = 600


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def model_overrides() -> list[str]:
    """The quickstart's model made smaller, field by field."""
    small, words = tiny.smallest_config(), []
    for field in dataclasses.fields(MoEConfig):
        value = getattr(small, field.name)
        if value != getattr(MoEConfig.tiny(), field.name):
            words += [f"--model.{field.name.replace('_', '-')}", str(value)]
    return words


class Pod:
    """Processes that run the same command on CPU devices of their own."""

    def __init__(self, run_dir: Path, logs: Path, num_processes: int):
        self.run_dir, self.logs = run_dir, logs
        logs.mkdir()
        command = [
            sys.executable, "-m", "loong_jax.cli", "train", "pod-sft", "--run-dir", str(run_dir),
            "--mesh.data", "1", "--mesh.fsdp", "2", "--mesh.expert", "2", "--mesh.context", "2",
            "--sft.num-steps", str(NUM_STEPS), "--sft.rows", "8", "--sft.row-length", "160",
            "--sft.checkpoint-every", "1000", *model_overrides(),
        ]  # fmt: skip
        environment = {
            **os.environ,
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={NUM_DEVICES // num_processes} "
            + xla_flags.QUICK_TO_COMPILE,
            "JAX_PLATFORMS": "cpu",
            # threads of XLA: a device that waits for another holds one, and two cores give too few
            "NPROC": str(2 * NUM_DEVICES),
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "JAX_NUM_PROCESSES": str(num_processes),
        }
        self.processes = []
        for index in range(num_processes):
            with (logs / f"{index}.log").open("w") as log:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        env={**environment, "JAX_PROCESS_ID": str(index)},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )

    def said(self, index: int) -> str:
        return (self.logs / f"{index}.log").read_text()

    def losses(self) -> list[dict]:
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        timed = ("time_s", "tokens_per_s")
        records = [json.loads(line) for line in lines]
        return [{key: v for key, v in record.items() if key not in timed} for record in records]

    def wait_for_steps(self, count: int) -> None:
        deadline_s = time.monotonic() + PHASE_TIMEOUT_S
        while len(self.losses()) < count:
            for index, process in enumerate(self.processes):
                assert process.poll() is None, self.said(index)[-3000:]
            assert time.monotonic() < deadline_s, self.said(0)[-3000:]
            time.sleep(0.05)

    def statuses(self) -> list[int]:
        deadline_s = time.monotonic() + PHASE_TIMEOUT_S
        return [p.wait(max(deadline_s - time.monotonic(), 0.1)) for p in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)


@pytest.fixture
def start(tmp_path, num_processes):
    """`start(run)` starts all processes in the run directory of that name."""
    pods = []

    def begin(run: str) -> Pod:
        pods.append(Pod(tmp_path / run, tmp_path / f"logs{len(pods)}", num_processes))
        return pods[-1]

    yield begin
    for pod in pods:
        pod.kill()


def final_arrays(pod: Pod) -> dict[str, np.ndarray]:
    """Everything in the last checkpoint, read by this process alone."""
    path = pod.run_dir / "checkpoints" / str(NUM_STEPS) / "arrays"
    with ocp.PyTreeCheckpointer() as reader:
        names = reader.metadata(path).item_metadata.tree
        kinds = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        return reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=kinds))


# ---- one process


def two_steps() -> Recipe:
    recipe = recipes.get_recipe("pod-sft")()
    recipe = dataclasses.replace(recipe, mesh=MeshSettings(fsdp=8))
    return recipe.with_stage("sft", num_steps=2, rows=8, checkpoint_every=1000)


@pytest.fixture
def sigterm_in_step(monkeypatch):
    """Steps count and do no more; `sigterm_in_step(n)` sends this process SIGTERM in step n."""
    told_in = []

    def compile_counter(recipe, settings, rules):
        def fresh():
            return TrainState(jnp.zeros((), jnp.int32), {}, ()), first_cursors(rules)

        template = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), fresh()
        )
        return pod_sft._Programs(
            policy=toy_policy(), fresh=fresh, template=template, train_step=count
        )

    def count(state, batch, frozen):
        if int(state.step) + 1 in told_in:
            os.kill(os.getpid(), signal.SIGTERM)
        load = jnp.ones((1, 3), jnp.int32)
        return state._replace(step=state.step + 1), {"loss": 1 / (1 + int(state.step))}, load

    monkeypatch.setattr(pod_sft, "_compile", compile_counter)
    return told_in.append


def summary_of(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text())


def test_a_run_that_is_told_to_stop_in_its_last_step_is_done(tmp_path, sigterm_in_step, capsys):
    recipe, run_dir = two_steps(), tmp_path / "run"
    sigterm_in_step(1)
    assert pod_sft.train(recipe, run_dir) == PREEMPTED
    assert not (run_dir / "summary.json").exists()
    sigterm_in_step(2)
    assert pod_sft.train(recipe, run_dir) == 0
    assert "done, 2 steps" in capsys.readouterr().out
    whole = summary_of(run_dir)
    assert (whole["steps"], whole["num_processes"], whole["num_devices"]) == (2, 1, 8)
    assert whole["last_step"]["loss"] == 0.5

    (run_dir / "summary.json").unlink()  # as where a kill comes between the save and the summary
    assert pod_sft.train(recipe, run_dir) == 0
    assert "done before, 2 steps" in capsys.readouterr().out
    unknown = dict.fromkeys(("num_processes", "platform", "versions"))
    assert summary_of(run_dir) == whole | unknown

    (run_dir / "summary.json").write_text(json.dumps(whole))
    assert pod_sft.train(recipe, run_dir) == 0
    assert summary_of(run_dir) == whole

    (run_dir / "summary.json").write_text(json.dumps(whole | {"steps": 1}))  # of a shorter run
    (run_dir / "metrics.jsonl").unlink()
    assert pod_sft.train(recipe, run_dir) == 0
    assert summary_of(run_dir) == whole | unknown | {"last_step": {}}


def one_line(words: str, capsys) -> str:
    assert cli.main(["train", "pod-sft", "--mesh.fsdp", "2", *words.split()]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_places_that_cannot_be_written_to_are_refused_in_a_line(tmp_path, capsys):
    (tmp_path / "file").touch()
    for option, place in (
        ("--run-dir", "/proc/x"),
        ("--run-dir", tmp_path / "file"),
        ("--checkpoints", "/proc/x"),
        ("--checkpoints", tmp_path / "file"),
    ):
        words = f"--run-dir {tmp_path / 'run'} {option} {place}"
        assert f"{option} {place} cannot be written to: " in one_line(words, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["num-steps", "rows", "checkpoint-every"])
def test_invalid_settings_leave_nothing_behind(name, tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "pod-sft", "--run-dir", str(tmp_path / "run"), f"--sft.{name}", "0"])
    assert f"{name.replace('-', '_')}=0 must be at least 1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_says_what_every_option_of_the_recipe_is_for(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "pod-sft", "--help-all"])
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    for option in (
        "name", "seed", "start-from", "stack-start", "routing-every", "checkpoints",
        "keep-checkpoints",
    ):  # fmt: skip
        (at,) = (i for i, line in enumerate(lines) if line.startswith(f"--{option} "))
        assert not lines[at + 1].startswith("(default"), option


# ---- several processes


@pytest.mark.parametrize("num_processes", thinned([2, 4], 0))
@pytest.mark.slow
@pytest.mark.multiproc
@pytest.mark.timeout(4 * PHASE_TIMEOUT_S)
def test_sigterm_to_one_process_saves_all_and_the_resumed_run_equals_a_whole_one(
    start, num_processes
):
    whole = start("whole")
    assert whole.statuses() == [0] * num_processes, whole.said(0)[-3000:]

    stopped = start("stopped")
    stopped.wait_for_steps(3)
    stopped.processes[-1].send_signal(signal.SIGTERM)
    assert stopped.statuses() == [PREEMPTED] * num_processes, stopped.said(0)[-3000:]
    (step,) = {
        int(s)
        for i in range(num_processes)
        for s in re.findall(r"saved step (\d+)", stopped.said(i))
    }
    assert 3 <= step < NUM_STEPS
    finished = {p.name for p in (stopped.run_dir / "checkpoints").iterdir() if p.name.isdecimal()}
    assert finished == {str(step)}

    resumed = start("stopped")
    assert resumed.statuses() == [0] * num_processes, resumed.said(0)[-3000:]
    for index in range(num_processes):
        assert f"[{index}/{num_processes}] resumed at step {step} of {NUM_STEPS}" in resumed.said(
            index
        )
    assert [line["step"] for line in resumed.losses()] == list(range(1, NUM_STEPS + 1))
    assert resumed.losses() == whole.losses()
    assert whole.losses()[-1]["loss"] < whole.losses()[0]["loss"] - 0.5
    expected, found = final_arrays(whole), final_arrays(resumed)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    summary = json.loads((resumed.run_dir / "summary.json").read_text())
    assert (summary["steps"], summary["num_processes"]) == (NUM_STEPS, num_processes)

    again = start("stopped")  # what is done is not done again
    assert again.statuses() == [0] * num_processes, again.said(0)[-3000:]
    assert f"done before, {NUM_STEPS} steps" in again.said(1)
    assert resumed.losses() == whole.losses()
