"""Planning, running, comparing: by hand on made-up results, and once from end to end."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from loong_jax import bench, configs
from loong_jax.bench.ablation import arms, command, comparing, figures, runs
from loong_jax.bench.ablation.arms import GROUPS, Arm, Size
from loong_jax.bench.ablation.runs import Run
from loong_jax.bench.short_runs import child, running
from loong_jax.bench.short_runs.running import RunFailed, WorkDir
from loong_jax.data import json_files
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.launch.recipe import LocalVerifiers
from loong_jax.launch.recipes.quickstart import quickstart
from loong_jax.orchestrator.pipeline import is_done
from loong_jax.rl.rewards import RewardRule
from tests.doubles import tiny

SIZE = Size(steps=3, groups_per_step=8, problems=6, samples=2)


def evaluation(correct):
    """As a run leaves it; `correct` of 2 samples of each problem."""
    counts = {f"p{i}": [c, 2] for i, c in enumerate(correct)}
    return {
        "correct_per_problem": counts,
        "well_formed_per_problem": dict.fromkeys(counts, 2),
        "level_per_problem": dict.fromkeys(counts, 1),
        "greedy_per_problem": {},
        "pass_at": 0,
        "pass_at_correct_per_problem": {},
        "mean_length": 5.0,
        "ungradable": 0,
        "isolation": {},
    }


def result(correct, **changes):
    return {
        "pass@1": sum(correct) / (2 * len(correct)),
        "evaluation": evaluation(correct),
        "consumed_tokens": 1000.0,
        "mean_staleness": 1.5,
        "reread_groups": 0,
        "cpu_s": 60.0,
        "wall_s": 61.0,
        "curves": {"rewards/mean": [0.1, 0.2, 0.4]},
    } | changes


def results_of(group, by_arm):
    """By key of the run; `by_arm[arm]` has one result per seed."""
    return {
        Run(label="", arm=GROUPS[group].arms[arm], seed=seed, size=SIZE).key: one
        for arm, each in by_arm.items()
        for seed, one in enumerate(each)
    }


def test_equal_arms_are_one_run_and_everything_enters_the_key():
    planned = runs.plan(GROUPS, (0, 1, 2), SIZE)
    assert len({run.key for run in planned}) == len(planned) == 13 * 3
    every = [arm for group in GROUPS.values() for arm in group.arms.values()]
    assert len(set(every)) == 13
    assert len(every) == 16
    assert [run.seed for run in planned] == [0] * 13 + [1] * 13 + [2] * 13
    (first, *_) = planned
    for changed in (dict(seed=7), dict(size=Size(steps=4)), dict(arm=Arm(mantissa_bits=5))):
        assert dataclasses.replace(first, **changed).key != first.key
    assert dataclasses.replace(first, label="another").key == first.key


def test_recipes_of_arms_read_back_and_consume_alike():
    for group in GROUPS.values():
        for arm in group.arms.values():
            recipe = arms.recipe_of(arm, 5, Size())
            written = json.loads(json.dumps(configs.to_json(recipe)))
            assert configs.from_json(written) == recipe
            stage = recipe.stages[arms.STAGE]
            num_fresh = stage.scheduler.groups_per_step
            assert num_fresh + round(stage.reuse.num_old(num_fresh)) == Size().groups_per_step
            assert stage.num_steps == Size().steps
            assert recipe.engine.mantissa_bits == arm.mantissa_bits
            assert stage.replays_routing == arm.replays_routing
    assert GROUPS["staleness"].base == "0"


def test_differences_are_paired_by_problem_and_seed():
    base = [result([0, 1, 2, 0, 1, 2]), result([1, 1, 2, 0, 0, 2])]
    ours = [result([1, 1, 2, 0, 2, 2]), result([2, 2, 2, 1, 0, 2])]
    found = results_of("staleness", {"0": base, "2": ours})
    compared = comparing.compare(["staleness"], (0, 1), SIZE, found)
    row = compared["staleness"]["arms"]["2"]
    by_seed = [100 * 2 / 12, 100 * 3 / 12]
    assert row["by_seed_points"] == {"0": pytest.approx(by_seed[0]), "1": pytest.approx(by_seed[1])}
    assert row["difference_points"] == pytest.approx(np.mean(by_seed))
    low, high = row["ci95_points"]
    # Student's interval of two seeds alone: 12.7062 standard errors
    between = 12.7062 * np.std(by_seed, ddof=1) / np.sqrt(2)
    assert high - row["difference_points"] >= between * 0.999
    assert low < 0 < high
    assert "difference_points" not in compared["staleness"]["arms"]["0"]
    assert compared["staleness"]["arms"]["4"] == {"errors": {}, "pass@1": {}}
    said = comparing.loss_at_two(compared)
    assert said.startswith("Loss at staleness 2: -20.8 points")
    text = comparing.table(compared)
    assert "+20.8" in text
    assert "no run has ended" in text
    picture = figures.png("staleness", compared["staleness"], found, (0, 1), SIZE)
    assert picture.startswith(b"\x89PNG")


def test_a_run_that_failed_is_a_row_with_its_reason():
    base, failed = result([0, 1, 2, 0, 1, 2]), {"error": "status 1: KeyError: 'x'"}
    found = results_of("objective", {"eq. 4": [base, failed], "GRPO": [failed, base]})
    compared = comparing.compare(["objective"], (0, 1), SIZE, found)
    grpo = compared["objective"]["arms"]["GRPO"]
    assert grpo["errors"] == {"0": "status 1: KeyError: 'x'"}
    assert "difference_points" not in grpo, "no seed has both"
    assert "KeyError" in comparing.table(compared)
    assert comparing.loss_at_two(compared) == ""


def test_a_run_is_made_once_and_a_failed_one_again(tmp_path, monkeypatch):
    work = WorkDir(tmp_path / "work", None)
    planned = runs.plan(["staleness"], (0,), SIZE)
    lived, broken = [], {planned[1].key}

    def run(work, run, core, timeout_s, stopping):
        lived.append(run.key)
        if run.key in broken:
            raise RunFailed("status 1: it broke")
        work.keep(run, result([1] * 6))
        return work.result(run)

    monkeypatch.setattr(running, "_run", run)
    said = []
    found = running.run_all(work, planned, jobs=2, timeout_s=1.0, say=said.append)
    assert sorted(lived) == sorted(r.key for r in planned)
    assert found[planned[1].key] == {"error": "status 1: it broke"}
    assert any("it broke" in line for line in said)
    lived.clear()
    broken.clear()
    again = running.run_all(work, planned, jobs=2, timeout_s=1.0, say=said.append)
    assert lived == [planned[1].key]
    assert all("error" not in one for one in again.values())
    assert len(work.finished()) == len(planned)
    with pytest.raises(ConfigError, match="another --work-dir"):
        WorkDir(tmp_path / "work", tmp_path / "other")


def a_task(**changes):
    defaults = dict(recipe={}, stage="rl_stem", run_dir="x", source=None, core=None)
    return child.Task(**(defaults | dict(parent=os.getpid()) | changes))


def test_a_child_that_fails_says_why_and_one_that_hangs_is_ended(tmp_path):
    with pytest.raises(RunFailed, match=r"ConfigError.*no_such_kind"):
        running._live(
            a_task(recipe={"_kind": "no_such_kind"}), tmp_path / "a", 300.0, {}, threading.Event()
        )
    slept = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    assert running._wait(slept, time.monotonic() + 0.2, threading.Event()) == (None, 0.0)
    assert slept.returncode is not None


def test_a_source_without_the_cold_start_is_refused(tmp_path):
    work = WorkDir(tmp_path / "work", tmp_path / "empty")
    with pytest.raises(CheckpointError, match="no finished stage sft"):
        running.make_cold_start(work, quickstart(), say=print)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(groups="staleness,colour"), "must name some of"),
        (dict(seeds=()), "at least one seed"),
        (dict(seeds=(1, 1)), "each once"),
        (dict(jobs=0), "jobs=0"),
    ],
)
def test_refuses_options_that_cannot_be(wrong, said):
    with pytest.raises(ConfigError, match=said):
        command.Options(**wrong)


def test_it_is_a_bench():
    assert bench.get_bench("quickstart-ablation") is command.main


def small_quickstart():
    """So little training that answers are wrong, some in the right form: that alone is rewarded."""
    whole = quickstart()
    small = dataclasses.replace(
        whole,
        model=tiny.smallest_config(),
        engine=dataclasses.replace(whole.engine, slots_per_replica=32, narrow_slots=()),
        verifiers=LocalVerifiers(num_workers=1),
        evaluation=dataclasses.replace(
            whole.evaluation, num_problems=6, greedy=False, pass_at=0, samples_per_problem=2
        ),
    )
    small = small.with_stage("sft", num_steps=150, first_pairs=600)
    return small.with_stage("rl_stem", reward=RewardRule(malformed=-1.0))


@pytest.mark.release
@pytest.mark.timeout(900)
def test_from_the_cold_start_to_the_chart_and_on_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(arms, "quickstart", small_quickstart)
    one = arms.Group(question="any", arms={"reread": Arm(max_staleness=2, reuse_share=0.25)})
    monkeypatch.setitem(GROUPS, "replay", one)
    chosen = command.Options(
        work_dir=tmp_path / "work", groups="replay", seeds=(0,), jobs=1, max_minutes=8, size=SIZE
    )
    said = []
    work = WorkDir(chosen.work_dir, None)
    (run,) = runs.plan(["replay"], (0,), SIZE)
    running.make_cold_start(work, small_quickstart(), say=said.append)
    assert is_done(work.source, "sft")
    with pytest.raises(RunFailed, match="run the bench again"):
        running._run(work, run, None, 0.5, threading.Event())
    found = command.measure(chosen, say=said.append)
    assert found["runs"][run.key]["steps"] == SIZE.steps
    assert found["runs"][run.key]["reread_groups"] > 0
    assert found["groups"]["replay"]["arms"]["reread"]["errors"] == {}
    assert len(work.finished()) == 1
    assert not work.run_dir(run).exists()
    json_files.write_json(tmp_path / "all.json", found)
    lived = time.monotonic()
    again = command.measure(chosen, say=said.append)
    assert again["runs"] == found["runs"]
    assert time.monotonic() >= lived
    assert any("1 of 1 runs" in line for line in said)
