"""Ways of thinking of the quickstart's cold start."""

import dataclasses
import hashlib
import json

import numpy as np

from loong_jax.problems import response
from loong_jax.recipes import DomainProblems, GeneratedProblems, ThinkingStyle, quickstart
from loong_jax.run import demonstrations
from loong_jax.run.texts import texts_of


def test_hurried_thinking_writes_three_of_the_steps_and_the_last():
    rng, steps = np.random.default_rng(0), ["1", "2", "3", "4", "5"]
    drawn = {quickstart.thinking(steps, rng, is_careful=False) for _ in range(200)}
    assert drawn == {f"~{i}~{j}~5" for i in range(1, 5) for j in range(i + 1, 5)}
    assert quickstart.thinking(steps, rng, is_careful=True) == "=1=2=3=4=5"
    assert quickstart.thinking(["1", "2"], rng, is_careful=False) == "~1~2"
    assert quickstart.thinking([], rng, is_careful=True) == ""


def test_the_quickstart_is_shown_the_same_demonstrations_as_ever():
    """What it learns rests on them: a change here is a change of its expected numbers."""
    recipe = quickstart.quickstart()
    pairs = demonstrations.pairs_of(recipe, recipe.stages["sft"], texts_of(recipe))
    digest = hashlib.sha256()
    for number in (*range(300), *range(9400, 9700)):
        digest.update(json.dumps(pairs.pair_at(number)).encode())
    assert digest.hexdigest() == "2ab56df8296b8c1d3a506c103bcd8c28064a369eea54711c3a63e7852f94f462"


def test_without_a_style_every_demonstration_is_careful():
    recipe = quickstart.quickstart()
    for style, is_hurried in ((ThinkingStyle(), True), (None, False)):
        stage = recipe.with_stage("sft", thinking=style).stages["sft"]
        pairs = demonstrations.pairs_of(recipe, stage, texts_of(recipe))
        assert any("~" in pairs.pair_at(number)[1] for number in range(40)) is is_hurried


def test_a_puzzle_is_posed_and_demonstrated_by_name():
    recipe = quickstart.quickstart()
    posed = {"logic": DomainProblems(environment="knights_and_knaves", levels=(1, 2))}
    recipe = dataclasses.replace(recipe, problems=GeneratedProblems(domains=posed), experts=())
    texts = texts_of(recipe)
    problem = demonstrations.stream_of(recipe, "logic", "train").problem_at(3)
    prompt, said = demonstrations.pairs_of(recipe, recipe.stages["sft"], texts).pair_at(3)
    assert "knave" in problem.prompt
    assert prompt.startswith("On an island everyone is")
    assert response.read(said).answer.startswith("A=kn")
    assert response.read(said).thinking == ""
