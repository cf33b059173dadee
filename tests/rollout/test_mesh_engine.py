"""Engines on a mesh of eight devices, against the same engine on one."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models.dense import DenseConfig
from loong_jax.models.families import family_of
from loong_jax.models.moe import MoEConfig
from loong_jax.rollout.engine_config import EngineSettings, PageConfig
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.replica import Replica
from loong_jax.sharding import ShardingRules, decoding_rules, make_mesh
from tests.doubles import tiny
from tests.doubles.fake_model import fake_problem
from tests.rollout import engine_runs
from tests.rollout.engine_runs import prompts_of, request
from tests.sweeps import thinned

SLOTS = tiny.engine_shapes(prefill_lengths=(8, 16), prefill_prompts=8, chunked_prefill=True)
PAGES = dataclasses.replace(SLOTS, pages=PageConfig(num_pages=32, page_size=8))
LONGCAT = MoEConfig.tiny(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    q_lora_rank=16,
    kv_lora_rank=8,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    ffn_hidden_size=32,
    expert_ffn_hidden_size=16,
    num_experts=8,
    num_zero_experts=2,
    num_mtp_layers=1,
)
QWEN = DenseConfig.tiny(num_layers=2)
MESHES = {
    "longcat": (LONGCAT, ShardingRules, dict(fsdp=2, expert=2, tensor=2)),
    "longcat-decoding": (LONGCAT, decoding_rules, dict(expert=4, tensor=2)),
    "qwen2": (QWEN, ShardingRules, dict(fsdp=4, tensor=2)),
}
# two of one prompt, one that is read in chunks, and one whose beginning the first ones share
PROMPTS = prompts_of(9, 20, 13)
ROWS = [0, 0, 1, 2]


@functools.cache
def made(name: str, config: EngineSettings, on_mesh: bool, first: int = 0, count: int = 8):
    """An engine and the weights it has loaded, over `count` devices from `first` on."""
    model, rules_on, sizes = MESHES[name]
    sizes = sizes if count == 8 else dict(tensor=count)
    devices = jax.devices()[first : first + count]
    rules = rules_on(mesh=make_mesh(**sizes, devices=devices)) if on_mesh else ShardingRules()
    family = family_of(model)
    graphdef, _ = family.abstract_weights(model, rules)
    weights = family.init_weights(model, jax.random.key(0))[1]
    engine = engine_for(graphdef, model, AsciiTokenizer(), config, rules)
    return engine, engine.load_params(weights)


class Run(engine_runs.Run):
    def read(self, slots):
        """`PROMPTS` into these slots, by which the samples are named."""
        requests = [request(i, max_new_tokens=10) for i in range(len(ROWS))]
        return self.fill(PROMPTS, slots, requests, rows=ROWS, names=slots, version=1, find=True)

    def refuse_difference(self, other: "Run") -> None:
        assert self.tokens == other.tokens
        for name, found in self.log_probs.items():
            np.testing.assert_allclose(found, other.log_probs[name], atol=2e-5)


def two(name: str, config: EngineSettings) -> tuple[Run, Run]:
    """On one device, and on the mesh."""
    return Run(*made(name, config, False)), Run(*made(name, config, True))


@pytest.mark.parametrize("config", [SLOTS, PAGES], ids=["slots", "pages"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("longcat", marks=pytest.mark.release),
        pytest.param("longcat-decoding", marks=pytest.mark.release),
        "qwen2",
    ],
)
def test_samples_are_those_of_one_device(name, config):
    one, mesh = (run.read([6, 0, 3, 5]).decode(3) for run in two(name, config))
    assert sum(map(len, one.tokens.values())) >= 20
    mesh.refuse_difference(one)
    leaf = jax.tree.leaves(mesh.state)[0]
    assert len(leaf.sharding.device_set) == 8
    assert not leaf.is_fully_replicated


@pytest.mark.parametrize("name", [pytest.param("longcat", marks=pytest.mark.slow), "qwen2"])
def test_pages_of_an_earlier_prompt_are_found_again(name):
    one, mesh = two(name, PAGES)
    for run in (one, mesh):
        run.read([0, 1, 2, 3]).decode(3).read([4, 5, 6, 7]).decode(3)
        assert run.engine.statistics(run.state)["num_prefix_hits"] >= 2
    mesh.refuse_difference(one)


def test_few_slots_are_decoded_alone():
    narrow = dataclasses.replace(SLOTS, narrow_slots=(4,), slots_per_replica=16)
    one, mesh = (run.read([6, 0, 3, 5]) for run in two("qwen2", narrow))
    for run in (one, mesh):
        run.decode(3, slots=np.array([0, 3, 5, 6], np.int32))
    mesh.refuse_difference(one)


@pytest.mark.slow
def test_drafts_bring_the_same_tokens_and_some_are_kept():
    drafting = dataclasses.replace(PAGES, speculation=True)
    one, mesh = (run.read([6, 0, 3, 5]).decode(3) for run in two("longcat", drafting))
    mesh.refuse_difference(one)
    counts = mesh.engine.statistics(mesh.state)
    assert counts["num_drafts_proposed"] > 0
    assert counts == one.engine.statistics(one.state)


@pytest.mark.slow
def test_the_choices_of_routers_are_recorded():
    routing = dataclasses.replace(SLOTS, routing=True)
    one, mesh = (run.read([6, 0, 3, 5]).decode(3) for run in two("longcat", routing))
    mesh.refuse_difference(one)
    assert any((part >= 0).any() for parts in mesh.targets.values() for part in parts)
    for slot, parts in one.targets.items():
        np.testing.assert_array_equal(np.concatenate(mesh.targets[slot]), np.concatenate(parts))


WAYS = {"to another mesh": (True, 4, 2), "to one device": (False,)}


@pytest.mark.parametrize(
    ("way", "config"),
    thinned(
        itertools.product([*WAYS, "over the host", "on the devices"], [SLOTS, PAGES]), 0, 3, 5, 6
    ),
    ids=lambda value: value if isinstance(value, str) else "pages" if value.pages else "slots",
)
def test_a_running_sample_moves_and_writes_the_same_tokens(config, way):
    staying, moving = (Run(*made("qwen2", config, True)).read([0, 1, 2, 3]) for _ in range(2))
    staying.decode(3)
    moving.decode(1)
    there = Run(*made("qwen2", config, *WAYS[way])) if way in WAYS else moving
    if there is not moving:
        there.tokens, there.log_probs = moving.tokens, moving.log_probs
    for slot in (0, 1, 2, 3):
        prefix = moving.engine.extract(moving.state, slot)
        prefix = jax.device_get(prefix) if way == "over the host" else prefix
        moving.state = moving.engine.cancel(moving.state, [slot])
        moving.state = moving.engine.release(moving.state, slot)
        assert there.engine.accepts(prefix)
        there.insert(prefix, [slot], [slot])
    there.decode(2)
    there.refuse_difference(staying)


def test_a_replica_that_lends_its_devices_goes_on_where_it_was():
    """Resting gives the cache up; what was being written waits in host memory meanwhile."""

    def written(on_mesh, rests):
        engine, weights = made("qwen2", SLOTS, on_mesh)
        sampling = SamplingSettings(max_new_tokens=12)
        replica = Replica(engine, group_size=2, sampling=sampling, seed=3)
        replica.assign(0, weights)
        replica.submit([Ticket(number=n, problem=fake_problem(n, "abc" * (n + 1))) for n in (0, 1)])
        groups = list(replica.step()[0])
        if rests:
            before = jax.live_arrays()
            replica.rest()
            assert sum(a.size for a in jax.live_arrays()) < sum(a.size for a in before)
            replica.resume()
        while not replica.is_empty:
            groups += replica.step()[0]
        counts = replica.statistics()
        assert counts["num_rests"] == rests
        assert (counts["num_slots_rested"] > 0) == rests
        return {g.ticket.number: [r.tokens.tolist() for r in g.rollouts] for g in groups}

    expected = written(on_mesh=False, rests=False)
    assert written(on_mesh=True, rests=True) == written(on_mesh=True, rests=False) == expected
