"""Recipes for several hosts: what they hold together, and what they refuse."""

import dataclasses
import itertools
import json
import math

import jax
import pytest

from loong_jax import configs, recipes
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models import moe
from loong_jax.recipes import MeshSettings, Recipe
from loong_jax.rl import sft
from loong_jax.run import pod_sft
from loong_jax.run.demonstrations import Demonstrations
from loong_jax.run.texts import Texts, texts_of

TOKENIZER = AsciiTokenizer()
TEXTS = Texts(tokenizer=TOKENIZER)


@pytest.fixture(params=recipes.ON_ALL_PROCESSES)
def recipe(request) -> Recipe:
    return recipes.get_recipe(request.param)()


def test_it_holds_together(recipe):
    assert configs.from_json(json.loads(json.dumps(configs.to_json(recipe)))) == recipe
    assert recipe.model.vocab_size >= TOKENIZER.vocab_size
    assert recipe.stages["sft"].row_length <= recipe.model.max_position
    assert recipe.stages["sft"].optimizer.schedule.num_steps == recipe.stages["sft"].num_steps
    parts = recipe.mesh.data * recipe.mesh.fsdp * recipe.mesh.expert
    assert recipe.stages["sft"].rows % parts == 0
    pairs = Demonstrations(
        problems=recipe.problems,
        style=recipe.stages["sft"].thinking,
        seed=recipe.seed,
        texts=TEXTS,
    )
    for prompt, response in itertools.islice(pairs, 200):
        tokens = sft.encode_pair(TOKENIZER, prompt, response)["tokens"]
        assert len(tokens) <= recipe.stages["sft"].row_length
    assert pairs.pair_at(7) == next(itertools.islice(iter(pairs), 7, None))


def test_models_of_other_tokens_are_never_fed_ascii_codes():
    recipe = recipes.get_recipe("pod-sft-flash")()
    with pytest.raises(CheckpointError, match=r"131072 tokens\. Name one with --tokenizer"):
        texts_of(recipe)


def test_the_flash_recipe_has_the_state_it_names():
    recipe = recipes.get_recipe("pod-sft-flash")()
    weights = jax.eval_shape(lambda key: moe.init_weights(recipe.model, key)[1], jax.random.key(0))
    leaves = jax.tree.leaves(weights)
    assert {str(leaf.dtype) for leaf in leaves} == {"float32"}
    size = sum(math.prod(leaf.shape) for leaf in leaves)
    assert 12 * size / recipe.mesh.num_devices == pytest.approx(13.1e9, rel=0.01)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (dict(fsdp=0), "mesh.fsdp=0 must be at least 1"),
        (dict(data=5), "sft.rows=32 cannot be cut into mesh.data=5"),
        (dict(data=4, fsdp=4, expert=4), "sft.rows=32 cannot be cut into .*, 64 equal parts"),
        (dict(expert=16), "model.num_experts=8 cannot be cut into mesh.expert=16"),
        (dict(tensor=8), "model.num_heads=4 cannot be cut into mesh.tensor=8"),
        (dict(context=5), "sft.row_length=216 cannot be cut into mesh.context=5"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, message):
    recipe = recipes.get_recipe("pod-sft")()
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(recipe, mesh=MeshSettings(**mesh))


def test_settings_that_cannot_be_are_refused(tmp_path):
    recipe = recipes.get_recipe("pod-sft")()
    with pytest.raises(ConfigError, match="this recipe has one stage"):
        recipe.with_stage("sft", after="sft")
    with pytest.raises(ConfigError, match="keep_checkpoints=0"):
        dataclasses.replace(recipe.pod, keep_checkpoints=0)
    with pytest.raises(ConfigError, match=r"is for 16 devices.*together have 8"):
        pod_sft.train(recipe, tmp_path / "run")


def moved_to(recipe, place):
    return dataclasses.replace(recipe, pod=dataclasses.replace(recipe.pod, checkpoints=place))


def test_the_place_of_checkpoints_may_change_on_resume_and_the_mesh_may_not(tmp_path):
    recipe = recipes.get_recipe("pod-sft")()
    saved = configs.to_json(recipe)
    moved = configs.to_json(moved_to(recipe, "gs://other/place"))
    assert len(configs.refuse_changes(saved, moved, run_dir=tmp_path)) == 1
    other = configs.to_json(dataclasses.replace(recipe, mesh=MeshSettings(data=16)))
    with pytest.raises(ConfigError, match=r"mesh\.data: the run has 1, you gave 16"):
        configs.refuse_changes(saved, other, run_dir=tmp_path)
