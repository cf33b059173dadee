"""Weights to start from: imported, sharded, stacked, refused; and a run that starts from them."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from loong_jax import cli, recipes
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models import moe, parameters
from loong_jax.models.hf import save_weights_hf
from loong_jax.models.moe.model import abstract_weights
from loong_jax.recipes import MeshSettings, PodSettings
from loong_jax.rl.auxiliary import AuxiliaryLosses
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.run import pod_sft, sources, stages, starting
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny

CONFIG = tiny.smallest_config(chunk_tokens=None, num_mtp_layers=1)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A directory as `loong import-hf` makes it, in bfloat16."""
    root = tmp_path_factory.mktemp("imported")
    _, weights = moe.init_weights(CONFIG, jax.random.key(3))
    save_weights_hf(CONFIG, weights, root / "hf")
    assert cli.main(["import-hf", str(root / "hf"), str(root / "ours"), "--dtype", "bfloat16"]) == 0
    return root / "ours"


def read_config(imported):
    """As imported, for training in float32."""
    config, _ = sources.read_model(imported)
    return dataclasses.replace(config, param_dtype=jnp.float32, dtype=jnp.float32)


def template(config, rules):
    return abstract_weights(config, rules)[1]


def test_weights_arrive_in_the_dtype_and_sharding_of_the_model(imported):
    rules = ShardingRules(mesh=make_mesh(fsdp=2, expert=2, tensor=2))
    wanted = template(read_config(imported), rules)
    found = starting.load(imported, read_config(imported), wanted)
    expected = stages.load_weights(imported)
    assert {str(a.dtype) for a in jax.tree.leaves(expected)} == {"bfloat16", "float32"}

    def check(a, like, b):
        assert (a.dtype, a.sharding) == (like.dtype, like.sharding)
        np.testing.assert_array_equal(a, np.asarray(b, np.float32))

    jax.tree.map(check, found, wanted, expected)
    assert found["layers"]["experts"]["down"].sharding.shard_shape((2, 4, 18, 32)) == (2, 2, 9, 16)


def test_layers_are_stacked_on_the_way(imported):
    config = read_config(imported)
    deeper = dataclasses.replace(config, num_layers=3 * config.num_layers)
    rules = ShardingRules(mesh=make_mesh(fsdp=2, expert=2))
    found = starting.load(imported, deeper, template(deeper, rules), stack=3)
    once = parameters.by_path(stages.load_weights(imported))
    for path, a in parameters.by_path(found).items():
        b = np.asarray(once[path], np.float32)
        b = np.concatenate([b] * 3) if path.startswith("layers/") else b
        np.testing.assert_array_equal(a, b, err_msg=path)
    assert found["layers"]["experts"]["down"].sharding == (
        template(deeper, rules)["layers"]["experts"]["down"].sharding
    )


def test_other_models_and_torn_files_are_refused(imported, tmp_path):
    config, rules = read_config(imported), ShardingRules()
    load = functools.partial(starting.load, imported)
    for change in (dict(num_layers=4), dict(gate_scale=1.0), dict(num_mtp_layers=0)):
        other = dataclasses.replace(config, **change)
        name, value = next(iter(change.items()))
        with pytest.raises(ConfigError, match=f"{name}={getattr(config, name)}.*has {value}"):
            load(other, template(other, rules))
    wider = dataclasses.replace(config, ffn_hidden_size=64)
    record = json.loads((imported / "model.json").read_text())
    record["config"]["ffn_hidden_size"] = 64
    (tmp_path / "weights").symlink_to(imported / "weights")
    (tmp_path / "model.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"of shape .*48.*and the model has .*64"):
        starting.load(tmp_path, wider, template(wider, rules))
    (tmp_path / "weights").unlink()
    with pytest.raises(CheckpointError, match="no finished weights"):
        starting.load(tmp_path, wider, template(wider, rules))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_starts_from_them_with_all_losses_and_controllers(imported, tmp_path):
    """After two steps its weights are two steps away from those imported."""
    recipe = dataclasses.replace(
        recipes.get_recipe("pod-sft")(),
        model=dataclasses.replace(read_config(imported), num_layers=4),
        start_from=imported,
        pod=PodSettings(
            stack_start=2,
            rates_of=tiny.smallest_config(hidden_size=16),
            losses=AuxiliaryLosses(mtp=0.1, hidden_z=1e-7),
            routing_every=2,
        ),
        mesh=MeshSettings(fsdp=2, expert=2, context=2),
    )
    recipe = recipe.with_stage(
        "sft",
        num_steps=2,
        rows=8,
        row_length=160,
        optimizer=AdamW(schedule=WarmupConstant(peak=1e-4), eps=1e-16),
    )
    assert pod_sft.train(recipe, tmp_path / "run") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert "mtp/loss" in lines[0]
    assert "router/row_cosine" not in lines[0]
    assert "router/row_cosine" in lines[1]
    path = tmp_path / "run" / "checkpoints" / "2" / "arrays"
    with ocp.PyTreeCheckpointer() as reader:
        saved = reader.restore(path)
    (name,) = (name for name in saved if name.endswith("weights.embedding"))
    start = np.asarray(stages.load_weights(imported)["embedding"], np.float32)
    moved = abs(np.asarray(saved[name]) - start).max()
    assert 0 < moved < 3e-4  # two steps of 1e-4 away from the import
