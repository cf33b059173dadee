"""The summary: the keys that the issue asks for, honest sums, and nothing private."""

import json
import platform

import pytest

from loong_jax.data import json_files
from loong_jax.report import run_record
from loong_jax.report.run_record import TICKET_KEYS, read_run


def test_keys_are_those_asked_for(run_dir):
    figures = run_record.write_summary(run_dir, wall_s=800.0, peak_gb=3.5)
    assert json.loads((run_dir / "summary.json").read_text()) == figures
    assert (figures["wall_s"], figures["peak_gb"]) == (800.0, 3.5)
    assert list(figures["stages"]) == ["sft", "rl_stem", "rl_logic", "rl_code", "fused", "general"]
    for stage in figures["stages"].values():
        assert set(stage) == {"stem", "logic", "code"}
        for record in stage.values():
            assert {"pass@1", "ci95", "n", "greedy", "pass@16", "well_formed"} <= set(record)
            assert record["samples_per_problem"] == 4
            assert "correct_per_problem" not in record
    assert list(figures["tickets"]) == list(TICKET_KEYS)
    assert figures["gains"]["over_sft"]["rl_stem"]["stem"]["gain"] > 0.1
    assert figures["isolation"]["tier"] == "namespaces"
    assert figures["control"] is None
    assert figures["versions"]["python"] == platform.python_version()


def test_staleness_and_tickets_are_summed_over_the_stages(run_dir):
    figures = run_record.write_summary(run_dir)
    lines = [
        json.loads(line)
        for path in sorted(run_dir.glob("stages/*/metrics.jsonl"))
        for line in path.read_text().splitlines()
    ]
    for lag in ("0", "1", "2"):
        counted = sum(line.get("staleness/histogram", {}).get(lag, 0) for line in lines)
        assert figures["staleness"][lag] == counted > 0
    share = 1 - figures["staleness"]["0"] / sum(figures["staleness"].values())
    assert figures["overlap"]["trained_at_staleness_1_or_more"] == pytest.approx(share)
    one = figures["tickets_by_stage"]["rl_stem"]
    assert figures["tickets"]["issued"] == 4 * one["issued"]


def test_final_counts_of_a_stage_win_over_its_last_line(run_dir):
    counts = dict.fromkeys(TICKET_KEYS, 1) | {"issued": 6}
    path = run_dir / "stages" / "rl_stem" / "done.json"
    json_files.write_json(path, {**json_files.read_json(path), "tickets": counts})
    assert run_record.write_summary(run_dir)["tickets_by_stage"]["rl_stem"] == counts


def test_times_come_from_the_run_then_the_old_summary_then_the_stages(run_dir):
    assert run_record.write_summary(run_dir)["wall_s"] == 660.0
    assert run_record.write_summary(run_dir, wall_s=900.0)["wall_s"] == 900.0
    again = run_record.write_summary(run_dir)
    assert (again["wall_s"], again["peak_gb"]) == (900.0, 2.5)


def test_a_report_drawn_elsewhere_keeps_the_machine_of_the_run(run_dir):
    run_record.write_summary(run_dir, wall_s=1.0)
    path = run_dir / "summary.json"
    json_files.write_json(path, {**json_files.read_json(path), "machine": {"cores": 99}})
    assert run_record.write_summary(run_dir)["machine"] == {"cores": 99}
    again = run_record.write_summary(run_dir, wall_s=2.0, keeps_machine=True)
    assert (again["wall_s"], again["machine"]) == (2.0, {"cores": 99})
    assert run_record.write_summary(run_dir, wall_s=1.0)["machine"]["cores"] != 99


def test_nothing_private_is_written(run_dir):
    run_record.write_summary(run_dir)
    text = (run_dir / "summary.json").read_text()
    assert str(run_dir) not in text
    assert platform.node() not in text or len(platform.node()) < 4
    assert "/" not in "".join(run_record.machine()["system"])


def test_a_noise_reward_marks_the_run_as_a_control(run_dir):
    config = json_files.read_json(run_dir / "config.json")
    config["rl"]["reward"] = {"kind": "NoiseReward", "seed": 1, "rule": {"kind": "RewardRule"}}
    json_files.write_json(run_dir / "config.json", config)
    assert run_record.write_summary(run_dir)["control"] == "noise reward"
    assert run_record.find_control({"stages": [{"reward": {"kind": "RewardRule"}}]}) is None


def test_isolation_is_the_weakest_tier_that_ran_anything(run_dir):
    path = run_dir / "stages" / "rl_code" / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"stage":"rl_code","step":99,"judged/isolation":{"process":3,"none":5}}\n')
    assert run_record.isolation_of(read_run(run_dir))["tier"] == "process"
