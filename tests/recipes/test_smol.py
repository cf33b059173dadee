"""The recipes of a pretrained model: what they ask, and that a control differs by its reward."""

import dataclasses

import pytest

from loong_jax import recipes
from loong_jax.environments import get_environment
from loong_jax.problems.response import read
from loong_jax.rl.rewards import NoiseReward
from loong_jax.run.demonstrations import stream_of

NAMES = ("smol", "smol-control", "smol-chat")


@pytest.mark.parametrize("name", NAMES)
def test_it_judges_the_answers_of_its_form(name):
    recipe = recipes.get_recipe(name)()
    ((stage, domain),) = recipe.experts
    assert list(recipe.stages)[1:] == [stage]
    problem = stream_of(recipe, domain, "train").problem_at(0)
    assert problem.domain == domain
    asked = recipe.form.prompt_of(problem.prompt)
    assert asked.endswith(problem.prompt)
    judge = get_environment(problem.environment)
    said = judge.solve(problem).answer + (recipe.form.stop[0] if recipe.form.stop else "")
    answer = read(said, recipe.form).answer
    assert judge.verify(problem, answer).is_correct
    assert not judge.verify(problem, answer + "1").is_correct


def test_no_worked_example_of_a_prompt_is_a_problem_that_is_posed():
    for name in ("smol", "smol-chat"):
        recipe = recipes.get_recipe(name)()
        shown = recipe.form.template.replace("{prompt}", "")
        ((_, domain),) = recipe.experts
        stream = stream_of(recipe, domain, "test")
        assert not any(stream.problem_at(n).prompt in shown for n in range(300))


def test_the_control_deals_out_the_same_rewards():
    real, control = (recipes.get_recipe(name)() for name in ("smol", "smol-control"))
    noise = control.stages["rl"].reward
    assert isinstance(noise, NoiseReward)
    assert noise.rule == real.stages["rl"].reward
    again = control.with_stage("rl", reward=noise.rule)
    assert dataclasses.replace(again, name="smol") == real
