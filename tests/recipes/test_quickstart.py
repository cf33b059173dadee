"""The tutorial's first run as printed, its quickstart cut short and killed in the middle of RL."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from loong_jax.rollout.records import TICKET_ENDS
from tests import xla_flags
from tests.docs import reading
from tests.sweeps import thinned

pytestmark = [pytest.mark.quickstart, pytest.mark.timeout(2400)]

STEPS, GENERAL_STEPS = 5, 2
STAGES = {"rl_stem": STEPS, "rl_logic": STEPS, "rl_code": STEPS, "general": GENERAL_STEPS}
COMMAND = [sys.executable, "-m", "loong_jax.cli", "train", "quickstart"]


def each_stage(option: str, *values: object) -> list[str]:
    names = [name.replace("_", "-") for name in STAGES]
    return [word for name in names for word in (f"--{name}.{option}", *map(str, values))]


SHORT = [
    *each_stage("num-steps", STEPS), "--rl-stem.checkpoint-every", "2",
    "--general.num-steps", str(GENERAL_STEPS), "--fused.scales", "2", "--fused.keep-rates", "1",
]  # fmt: skip
LITTLE = [
    *SHORT, *reading.LITTLE, "--sft.num-steps", "2", "--fused.num-problems", "2",
    *each_stage("scheduler.groups-per-step", 2), *each_stage("learns-from-all"),
]  # fmt: skip
ENOUGH = [
    *SHORT, "--fused.num-problems", "16",
    "--evaluation.num-problems", "64", "--evaluation.num-pass-at-problems", "16",
]  # fmt: skip
# what a run does, for a landing; and how well, for a release: options, and XLA's flags
SIZES = {"little": (LITTLE, xla_flags.QUICK_TO_COMPILE), "enough": (ENOUGH, "")}
enough = pytest.mark.parametrize(
    "run_dir", [pytest.param("enough", marks=pytest.mark.release)], indirect=True
)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module", params=thinned(SIZES, 0))
def run_dir(request, tmp_path_factory):
    """Of a run that was killed without warning once `rl_stem` had its first checkpoint, and that
    the page, which then runs as printed, goes on with.
    """
    options, flags = SIZES[request.param]
    place = tmp_path_factory.mktemp("reader")
    directory = place / "runs" / "quickstart"
    metrics = directory / "stages" / "rl_stem" / "metrics.jsonl"
    environment = {**os.environ, "XLA_FLAGS": flags}
    command = [*COMMAND, *options, "--run-dir", str(directory)]
    first = subprocess.Popen(command, env=environment, start_new_session=True)
    deadline_s = time.monotonic() + 900
    while len(lines(metrics)) < 4 and first.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert first.poll() is None, "the run ended before it could be killed"
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    killed_at = len(lines(metrics))
    shorter = {"train quickstart --run-dir": options, "eval": reading.EVAL}
    reading.run("tutorials/first_run.md", place, shorter, flags)
    assert 4 <= killed_at <= STEPS
    return directory


def summary_of(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def test_the_page_leaves_what_it_promises(run_dir):
    for name in ("report.html", "summary.json", "metrics.jsonl", "stages/sft/rollouts"):
        assert (run_dir / name).exists()
    assert list((run_dir.parents[1] / "exported").glob("*.safetensors"))


def test_an_objective_of_ones_own_trains_what_it_left(run_dir):
    short = ["--engine.num-replicas", "1", *reading.LITTLE, *reading.RL]
    place = run_dir.parents[1]
    (place / "runs/start").symlink_to(run_dir / "stages/sft")
    reading.run("tutorials/own_objective.md", place, {"train rl": short})
    assert (place / "runs/bold/report.html").exists()


def test_every_step_happened_once(run_dir):
    for stage, steps in STAGES.items():
        records = [json.loads(x) for x in lines(run_dir / "stages" / stage / "metrics.jsonl")]
        assert [record["step"] for record in records] == list(range(1, steps + 1))


def test_no_ticket_is_lost(run_dir):
    summary = summary_of(run_dir)
    tickets = summary["tickets"]
    assert tickets["issued"] == sum(tickets[end] for end in TICKET_ENDS)
    stages = json.loads((run_dir / "config.json").read_text())["config"]["stages"]
    groups = {name: stages[name]["scheduler"]["groups_per_step"] for name in STAGES}
    assert tickets["trained"] == sum(groups[name] * steps for name, steps in STAGES.items())


def test_the_summary_holds_what_it_promises(run_dir):
    summary = summary_of(run_dir)
    assert summary["wall_s"] > 0
    assert 0 < summary["peak_gb"] < 6
    config = json.loads((run_dir / "config.json").read_text())["config"]
    num_problems = config["evaluation"]["num_problems"]
    stages = summary["stages"]
    assert list(stages) == ["sft", "rl_stem", "rl_logic", "rl_code", "fused", "general"]
    for name, domains in stages.items():
        for figures in domains.values():
            low, high = figures["ci95"]
            assert 0 <= low <= figures["pass@1"] <= high <= 1, name
            assert figures["n"] == num_problems


@enough
def test_the_cold_start_is_well_formed_and_leaves_room(run_dir):
    for domain, figures in summary_of(run_dir)["stages"]["sft"].items():
        assert figures["well_formed"] >= 0.95, domain
        assert 0.15 <= figures["pass@1"] <= 0.65, domain


def test_staleness_is_bounded(run_dir):
    assert set(summary_of(run_dir)["staleness"]) <= {"0", "1", "2"}


@enough
def test_generation_and_training_overlap(run_dir):
    summary = summary_of(run_dir)
    # The whole quickstart asks for 0.2; here the first step, which compiles, weighs three times.
    assert summary["overlap"]["two_versions_decoding"] >= 0.05
    assert summary["overlap"]["training_covered_by_decoding"] >= 0.05
    assert 0.2 <= summary["overlap"]["trained_at_staleness_1_or_more"] <= 0.85


def test_the_report_is_whole(run_dir):
    page = (run_dir / "report.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert (run_dir / "headline.png").stat().st_size > 10_000


MESH = ["--mesh.fsdp", "2", "--mesh.expert", "2", "--mesh.tensor", "2"]
SPLIT = ["--mesh.fsdp", "4", "--replica-mesh.tensor", "2", "--engine.placement.devices", "own"]


@pytest.mark.release
@pytest.mark.parametrize("mesh", [MESH, SPLIT], ids=["in turns", "split"])
def test_a_stage_runs_on_the_devices_of_a_mesh(run_dir, tmp_path, mesh):
    """Eight devices made of the CPU: reinforcement learning and evaluation on all of them."""
    command = [
        *COMMAND, "--only", "rl_stem", "--from", str(run_dir), "--run-dir", str(tmp_path / "m"),
        "--rl-stem.num-steps", "1", "--rl-stem.scheduler.groups-per-step", "4", "--sft.rows", "8",
        "--engine.slots-per-replica", "32", "--rl-stem.learns-from-all",
        "--evaluation.num-problems", "16", "--evaluation.pass-at", "4",
        "--evaluation.num-pass-at-problems", "4", *mesh,
    ]  # fmt: skip
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        command, env={**os.environ, "XLA_FLAGS": flags}, timeout=900, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "memory of a device" in done.stderr
    stage = tmp_path / "m" / "stages" / "rl_stem"
    (record,) = [json.loads(line) for line in lines(stage / "metrics.jsonl")]
    assert record["step"] == 1
    assert record["grad_norm"] > 0
    assert json.loads((stage / "evaluation.json").read_text())["domains"]["stem"]["n"] == 16
