"""The table of memory, against the arrays that a run holds on a device."""

import dataclasses

import jax
import pytest
from rich.console import Console

from loong_jax import recipes
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models.dense import DenseConfig
from loong_jax.models.families import family_of
from loong_jax.recipes import MeshSettings, Recipe, ThreadReplicas
from loong_jax.rl import lora, trainer
from loong_jax.rl.policy_model import policy_of
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.run import devices, memory
from tests.run.conftest import with_engine
from tests.sweeps import thinned


def recipe_on(mesh: MeshSettings, **changes) -> Recipe:
    recipe = recipes.get_recipe("quickstart")().with_stage("sft", rows=8)
    return dataclasses.replace(recipe, mesh=mesh, **changes)


def held(tree) -> int:
    """Bytes on the first device that has any of it."""
    device = min((d for leaf in jax.tree.leaves(tree) for d in leaf.devices()), key=lambda d: d.id)
    return sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(tree)
        for shard in leaf.addressable_shards
        if shard.device == device
    )


LONGCAT = (None, MeshSettings(fsdp=2, expert=2, tensor=2))
QWEN = (DenseConfig.tiny(num_layers=2, dtype="bfloat16"), MeshSettings(fsdp=4, tensor=2))


@pytest.mark.parametrize(
    ("model", "mesh", "rank"),
    thinned([(*LONGCAT, None), (*LONGCAT, 4), (*QWEN, None), (*QWEN, 4)], 1, 2),
    ids=["longcat-whole", "longcat-adapters", "qwen2-whole", "qwen2-adapters"],
)
def test_the_table_counts_what_a_trainer_and_its_replicas_hold(model, mesh, rank):
    recipe = recipe_on(mesh, **({} if model is None else {"model": model}))
    if rank is not None:
        recipe = recipe.with_stage("rl_stem", lora=lora.LoraConfig(rank=rank))
    stage, model = recipe.stages["rl_stem"], recipe.model
    rules = devices.training_rules_on(mesh, model)
    with rules.scope():
        graphdef, weights = family_of(model).init_weights(model, jax.random.key(0), rules)
    policy, trained, frozen = policy_of(graphdef, model, recipe.bias, rules=rules), weights, ()
    if stage.lora is not None:
        frozen = weights
        with rules.scope():
            trained = lora.initial_adapters(policy, stage.lora, frozen, jax.random.key(0))
        policy = lora.lora_policy(policy, stage.lora)
    state = trainer.initial_state(policy, stage.optimizer, trained)
    versions = [
        trainer.publisher(policy)(state.weights, frozen)
        for _ in range(stage.scheduler.max_staleness + 2)
    ]
    engine = engine_for(graphdef, model, AsciiTokenizer(), recipe.engine_on(rules), rules)
    caches = [engine.init_decode_state().cache for _ in range(recipe.engine.num_replicas)]
    found = {need.what: need.trainer for need in memory.needs(recipe, "rl_stem")}
    assert found["weights that train, float32"] == held(state.weights)
    assert found["moments of the optimizer"] == held(state.optimizer_state)
    assert found["gradients"] == held(state.weights)
    assert found[f"{len(versions)} versions of the policy"] == held(versions)
    assert found["caches of replicas"] == held(caches)
    assert found.get("frozen weights", 0) == (held(frozen) if frozen else 0)


def test_moments_in_host_memory_are_a_row_of_the_host():
    recipe = recipe_on(MeshSettings(fsdp=4))
    stage = recipe.stages["rl_stem"]
    offloads = dataclasses.replace(stage.optimizer, offload_moments=True)
    away = memory.needs(recipe.with_stage("rl_stem", optimizer=offloads), "rl_stem")
    here = memory.needs(recipe, "rl_stem")
    (moments,) = (need.trainer for need in here if need.what == "moments of the optimizer")
    (on_host,) = (need.trainer for need in away if need.is_on_host)
    assert on_host == 4 * moments  # of all its devices
    assert memory.total(away) == memory.total(here) - moments
    console = Console(width=120, record=True)
    console.print(memory.table("rl_stem", away, None))
    assert "moments of the optimizer, in host memory" in console.export_text()
    counted = memory.total([need for need in away if not need.is_estimate])
    memory.refuse_too_much("rl_stem", away, counted)
    with pytest.raises(ConfigError, match="rl_stem needs"):
        memory.refuse_too_much("rl_stem", here, counted)


