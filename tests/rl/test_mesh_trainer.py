"""Steps of a trainer on a mesh of eight devices, against the same steps on one."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax._src.array import ArrayImpl

from loong_jax import checksums
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models.dense import DenseConfig
from loong_jax.models.families import family_of
from loong_jax.models.moe import MoEConfig
from loong_jax.rl import (
    batching,
    checkpoint,
    local_trainer,
    lora,
    objectives,
    optimizers,
    sft,
    trainer,
)
from loong_jax.rl.policy_model import policy_of
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.versions import VersionStore
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles.toy_policy import toy_group
from tests.plan.asking import printed_for_tpu
from tests.rl import logits_programs

LONGCAT = MoEConfig.tiny(
    num_layers=2, hidden_size=64, num_experts=4, num_zero_experts=2, vocab_size=2048
)
QWEN = DenseConfig.tiny(num_layers=2)
SIZES = {"longcat": dict(fsdp=2, expert=2, tensor=2), "qwen2": dict(fsdp=4, tensor=2)}
MODELS: dict[str, Any] = {"longcat": LONGCAT, "qwen2": QWEN}
# An update is large beside the last bits of a weight, and no gradient of rounding errors alone is
# blown up to one: Adam's own eps would make a difference of a last bit one of a thousandth.
RATE = optimizers.WarmupConstant(peak=1e-2)
ADAM = optimizers.AdamW(schedule=RATE, weight_decay=0.1, eps=1e-2)
GRPO = objectives.grpo_objective(group_size=4, beta=0.0)
NUM_STEPS = 4
NAMES = [pytest.param("longcat", marks=pytest.mark.slow), "qwen2"]


@dataclasses.dataclass
class Trained:
    state: trainer.TrainState
    scored: list[np.ndarray]
    metrics: list[dict[str, Any]]
    update: dict[str, np.ndarray]  # by how much each weight has moved


def rules_of(name: str, on_mesh: bool) -> ShardingRules:
    if not on_mesh:
        return ShardingRules()
    return ShardingRules(mesh=make_mesh(**SIZES[name]), act_vocab="tensor")


@functools.cache
def policy_on(name: str, on_mesh: bool):
    model, rules = MODELS[name], rules_of(name, on_mesh)
    with rules.scope():
        graphdef, weights = family_of(model).init_weights(model, jax.random.key(0), rules)
    return policy_of(graphdef, model, 0.01, rules=rules), weights


def groups_of(replays: bool) -> list:
    groups = [toy_group(i, (1.0, 0.0, None, 0.5), seed=i) for i in range(3)]
    if not replays:
        return groups
    draw = np.random.default_rng(0)

    def with_routing(rollout):
        shape = (len(rollout.prompt) + len(rollout.tokens), LONGCAT.num_layers, LONGCAT.num_chosen)
        return dataclasses.replace(rollout, routing=draw.integers(0, 6, shape).astype(np.int16))

    return [g.replace_rollouts(tuple(map(with_routing, g.rollouts))) for g in groups]


def train(name, on_mesh, *, objective=GRPO, optimizer: Any = ADAM, replays=False, adapters=None):
    policy, weights = policy_on(name, on_mesh)
    frozen = ()
    if adapters is not None:
        frozen, base = weights, policy
        with base.rules.scope():
            weights = lora.initial_adapters(base, adapters, frozen, jax.random.key(1))
        policy = lora.lora_policy(base, adapters)
    settings = local_trainer.TrainerSettings(
        objective=objective,
        optimizer=optimizer,
        max_staleness=0,
        row_length=64,
        rows=8,
        replays_routing=replays,
    )
    programs = trainer.make_programs(policy, objective, optimizer, 0, replays)
    state = programs.initial(weights)
    start, first = jax.tree.map(np.asarray, state.weights), None
    scored, metrics = [], []
    for step in range(NUM_STEPS):
        whole = programs.publish(state.weights, frozen)
        groups = [
            local_trainer.score_group(programs, whole, group, settings)
            for group in groups_of(replays)
        ]
        groups = [dataclasses.replace(group, version=0) for group in groups]
        scored += [r.behavior_logprob for group in groups for r in group.rollouts]
        reference = None
        if objective.kl is not None:
            first = first if step else whole
            reference = {
                (rollout.ticket, rollout.attempt): logprob
                for group in groups
                for rollout, logprob in zip(
                    group.rollouts,
                    local_trainer.group_logprobs(programs, first, group, settings),
                    strict=True,
                )
            }
        batches = batching.make_batches(
            groups,
            objective.signal,
            trainer_version=0,
            rows=8,
            row_length=64,
            reference_logprob=reference,
            replays_routing=replays,
            layout=programs.layout,
        )
        assert int(state.step) == step
        state, numbers = trainer.train_step(
            programs, policy, state, batches, len(groups), 1.0, frozen
        )
        metrics.append(numbers)
    moved = jax.tree.map(lambda a, b: np.asarray(a) - b, state.weights, start)
    return Trained(state, scored, metrics, moved)


def refuse_difference(one: Trained, mesh: Trained) -> None:
    for a, b in zip(one.scored, mesh.scored, strict=True):
        np.testing.assert_allclose(b, a, atol=5e-5)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(one.update))
    assert largest > 1e-4
    for a, b in zip(jax.tree.leaves(one.update), jax.tree.leaves(mesh.update), strict=True):
        np.testing.assert_allclose(b, a, atol=5e-5 * largest)  # 1e-5 here; last bits differ
    for a, b in zip(one.metrics, mesh.metrics, strict=True):
        assert a.keys() == b.keys()
        np.testing.assert_allclose(b["grad_norm"], a["grad_norm"], rtol=1e-4)


@pytest.mark.parametrize("name", [pytest.param("longcat", marks=pytest.mark.release), "qwen2"])
def test_steps_are_those_of_one_device(name):
    mesh = train(name, True)
    refuse_difference(train(name, False), mesh)
    devices = {
        len({str(shard.index) for shard in leaf.addressable_shards})
        for leaf in jax.tree.leaves((mesh.state.weights, mesh.state.optimizer_state))
    }
    assert max(devices) == 8  # a weight lies in eight different parts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("longcat", dict(replays=True)),
        pytest.param("longcat", dict(adapters=lora.LoraConfig(rank=4)), marks=pytest.mark.release),
        ("qwen2", dict(adapters=lora.LoraConfig(rank=4))),
        ("qwen2", dict(objective=objectives.gspo_objective(group_size=4))),
        ("qwen2", dict(objective=objectives.grpo_objective(group_size=4, beta=1.0))),
        ("qwen2", dict(optimizer=optimizers.Muon(schedule=RATE, eps=1e-2))),
    ],
    ids=["replay", "adapters of experts' model", "adapters", "whole responses", "penalty", "muon"],
)
def test_other_kinds_of_training_are_too(name, how):
    mesh = train(name, True, **how)
    refuse_difference(train(name, False, **how), mesh)
    if "objective" in how and how["objective"].kl is not None:
        assert mesh.metrics[-1]["kl/mean"] > 0
    if how.get("replays"):
        assert mesh.metrics[0]["routing/replayed_choices"] > 0


# XLA's CPU devices have aborted in LongCat's step here, while they waited for each other
@pytest.mark.parametrize("name", [pytest.param("longcat", marks=pytest.mark.release), "qwen2"])
def test_supervised_steps_and_their_checkpoint_are_too(name, tmp_path):
    def trained(on_mesh: bool):
        policy, weights = policy_on(name, on_mesh)
        state = trainer.initial_state(policy, ADAM, weights)
        settings = sft.SftSettings(
            optimizer=ADAM, num_steps=3, rows=8, micro_rows=4 * on_mesh, row_length=32
        )
        pairs = [(f"{n}+{n}=", f"{2 * n}") for n in range(400)]
        return policy, weights, sft.run(policy, settings, state, pairs, AsciiTokenizer())[0]

    (_, start, one), (policy, fresh, mesh) = trained(False), trained(True)
    for a, b, c in zip(*map(jax.tree.leaves, (one.weights, mesh.weights, start)), strict=True):
        assert float(np.abs(np.asarray(a) - c).max()) > 0 or a.size < 10
        np.testing.assert_allclose(b, a, atol=1e-6)
    checkpoint.save(tmp_path, 3, trainer.to_arrays(mesh))
    places = trainer.shardings(policy, ADAM, fresh, fresh)
    found = checkpoint.restore(tmp_path, shardings=places)
    restored = trainer.from_arrays(policy, ADAM, fresh, found.arrays)
    for a, b in zip(jax.tree.leaves(mesh), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.is_fully_replicated or a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.parametrize("name", ["longcat", "qwen2"])
@pytest.mark.parametrize("num_words", [logits_programs.FEW, logits_programs.MANY])
@pytest.mark.parametrize(
    "on_mesh", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one device", "mesh"]
)
def test_no_program_holds_whole_logits(name, num_words, on_mesh):
    rules = rules_of(name, on_mesh)
    for program, made in logits_programs.lowered(name, rules, num_words).items():
        text = made.compile().as_text()
        most, whole = logits_programs.most_and_whole(text, rules, num_words)
        assert most < whole, program


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["longcat", "qwen2"])
def test_none_does_on_tpu(name):
    (found,) = printed_for_tpu("tests.rl.logits_programs", name)
    assert {"logprobs", "accumulate", "sft"} <= found.keys()
    for program, (most, whole) in found.items():
        assert most < whole, program


@pytest.mark.parametrize("name", NAMES)
def test_publishing_on_a_mesh_brings_no_weight_to_the_host(monkeypatch, name):
    policy, weights = policy_on(name, True)
    state = trainer.initial_state(policy, ADAM, weights)
    graphdef = family_of(MODELS[name]).abstract_weights(MODELS[name], policy.rules)[0]
    shapes = EngineSettings(
        slots_per_replica=8,
        cache_length=32,
        prefill_lengths=(16,),
        prefill_prompts=8,
        prefill_members=8,
    )
    engine = engine_for(graphdef, MODELS[name], AsciiTokenizer(), shapes, policy.rules)
    store, seen = VersionStore(max_staleness=0), []
    to_numpy = ArrayImpl.__array__

    def watched(array, *args, **kwargs):
        seen.append(array.size)
        return to_numpy(array, *args, **kwargs)

    monkeypatch.setattr(ArrayImpl, "__array__", watched)
    monkeypatch.setattr(checksums, "is_on_host", lambda array: False)  # as of an accelerator
    store.put(0, trainer.publisher(policy)(state.weights))
    loaded = engine.load_params(store.get(0))
    assert len(seen) == len(jax.tree.leaves(loaded))  # a checksum of each
    assert max(seen) == 1
    for there, here in zip(jax.tree.leaves(store.get(0)), jax.tree.leaves(loaded), strict=True):
        for one, other in zip(there.addressable_shards, here.addressable_shards, strict=True):
            assert one.data.unsafe_buffer_pointer() == other.data.unsafe_buffer_pointer()
