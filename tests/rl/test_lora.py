"""Adapters over frozen weights: what they add up to, how they learn, what is written of them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from loong_jax.errors import ConfigError
from loong_jax.models import moe, parameters
from loong_jax.models.moe import hf as moe_hf
from loong_jax.rl import local_trainer, lora, optimizers, sft, trainer
from loong_jax.rl.lora import LoraConfig
from loong_jax.rl.policy_model import longcat_policy
from tests.doubles import tiny
from tests.doubles.toy_policy import toy_policy, toy_weights
from tests.rl.test_local_trainer import get, make, make_store, one_step, settings
from tests.rl.test_trainer import apply_gradient

CONFIG = LoraConfig(rank=3, alpha=6.0)
MODEL = tiny.smallest_config()
ADAM = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-2))


@pytest.fixture(scope="module")
def longcat():
    graphdef, weights = moe.init_weights(MODEL, jax.random.key(0))
    return longcat_policy(graphdef, MODEL, 0.01), weights


def drawn(adapters, seed=0):
    """Adapters that change something."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda a: (random.normal(size=a.shape) / 4).astype(a.dtype), adapters)


def join_by_hand(weights, adapters, scale):
    """Matrix by matrix, in float64, for the ways in which models lay matrices out."""
    found, own = {}, parameters.by_path(adapters)
    for path, weight in parameters.by_path(weights).items():
        value = np.asarray(weight, np.float64)
        if path + "/a" in own:
            a, b = (np.asarray(own[f"{path}/{side}"], np.float64) for side in "ab")
            if path.endswith("gate_up"):  # layers, experts, in, gate or up, out
                value = value + scale * np.einsum("LEhir,LEhro->LEiho", a, b)
            else:
                product = scale * np.einsum("...ir,...ro->...io", a, b)
                value = value + product.reshape(value.shape)
        found[path] = value
    return found


@pytest.mark.parametrize("targets", [(), ("query_up", "out", "experts")])
def test_the_whole_is_the_base_and_a_product_of_two(longcat, targets):
    base, weights = longcat
    config = LoraConfig(rank=3, alpha=6.0, targets=targets)
    adapters = lora.initial_adapters(base, config, weights, jax.random.key(1))
    policy = lora.lora_policy(base, config)
    join = jax.jit(policy.join)
    jax.tree.map(np.testing.assert_array_equal, join(adapters, weights), weights)
    adapted = {path.rpartition("/")[0] for path in parameters.by_path(adapters)}
    assert any("experts" in path for path in adapted) == bool(targets)
    assert len(adapted) == (6 if targets else 16)
    adapters = drawn(adapters)
    found = parameters.by_path(join(adapters, weights))
    for path, expected in join_by_hand(weights, adapters, 2.0).items():
        np.testing.assert_allclose(found[path], expected, rtol=1e-5, atol=1e-6, err_msg=path)
        assert np.array_equal(found[path], parameters.by_path(weights)[path]) != (path in adapted)


def test_gradients_are_those_of_the_product():
    base, weights = toy_policy(), toy_weights()
    policy = lora.lora_policy(base, CONFIG)
    adapters = drawn(lora.initial_adapters(base, CONFIG, weights, jax.random.key(0)))
    (batch, _), *_ = sft.batches([("1+1=", "2")], sft.pair_encoder(tiny.tokenizer()), stage())
    batch = jax.tree.map(jnp.asarray, batch)
    gradient = jax.jit(jax.grad(sft.sft_loss, has_aux=True), static_argnames="model")
    found, _ = gradient(adapters, batch, weights, model=policy)
    whole, _ = gradient(policy.join(adapters, weights), batch, model=base)
    a, b = (np.asarray(adapters["head"][side], np.float64) for side in "ab")
    of_head = np.asarray(whole["head"], np.float64)
    np.testing.assert_allclose(found["head"]["a"], 2.0 * of_head @ b.T, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["head"]["b"], 2.0 * a.T @ of_head, rtol=1e-5, atol=1e-7)


def stage(num_steps=30):
    return sft.SftSettings(optimizer=ADAM, num_steps=num_steps, rows=2, row_length=32)


def test_adapters_alone_are_trained_and_have_moments(longcat):
    base, weights = longcat
    policy = lora.lora_policy(base, CONFIG)
    adapters = lora.initial_adapters(base, CONFIG, weights, jax.random.key(0))
    before = jax.tree.map(np.array, weights)
    state, losses = trainer.initial_state(policy, ADAM, adapters), []
    state, _ = sft.run(
        policy,
        stage(8),
        state,
        [("1+1=", "2"), ("4+4=", "8")] * 80,
        sft.pair_encoder(tiny.tokenizer()),
        frozen=weights,
        on_step=lambda state, cursor, metrics: losses.append(metrics["loss"]),
    )
    assert losses[-1] < losses[0] - 0.5
    jax.tree.map(np.testing.assert_array_equal, weights, before)  # not given away either
    num_trained = sum(a.size for a in jax.tree.leaves(adapters))
    moments = [a for a in jax.tree.leaves(state.optimizer_state) if a.ndim]
    assert sum(a.size for a in moments) == 2 * num_trained
    assert num_trained < sum(a.size for a in jax.tree.leaves(weights)) / 3


