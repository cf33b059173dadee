"""Ways of thinking of the quickstart's cold start."""

import hashlib
import json

import numpy as np

from loong_jax.recipes import quickstart, styles
from loong_jax.run import demonstrations
from loong_jax.run.texts import texts_of


def test_hurried_thinking_writes_three_of_the_steps_and_the_last():
    rng, steps = np.random.default_rng(0), ["1", "2", "3", "4", "5"]
    drawn = {styles.thinking(steps, rng, is_careful=False) for _ in range(200)}
    assert drawn == {f"~{i}~{j}~5" for i in range(1, 5) for j in range(i + 1, 5)}
    assert styles.thinking(steps, rng, is_careful=True) == "=1=2=3=4=5"
    assert styles.thinking(["1", "2"], rng, is_careful=False) == "~1~2"
    assert styles.thinking([], rng, is_careful=True) == ""


def test_the_quickstart_is_shown_the_same_demonstrations_as_ever():
    """What it learns rests on them: a change here is a change of its expected numbers."""
    recipe = quickstart.quickstart()
    pairs = demonstrations.pairs_of(recipe, recipe.stages["sft"], texts_of(recipe))
    digest = hashlib.sha256()
    for number in (*range(300), *range(9400, 9700)):
        digest.update(json.dumps(pairs.pair_at(number)).encode())
    assert digest.hexdigest() == "2ab56df8296b8c1d3a506c103bcd8c28064a369eea54711c3a63e7852f94f462"