def test_the_largest_part_says_that_it_can_lie_in_host_memory():
    recipe = recipe_on(MeshSettings(fsdp=4))
    moments = [n for n in memory.needs(recipe, "rl_stem") if n.what == "moments of the optimizer"]
    with pytest.raises(ConfigError, match=r"--STAGE\.optimizer\.offload-moments"):
        memory.refuse_too_much("rl_stem", moments, 1.0)


def test_replicas_of_their_own_have_a_column_and_too_much_is_refused():
    recipe = recipe_on(MeshSettings(fsdp=4), replica_mesh=MeshSettings(tensor=2))
    recipe = with_engine(recipe, placement=ThreadReplicas(devices="own"))
    found = memory.needs(recipe, "rl_stem")
    console = Console(width=120, record=True)
    console.print(memory.table("rl_stem", found, 1e6))
    text = console.export_text()
    assert "replica" in text
    assert "caches of replicas" in text
    assert "of 1.00 there" in text
    console = Console(width=60, record=True)
    console.print(memory.table("rl_stem", found, 1e6))
    assert "…" not in console.export_text()
    with pytest.raises(ConfigError, match="less of it by --"):
        memory.refuse_too_much("rl_stem", found, 1e6)
    memory.refuse_too_much("rl_stem", found, 1e12)
    with pytest.raises(ConfigError, match="4 devices for the trainer and 2 replicas 4 each, 12 in"):
        memory.needs(dataclasses.replace(recipe, replica_mesh=MeshSettings(fsdp=4)), "rl_stem")


@pytest.mark.slow
@pytest.mark.parametrize(
    "on_mesh", [pytest.param(False, marks=pytest.mark.release), True], ids=["one device", "mesh"]
)
def test_programs_are_compiled_for_what_they_need(on_mesh):
    mesh = MeshSettings(fsdp=2, expert=2, tensor=2) if on_mesh else MeshSettings()
    recipe = recipe_on(mesh).with_stage("rl_stem", rows=4, row_length=96)
    shapes = dict(slots_per_replica=8, prefill_members=8, cache_length=96, prefill_lengths=(32,))
    recipe = with_engine(recipe, pages=None, narrow_slots=(), **shapes)
    found = memory.compiled_needs(recipe, "rl_stem")
    assert not any(need.is_estimate for need in found)
    spaces = {need.what: need.trainer for need in found[-2:]}
    assert list(spaces) == ["working space of a step", "working space of a block of decoding"]
    assert min(spaces.values()) > 1e5


def test_shared_replicas_lie_side_by_side_on_the_trainers_devices():
    recipe = recipe_on(MeshSettings(fsdp=4), replica_mesh=MeshSettings(tensor=2))
    shares = devices.shares_of(with_engine(recipe, num_replicas=3))
    found = [
        sorted(d.id for d in rules.mesh.devices.flat) for rules in shares.replicas if rules.mesh
    ]
    assert found == [[0, 1], [2, 3], [0, 1]]
    assert shares.replicas[0] is shares.replicas[2]
    three, one = (
        memory.needs(with_engine(recipe, num_replicas=n, mantissa_bits=7), "rl_stem")
        for n in (3, 1)
    )
    three, one = ({need.what: need.trainer for need in needs} for needs in (three, one))
    for what in ("caches of replicas", "weights as replicas load them"):
        assert three[what] == 2 * one[what]  # on the devices of two


@pytest.mark.parametrize(
    ("platforms", "width", "kept"),
    [("cpu", 96, {"one_arena": False}), ("cpu", 8192, {"one_arena": True}), ("tpu", 96, None)],
)
def test_a_large_model_on_cpu_keeps_what_its_programs_free(monkeypatch, platforms, width, kept):
    found = []
    monkeypatch.setattr(memory.process, "keep_freed_memory", lambda **how: found.append(how))
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    recipe = recipes.get_recipe("smol")()
    model = DenseConfig.tiny(hidden_size=width)
    memory.keep_freed(dataclasses.replace(recipe, model=model))
    assert found == ([] if kept is None else [kept])


def test_dense_weights_of_longcat_are_cut_over_experts_too_where_it_trains():
    own = recipe_on(MeshSettings(fsdp=2, expert=2), replica_mesh=MeshSettings(expert=2))
    in_turns = recipe_on(MeshSettings(fsdp=2, expert=2))
    own = with_engine(own, placement=ThreadReplicas(devices="own"))
    shares, together = devices.shares_of(own), devices.shares_of(in_turns)
    assert shares.trainer.partition("embed")[0] == ("fsdp", "expert")
    assert {rules.partition("embed")[0] for rules in shares.replicas} == {"fsdp"}
    assert all(rules is together.trainer for rules in together.replicas)