def test_muon_turns_adapters(longcat):
    base, weights = longcat
    policy = lora.lora_policy(base, CONFIG)
    adapters = lora.initial_adapters(base, CONFIG, weights, jax.random.key(0))
    muon = optimizers.of_kind("muon", ADAM)
    state = trainer.initial_state(policy, muon, adapters)
    load = np.zeros((MODEL.num_layers, MODEL.num_targets), np.int32)
    after, _ = apply_gradient(state, drawn(adapters), load, model=policy, optimizer=muon)
    change = np.asarray(after.weights["layers"]["ffn_0"]["up"]["a"]) - np.asarray(
        adapters["layers"]["ffn_0"]["up"]["a"]
    )
    values = np.linalg.svd(change, compute_uv=False)
    np.testing.assert_allclose(values, 0.01 * 0.2 * np.sqrt(MODEL.hidden_size), rtol=0.4)


def test_a_target_that_there_is_not_is_refused(longcat):
    base, weights = longcat
    chosen = LoraConfig(targets=("up", "q_proj"))
    with pytest.raises(ConfigError, match=r"'q_proj'.*latent_down"):
        lora.initial_adapters(base, chosen, weights, jax.random.key(0))
    for name, value in (("rank", 0), ("alpha", 0.0), ("alpha", float("inf"))):
        with pytest.raises(ConfigError, match=f"{name}={value}"):
            LoraConfig(**{name: value})


def adapter_trainer(tmp_path, state=None, store=None):
    policy = lora.lora_policy(toy_policy(), CONFIG)
    adapters = lora.initial_adapters(toy_policy(), CONFIG, toy_weights(), jax.random.key(0))
    chosen = settings()
    state = state or trainer.initial_state(policy, chosen.optimizer, adapters)
    worker, store, heard = make(
        tmp_path, state=state, store=store, chosen=chosen, model=policy, frozen=toy_weights()
    )
    return worker, store, heard, (policy, chosen, adapters)


def steps(worker, heard, first, last):
    for step in range(first, last + 1):
        _, trained = one_step(worker, heard, step)
        assert trained.metrics["ratio/mean_by_lag"]["0"] == pytest.approx(1, abs=1e-5)


def test_published_versions_are_merged_and_a_checkpoint_of_adapters_goes_on(tmp_path):
    worker, store, heard, (policy, chosen, adapters) = adapter_trainer(tmp_path / "whole")
    steps(worker, heard, 1, 2)
    worker.save(2, {"versions": [2]})
    get(heard, local_trainer.events.Saved)
    steps(worker, heard, 3, 4)
    worker.close(60.0)
    merged = policy.join(worker.state.weights, toy_weights())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), store.get(4), merged)
    jax.tree.map(np.testing.assert_array_equal, worker.weights, merged)
    assert np.any(store.get(4)["head"] != toy_weights()["head"])
    np.testing.assert_array_equal(store.get(4)["embedding"], toy_weights()["embedding"])

    saved = local_trainer.checkpoint.restore(tmp_path / "whole").arrays
    assert set(saved["weights"]) == {"head"}  # the base is where the run has it
    state, versions, _, _ = local_trainer.restore(
        policy, chosen, adapters, tmp_path / "whole", frozen=toy_weights()
    )
    jax.tree.map(np.testing.assert_array_equal, versions[2], store.get(2))
    again, _, heard, _ = adapter_trainer(tmp_path / "again", state, make_store(versions))
    steps(again, heard, 3, 4)
    again.close(60.0)
    jax.tree.map(np.testing.assert_array_equal, again.state, worker.state)


def test_files_hold_what_peft_multiplies(longcat, tmp_path):
    base, weights = longcat
    config = LoraConfig(rank=3, alpha=6.0, targets=("query_up", "out", "down", "experts"))
    adapters = drawn(lora.initial_adapters(base, config, weights, jax.random.key(1)))
    places = list(moe_hf.places(MODEL, parameters.by_path(weights)))
    lora.save_peft(tmp_path, config, adapters, base, places, base="base")
    said = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (said["peft_type"], said["r"], said["lora_alpha"]) == ("LORA", 3, 6.0)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    whole = parameters.by_path(jax.jit(lora.lora_policy(base, config).join)(adapters, weights))
    before = parameters.by_path(weights)
    seen = 0
    for place in places:
        region = tuple(slice(start, stop) for start, stop in place.region)
        change = np.asarray(whole[place.leaf])[region] - np.asarray(before[place.leaf])[region]
        module = place.name.removesuffix(".weight")
        assert (module in said["target_modules"]) == bool(np.any(change))
        if np.any(change):
            a, b = (tensors.pop(f"base_model.model.{module}.lora_{s}.weight") for s in "AB")
            np.testing.assert_allclose(
                2.0 * b @ a, place.turn_back(change), rtol=1e-4, atol=1e-5, err_msg=module
            )
            seen += 1
    assert seen == MODEL.num_layers * (6 + 3 * MODEL.num_experts)
    assert not tensors
