"""The tutorials run as printed, save that trainings are cut short by options laid on."""

import itertools

import pytest

from loong_jax import recipes
from loong_jax.rl import objectives
from loong_jax.run import named
from tests.docs import reading

LITTLE = [
    "--engine.num-replicas", "1", "--engine.slots-per-replica", "8",
    "--engine.prefill-members", "8", "--engine.narrow-slots", "--engine.groups-per-replica", "1",
    "--evaluation.num-problems", "2", "--evaluation.samples-per-problem", "1",
    "--evaluation.pass-at", "0", "--max-new-tokens", "24",
]  # fmt: skip
EVAL = ["--num-problems", "2", "--samples", "1", "--k", "1", "--max-new-tokens", "8"]


def rl(stage: str) -> list[str]:
    options = [f"--{stage}.num-steps", "1", f"--{stage}.scheduler.groups-per-step", "2"]
    return [*options, f"--{stage}.learns-from-all"]


@pytest.mark.bubblewrap
def test_a_module_becomes_a_package_that_judges(tmp_path):
    printed = reading.run("tutorials/own_environment.md", tmp_path)
    assert printed.count(" -> ") == printed.count(" correct\n") == 3


@pytest.mark.bubblewrap
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_trains_on_an_environment_of_ones_own(tmp_path):
    sft = ["--sft.num-steps", "2", "--sft.rows", "4"]
    shorter = {"train environments": [*LITTLE, *sft, *rl("rl")], "eval": EVAL}
    printed = reading.run("tutorials/own_environment.md", tmp_path, shorter)
    assert "lists" in printed or "odd" in printed
    assert (tmp_path / "runs/odd/report.html").exists()


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
    quickstart = [*LITTLE, *itertools.chain.from_iterable(map(rl, stages))]
    quickstart += ["--sft.num-steps", "2", "--fused.num-problems", "2"]
    quickstart += ["--fused.scales", "2", "--fused.keep-rates", "1"]
    shorter = {"train quickstart --run-dir": quickstart, "eval": EVAL}
    reading.run("tutorials/first_run.md", tmp_path, shorter)
    for name in ("report.html", "summary.json", "metrics.jsonl", "stages/sft/rollouts"):
        assert (tmp_path / "runs/quickstart" / name).exists()
    assert list((tmp_path / "exported").glob("*.safetensors"))
    shorter = {"train rl": [*LITTLE, *rl("rl")]}
    reading.run("tutorials/own_objective.md", tmp_path, shorter)
    assert (tmp_path / "runs/bold/report.html").exists()
