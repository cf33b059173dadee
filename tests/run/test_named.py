"""Parts of a stage by name on the command line; sizes that two parts share are said once."""

import re
from pathlib import Path

import pytest

from loong_jax import configs, recipes
from loong_jax.data.response import FORMS
from loong_jax.errors import ConfigError
from loong_jax.rl.objectives import OBJECTIVES, TokenMean
from loong_jax.rl.optimizers import Muon
from loong_jax.run import named


@pytest.fixture(scope="module")
def recipe():
    return recipes.get_recipe("rl")()


def chosen(recipe, words):
    return named.choose(recipe, words.split())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_a_name_and_the_sizes_of_its_stage(recipe, name):
    words = f"--seed 3 --rl.objective {name} --rl.group-size 4 --rl.sampling.max-new-tokens 40"
    got, left = chosen(recipe, words)
    assert got.stages["rl"].objective == OBJECTIVES[name](4, 40)
    assert left == ["--seed", "3", "--rl.group-size", "4", "--rl.sampling.max-new-tokens", "40"]
    assert configs.from_json(configs.to_json(got)) == got


@pytest.mark.parametrize("name", named.SCHEDULERS)
def test_every_scheduler_has_a_name_and_keeps_what_is_common(recipe, name):
    got, left = chosen(recipe, f"--rl.scheduler={name}")
    scheduler = got.stages["rl"].scheduler
    assert type(scheduler) is named.SCHEDULERS[name]
    assert scheduler.groups_per_step == recipe.stages["rl"].scheduler.groups_per_step
    assert left == []


def test_an_optimizer_keeps_its_schedule(recipe):
    got, _ = chosen(recipe, "--rl.optimizer muon")
    rl, before = got.stages["rl"], recipe.stages["rl"]
    assert isinstance(rl.optimizer, Muon)
    assert rl.optimizer.schedule == before.optimizer.schedule
    assert chosen(recipe, "--rl.num-steps 3") == (recipe, ["--rl.num-steps", "3"])


def test_a_group_size_is_said_once(recipe):
    stage = chosen(recipe, "--rl.group-size 16")[0].stages["rl"]
    assert stage.group_size == stage.objective.reduction.group_size == 16


OWN = """
import dataclasses
from loong_jax.rl.objectives import TokenMean

def mine(stage):
    return dataclasses.replace(stage.objective, reduction=TokenMean())

def nothing(stage):
    return None
"""


def test_one_of_your_own(recipe, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    got, _ = chosen(recipe, f"--rl.objective {tmp_path}/own.py:mine")
    assert got.stages["rl"].objective.reduction == TokenMean()
    with pytest.raises(ConfigError, match="Return one of Objective"):
        chosen(recipe, f"--rl.objective {tmp_path}/own.py:nothing")
    with pytest.raises(ConfigError, match="has no function 'other'"):
        chosen(recipe, f"--rl.objective {tmp_path}/own.py:other")


@pytest.mark.parametrize(
    "words", ["--rl.objective best", "--rl.scheduler now", "--rl.optimizer sgd"]
)
def test_a_name_that_is_none_lists_those_that_are(recipe, words):
    with pytest.raises(ConfigError, match=r"names nothing\. Choose one of: [a-z-]+, [a-z-]+"):
        chosen(recipe, words)


def test_what_the_tutorial_makes_is_taken(recipe, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/tutorials/own_model.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(code)
    assert "--rl.objective own.py:per_token" in page
    assert "train own.py:short" in page
    got, _ = chosen(recipe, "--rl.objective own.py:per_token")
    assert got.stages["rl"].objective.reduction == TokenMean()
    own = recipes.get_recipe("own.py:short")()
    assert (own.name, own.max_new_tokens) == ("short", 32)
    table = page.split("| form |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == set(FORMS)
