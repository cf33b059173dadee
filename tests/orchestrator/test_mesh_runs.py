"""Whole runs in deterministic mode on meshes of eight devices, against the same run on one."""

import functools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from loong_jax.models.dense import DenseConfig
from loong_jax.models.families import family_of
from loong_jax.models.moe import MoEConfig
from loong_jax.recipes import MeshSettings
from loong_jax.rl.local_trainer import TrainerSettings
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rl.policy_model import policy_of
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.process_hosts import ProcessLauncher
from loong_jax.run import devices
from tests.doubles import tiny
from tests.orchestrator import test_deterministic
from tests.orchestrator.test_deterministic import (
    GROUP_SIZE,
    Parts,
    assert_equal_trees,
    numbers_of,
    orchestrated,
    trained,
)
from tests.sweeps import thinned

SHAPES = tiny.engine_shapes(
    cache_length=16,
    decode_steps=2,
    pages=PageConfig(num_pages=32, page_size=4, reuse_prefixes=False),
)
LONGCAT = MoEConfig.tiny(num_layers=1, hidden_size=32, num_experts=4, num_zero_experts=2)
MODELS: dict[str, Any] = {"longcat": LONGCAT, "qwen2": DenseConfig.tiny(num_layers=1)}
ONE = MeshSettings()
# trainer, each of two replicas, and whether these have devices of their own
PLACES: dict[str, tuple[MeshSettings, MeshSettings, bool]] = {
    "one device": (ONE, ONE, False),
    "longcat": (MeshSettings(fsdp=2, expert=2, tensor=2),) * 2 + (False,),
    "qwen2": (MeshSettings(fsdp=4, tensor=2),) * 2 + (False,),
    "longcat split": (MeshSettings(fsdp=2, expert=2), MeshSettings(expert=2), True),
    "qwen2 split": (MeshSettings(fsdp=4), MeshSettings(tensor=2), True),
}


@functools.cache
def parts_of(name: str, place: str) -> Parts:
    model, (mesh, replica, is_split) = MODELS[name], PLACES[place]
    rules, family = devices.training_rules_on(mesh, model), family_of(model)
    with rules.scope():
        graphdef, weights = family.init_weights(model, jax.random.key(0), rules)
    firsts = [mesh.num_devices + i * replica.num_devices if is_split else 0 for i in range(2)]
    engines = {
        first: engine_for(
            family.abstract_weights(
                model, own := devices.rules_on(replica, first) if is_split else rules
            )[0],
            model,
            tiny.tokenizer(),
            SHAPES,
            own,
        )
        for first in firsts
    }
    settings = TrainerSettings(
        objective=longcat_objective(group_size=GROUP_SIZE, max_response_tokens=6),
        # not Adam's own eps, which makes rounding errors of tiny gradients into whole updates
        optimizer=AdamW(schedule=WarmupConstant(peak=1e-2), eps=1e-2),
        max_staleness=1,
        row_length=32,
        rows=4,
        score_rows=2,
    )
    policy = policy_of(graphdef, model, 0.01, rules=rules)
    return Parts([engines[first] for first in firsts], policy, weights, settings)


@functools.cache
def whole_run(name: str, place: str, base: pathlib.Path):
    directory = base / f"whole {name} on {place}"
    return orchestrated(parts_of(name, place), directory, staleness=1, num_replicas=2)


@pytest.mark.slow
@pytest.mark.parametrize("place", thinned([p for p in PLACES if p != "one device"], 2))
def test_a_run_on_a_mesh_is_that_of_one_device(place, tmp_path_factory):
    name, base = place.split()[0], tmp_path_factory.getbasetemp()
    expected, one = whole_run(name, "one device", base)
    weights, log = whole_run(name, place, base)
    parts = parts_of(name, place)
    assert trained(log) == trained(one)
    start = jax.tree.leaves(jax.tree.map(np.asarray, parts.weights))
    moved = [np.asarray(a) - b for a, b in zip(jax.tree.leaves(weights), start, strict=True)]
    wanted = [np.asarray(a) - b for a, b in zip(jax.tree.leaves(expected), start, strict=True)]
    largest = max(np.abs(leaf).max() for leaf in wanted)
    for a, b in zip(moved, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-5 * largest)  # 1e-5 here; last bits differ
    directory = tmp_path_factory.mktemp("again")
    again, second = orchestrated(parts, directory, staleness=1, num_replicas=2)
    assert_equal_trees(again, weights)
    assert [numbers_of(m) for m in second.metrics] == [numbers_of(m) for m in log.metrics]


@pytest.mark.release
def test_staleness_zero_is_the_straight_line(tmp_path):
    parts = parts_of("qwen2", "qwen2")

    expected, history = test_deterministic.on_a_straight_line(parts, parts.engine[0])
    weights, log = orchestrated(parts, tmp_path, staleness=0, num_replicas=2)
    assert trained(log) == [numbers for _, numbers in history]
    assert_equal_trees(weights, expected)


@pytest.mark.slow
@pytest.mark.parametrize("place", thinned(["longcat split", "one device", "longcat"], 0, 1))
def test_a_killed_run_goes_on_bit_for_bit_and_on_another_mesh(place, tmp_path, tmp_path_factory):
    whole, log = whole_run("longcat", "longcat split", tmp_path_factory.getbasetemp())
    _, first = orchestrated(
        parts_of("longcat", "longcat split"), tmp_path, staleness=1, num_replicas=2, stop_after=3
    )
    weights, second = orchestrated(
        parts_of("longcat", place), tmp_path, staleness=1, num_replicas=2, resume=True
    )
    assert trained(first)[:2] + trained(second) == trained(log)
    if place == "longcat split":
        assert_equal_trees(weights, whole)
    for a, b in zip(jax.tree.leaves(weights), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def engine_of_a_process():
    """In a host that sees two devices."""
    assert jax.device_count() == 2
    model = MODELS["qwen2"]
    rules = devices.rules_on(MeshSettings(tensor=2), 0)
    graphdef = family_of(model).abstract_weights(model, rules)[0]
    return engine_for(graphdef, model, tiny.tokenizer(), SHAPES, rules)


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_replicas_in_processes_have_devices_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(test_deterministic, "make_engine", engine_of_a_process)
    place = functools.partial(ProcessLauncher, devices_per_process=2, first_device=4)
    whole, log = orchestrated(
        parts_of("qwen2", "qwen2 split"), tmp_path / "a", staleness=1, num_replicas=2
    )
    weights, other = orchestrated(
        parts_of("qwen2", "qwen2 split"), tmp_path / "b", staleness=1, num_replicas=2, place=place
    )
    assert trained(other) == trained(log)
    assert_equal_trees(weights, whole)
