"""The tutorials run as printed, save that trainings are cut short by options laid on."""

import itertools
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
    short = [
        *reading.LITTLE,
        "--engine.num-replicas",
        "1",
        "--sft.num-steps",
        "2",
        "--sft.rows",
        "4",
        *reading.RL,
    ]
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_first_run_and_an_objective_of_ones_own(tmp_path):
    """One story: the second begins with what the first has left."""
    stages = ("rl-stem", "rl-logic", "rl-code", "general")
    rl = [[word.replace("--rl.", f"--{name}.") for word in reading.RL] for name in stages]
    little = ["--engine.num-replicas", "1", *reading.LITTLE]
    quickstart = [*little, *itertools.chain.from_iterable(rl)]
    quickstart += ["--sft.num-steps", "2", "--fused.num-problems", "2"]
    quickstart += ["--fused.scales", "2", "--fused.keep-rates", "1"]
    shorter = {"train quickstart --run-dir": quickstart, "eval": reading.EVAL}
    reading.run("tutorials/first_run.md", tmp_path, shorter)
    for name in ("report.html", "summary.json", "metrics.jsonl", "stages/sft/rollouts"):
        assert (tmp_path / "runs/quickstart" / name).exists()
    assert list((tmp_path / "exported").glob("*.safetensors"))
    shorter = {"train rl": [*little, *reading.RL]}
    reading.run("tutorials/own_objective.md", tmp_path, shorter)
    assert (tmp_path / "runs/bold/report.html").exists()
