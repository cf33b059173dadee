"""Training whose moments lie in host memory, against the same with moments on the devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models.dense import DenseConfig
from loong_jax.plan import hlo, plan
from loong_jax.rl import checkpoint, optimizers, sft, trainer
from tests.plan.asking import asked, skip_without_pair
from tests.rl import test_mesh_trainer as trained_on

ADAM = dataclasses.replace(trained_on.ADAM, offload_moments=True)
SETTINGS = sft.SftSettings(optimizer=ADAM, num_steps=4, rows=4, row_length=64)
PAIRS = [(f"{n}+{n}=", f"{2 * n}") for n in range(400)]
HOST_SPACE = 5  # as XLA's texts number it


def on_mesh(*names):
    slow = dict(qwen2=(), longcat=pytest.mark.slow)
    return [pytest.param(name, True, marks=slow[name]) for name in names]


def refuse_moments_on_devices(state):
    kinds = {(a.ndim > 0, a.sharding.memory_kind) for a in jax.tree.leaves(state.optimizer_state)}
    assert kinds == {(True, "pinned_host"), (False, "device")}  # moments, numbers of steps
    assert {a.sharding.memory_kind for a in jax.tree.leaves(state.weights)} == {"device"}


@pytest.mark.parametrize(("name", "is_on_mesh"), [("qwen2", False), *on_mesh("qwen2", "longcat")])
def test_training_is_the_same(name, is_on_mesh):
    away = trained_on.train(name, is_on_mesh, optimizer=ADAM)
    here = trained_on.train(name, is_on_mesh)
    refuse_moments_on_devices(away.state)
    trained_on.refuse_difference(here, away)
    for a, b in zip(*map(jax.tree.leaves, (away.state, here.state)), strict=True):
        assert a.is_fully_replicated or a.sharding.spec == b.sharding.spec


@pytest.mark.slow
def test_muon_turns_a_layer_as_it_turns_all():
    """But for rounding: products of one matrix are added up in another order than those of many."""
    muon = optimizers.Muon(schedule=trained_on.RATE, eps=1e-2)
    offloads = dataclasses.replace(muon, offload_moments=True)
    away = trained_on.train("qwen2", True, optimizer=offloads)
    trained_on.refuse_difference(trained_on.train("qwen2", True, optimizer=muon), away)
    assert "pinned_host" in {a.sharding.memory_kind for a in jax.tree.leaves(away.state)}


@pytest.mark.parametrize("is_on_mesh", [False, True])
def test_a_run_resumes_with_moments_in_host_memory(tmp_path, is_on_mesh):
    policy, weights = trained_on.policy_on("qwen2", is_on_mesh)

    def run(state, cursor, num_steps):
        def on_step(state, cursor, metrics):
            refuse_moments_on_devices(state)

        settings = dataclasses.replace(SETTINGS, num_steps=num_steps)
        return sft.run(
            policy, settings, state, PAIRS, AsciiTokenizer(), cursor=cursor, on_step=on_step
        )

    state, cursor = run(trainer.initial_state(policy, ADAM, weights), 0, 2)
    checkpoint.save(tmp_path, 2, trainer.to_arrays(state))
    whole, _ = run(state, cursor, 4)
    places = trainer.shardings(policy, ADAM, weights, weights)
    found = checkpoint.restore(tmp_path, shardings=places)
    restored = trainer.from_arrays(policy, ADAM, weights, found.arrays)
    refuse_moments_on_devices(restored)
    resumed, _ = run(restored, cursor, 4)
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_update_on_tpu_has_few_moments_on_a_device_at_a_time():
    skip_without_pair()
    config = DenseConfig.tiny(
        vocab_size=512,
        hidden_size=512,
        ffn_hidden_size=2048,
        num_layers=16,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        param_dtype=jnp.bfloat16,
        dtype=jnp.bfloat16,
        remat="layer",
    )
    asks = asked("tiny-dense --topology v5e:2x2 --mesh fsdp=2,tensor=2 --length 128")
    asks = dataclasses.replace(asks, config=config, offload_moments=True)
    made = {program.name: program for program in plan.make(asks, timeout_s=800).programs}
    update = made["update"]
    entry = hlo.parse(update.text or "").entry
    given = [s for i in entry.parameters.values() for s in i.shapes if s.space == HOST_SPACE]
    moments = 2 * update.arguments["masters"]
    assert sum(shape.num_bytes for shape in given) == update.host_bytes == moments
    kept = [shape for shape in entry.root.shapes if shape.space == HOST_SPACE]
    assert sum(shape.num_bytes for shape in kept) == moments
    assert update.memory["temp"] < moments / 4
    assert made["accumulate"].resident["optimizer"] < 100  # bytes: a number of steps
