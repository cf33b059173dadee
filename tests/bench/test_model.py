"""`loong bench model` end to end on the smallest setting; nothing here looks at a time."""

import json

import numpy as np
import pytest

from loong_jax import cli
from loong_jax.bench import model, ours, timing
from tests.bench.smallest import SMALLEST


@pytest.mark.release
def test_writes_every_figure_and_says_what_is_missing_without_transformers(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(ours, "SETTINGS", (SMALLEST,))
    monkeypatch.setattr(model, "find_peer", lambda: None)
    arguments = ["--json", f"{tmp_path}/out.json", "--budget-s", "0.01"]
    assert cli.main(["bench", "model", *arguments]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["transformers"] == {"absent": model.REMEDY}
    said = capsys.readouterr().out
    assert f"Remedy: {model.REMEDY}" in said
    for name in ("forward", "train_step"):
        assert found["settings"]["smallest"][name]["ours_s"] > 0
        assert f"{name}: ours" in said


def test_a_wrong_word_is_answered(capsys):
    assert cli.main(["bench", "nothing"]) == 1
    assert "Choose one of: async" in capsys.readouterr().err


def test_the_six_settings_differ_in_kind():
    assert len({s.name for s in ours.SETTINGS}) == len(ours.SETTINGS) == 6
    assert len({s.reason for s in ours.SETTINGS}) == 6
    assert all(s.config.num_zero_experts > 0 for s in ours.SETTINGS)
    assert max(s.length for s in ours.SETTINGS) >= 2048


def test_a_training_step_lowers_its_loss_and_leaves_the_problem_alone(monkeypatch):
    monkeypatch.setattr(ours, "RATE", 1e-2)
    problem = ours.problem(SMALLEST)
    before = np.asarray(problem.weights["head"]).copy()
    step = ours.train_step(problem)
    losses = [float(step()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 2 * np.log(SMALLEST.config.vocab_size)
    np.testing.assert_array_equal(problem.weights["head"], before)


def test_every_round_times_every_run_and_ratios_pair_rounds():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    samples = timing.interleaved(runs, budget_s=0.0, min_rounds=4, burst_s=0.0)
    assert {name: len(found) for name, found in samples.items()} == {"a": 4, "b": 4}
    assert "".join(calls)[-8:] == "abbaabba"
    above = [timing.Sample(wall, 1.0) for wall in (2.0, 9.0, 6.0)]
    below = [timing.Sample(wall, 2.0) for wall in (1.0, 1.0, 2.0)]
    assert timing.median_ratio(above, below) == 3.0
    assert timing.median_ratio(above, below, "cpu_s") == 0.5
