"""The log of a stage: what is written, and what a kill and a resume leave."""

import dataclasses
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from loong_jax.problems import verdict as verdicts
from loong_jax.problems.response import render_response
from loong_jax.report import metrics_log
from loong_jax.report.metrics_log import MetricsLog
from loong_jax.rollout.records import Group, Ticket
from tests.doubles import fake_world


def group(rewards, *, version=0, domain="stem", length=5):
    problem = dataclasses.replace(fake_world.problem_at(1), domain=domain, prompt="1+1=?")
    ticket, rollouts = Ticket(number=0, problem=problem), []
    for attempt, reward in enumerate(rewards):
        verdict = verdicts.correct(isolation="process") if reward else verdicts.wrong("value")
        if reward is None:
            verdict = verdicts.ungradable("timeout")
        rollouts.append(
            dataclasses.replace(
                fake_world.fake_rollout(ticket, attempt, version),
                tokens=np.zeros(length + attempt, np.int32),
                text=render_response("t", "2") if reward else "2",
                verdict=verdict,
                reward=reward,
            )
        )
    return Group(ticket=ticket, version=version, rollouts=tuple(rollouts))


class Clock:
    def __init__(self, now=100.0):
        self.now = now

    def __call__(self):
        self.now += 1.0
        return self.now


def write_steps(directory, steps, **kwargs):
    clock = Clock()
    with MetricsLog(directory, stage="rl_stem", clock=clock, **kwargs) as log:
        for step in steps:
            now = clock.now
            log.event(
                {"kind": "decode", "replica": 0, "version": step - 1, "start_s": now,
                 "end_s": now + 0.5, "num_tokens": 4}
            )  # fmt: skip
            log.judged(group([0.0, 0.0]), "filtered")
            trained = group([1.0, 0.0, None], version=step - 1)
            log.judged(trained, "keep")
            log.event({"kind": "train", "step": step, "start_s": now + 0.5, "end_s": now + 0.8})
            log.event(
                {"kind": "publish", "version": step, "start_s": now + 0.8, "end_s": now + 0.9}
            )
            log.step(step, {"loss": 1.0 / step, "tickets": {"issued": 2 * step}}, [trained])


def test_a_step_counts_what_was_trained_and_what_was_judged(tmp_path):
    write_steps(tmp_path, [1])
    (line,) = metrics_log.read_metrics(tmp_path)
    assert (line["stage"], line["step"], line["loss"]) == ("rl_stem", 1, 1.0)
    assert line["rewards/mean"] == 0.5
    assert line["rewards/all_groups_mean"] == 0.25
    assert line["rewards/by_domain"] == {"stem": 0.5}
    assert line["correct/by_domain"] == {"stem": 0.25}
    assert line["completions/mean_length"] == 5.5
    assert line["completions/well_formed"] == pytest.approx(1 / 5)
    assert line["staleness/histogram"] == {"0": 2}
    assert line["judged/groups"] == {"filtered": 1, "keep": 1}
    assert line["judged/verdicts"] == {"wrong": 3, "correct": 1, "ungradable": 1}
    assert line["judged/isolation"] == {"none": 4, "process": 1}
    shown = metrics_log.read_rollouts(tmp_path)
    assert [r["outcome"] for r in shown] == ["correct", "wrong"]
    assert (shown[0]["thinking"], shown[0]["answer"], shown[1]["answer"]) == ("t", "2", None)
    assert shown[0]["staleness"] == 0


def test_staleness_is_counted_against_the_trainer_before_the_step():
    record = metrics_log.trained_metrics(
        [group([1.0, 0.0], version=7), group([1.0], version=9)], trainer_version=9
    )
    assert record["staleness/histogram"] == {"0": 1, "2": 2}
    assert record["staleness/mean"] == pytest.approx(4 / 3)
    assert metrics_log.trained_metrics([], trainer_version=3) == {}


def test_given_metrics_win_over_counted_ones(tmp_path):
    with MetricsLog(tmp_path, stage="rl") as log:
        log.step(1, {"rewards/mean": 9.0}, [group([1.0, 0.0])])
    assert metrics_log.read_metrics(tmp_path)[0]["rewards/mean"] == 9.0


def test_resume_goes_back_to_the_restored_step_and_time_goes_on(tmp_path):
    write_steps(tmp_path, range(1, 6))
    before = metrics_log.read_metrics(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"stage":"rl_stem","step":6,"lo')  # killed here
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"kind":"deco')
    write_steps(tmp_path, range(4, 7), restored_step=3)
    after = metrics_log.read_metrics(tmp_path)
    assert [line["step"] for line in after] == [1, 2, 3, 4, 5, 6]
    assert after[:3] == before[:3]
    times = [line["time_s"] for line in after]
    assert times == sorted(times)
    events = metrics_log.read_events(tmp_path)
    assert [e["version"] for e in events if e["kind"] == "publish"] == [1, 2, 3, 4, 5, 6]
    assert [e["step"] for e in events if e["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert [e["step"] for e in events if e["kind"] == "resume"] == [3]
    starts = [e["start_s"] for e in events]
    assert starts == sorted(starts)
    assert {r["step"] for r in metrics_log.read_rollouts(tmp_path)} == {1, 2, 3, 4, 5, 6}


def test_a_fresh_start_leaves_nothing_of_an_older_one(tmp_path):
    write_steps(tmp_path, [1, 2])
    write_steps(tmp_path, [1])
    assert [line["step"] for line in metrics_log.read_metrics(tmp_path)] == [1]
    assert metrics_log.read_events(tmp_path)[0]["start_s"] < 2


WRITE_UNTIL_KILLED = """
import sys
from loong_jax.report.metrics_log import MetricsLog
with MetricsLog(sys.argv[1], stage="rl") as log:
    for step in range(1, 1_000_000):
        log.step(step, {"loss": 0.1, "text": "x" * 2000})
"""


def test_every_step_before_a_kill_is_there(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    path = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while (not path.exists() or path.stat().st_size < 100_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.kill()
    child.wait()
    steps = [line["step"] for line in metrics_log.read_metrics(tmp_path)]
    assert len(steps) > 20
    assert steps == list(range(1, len(steps) + 1))


def test_tensorboard_gets_numbers_only_under_flat_names(tmp_path, monkeypatch):
    seen = {}
    with MetricsLog(tmp_path, stage="rl") as log:
        monkeypatch.setattr(
            log._writer, "add_scalar", lambda name, value, step: seen.update({name: (value, step)})
        )
        log.step(3, {"loss": 0.5, "clip": {"0": 0.25}, "name": "x", "bad": float("nan")})
    assert seen == {"rl/loss": (0.5, 3), "rl/clip/0": (0.25, 3)}
    assert list((tmp_path / "tensorboard").iterdir())


def test_stages_are_merged_in_order(tmp_path):
    for stage in ("sft", "rl_stem"):
        write_steps(tmp_path / "stages" / stage, [1, 2])
    path = metrics_log.merge_stage_metrics(tmp_path, ["sft", "rl_stem", "absent"])
    assert len(path.read_text().splitlines()) == 4
    assert json.loads(path.read_text().splitlines()[-1])["step"] == 2
