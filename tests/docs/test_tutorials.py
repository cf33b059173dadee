"""The tutorials run as printed, save that trainings are cut short by options laid on."""

import json

import pytest

from loong_jax import recipes
from loong_jax.rl import objectives
from loong_jax.run import named
from tests.docs import reading


@pytest.mark.bubblewrap
def test_a_module_becomes_a_package_that_judges(tmp_path):
    printed = reading.run("tutorials/own_environment.md", tmp_path)
    assert printed.count(" -> ") == printed.count(" correct\n") == 3


@pytest.mark.bubblewrap
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_trains_on_an_environment_of_ones_own(tmp_path):
    start = ["--engine.num-replicas", "1", "--sft.num-steps", "2", "--sft.rows", "4"]
    short = [*reading.LITTLE, *start, *reading.RL]
    shorter = {"train environments": short, "eval": reading.EVAL}
    printed = reading.run("tutorials/own_environment.md", tmp_path, shorter)
    assert "lists" in printed or "odd" in printed
    run_dir = tmp_path / "runs/odd"
    assert (run_dir / "report.html").exists()
    lines = (run_dir / "stages/rl/metrics.jsonl").read_text().splitlines()
    verdicts = json.loads(lines[0])["judged/verdicts"]
    assert verdicts.get("ungradable", 0) == 0
    assert sum(verdicts.values()) >= 8
    found = json.loads((run_dir / "stages/rl/evaluation.json").read_text())
    assert set(found["domains"]) == {"odd"}


def test_an_objective_of_ones_own_is_taken_and_looked_at(tmp_path, monkeypatch):
    page = "tutorials/own_objective.md"
    printed = reading.run(page, tmp_path)
    assert printed.count("TripletClip") == printed.count("DetachedClip") == 2
    monkeypatch.chdir(tmp_path)
    for function in ("own.py:bold", "own.py:without_spread", "own_parts.py:leave_one_out"):
        words = ["--rl.objective", function]
        recipe, left = named.choose(recipes.get_recipe("rl")(), words)
        assert isinstance(recipe.stages["rl"].objective, objectives.Objective)
        assert left == []
        assert recipe != recipes.get_recipe("rl")()
