"""Where a recipe's replicas live: it reads back, and what is written does not depend on it."""

import dataclasses
import functools
import json
import os
import queue

import jax
import numpy as np
import pytest

from loong_jax import configs, recipes
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.orchestrator.dora import algorithm_1
from loong_jax.orchestrator.protocols import MovesGroups, ReplicaGroup, refuse_unable
from loong_jax.recipes import (
    MeshSettings,
    ProcessReplicas,
    RayReplicas,
    ThreadReplicas,
)
from loong_jax.rl.local_trainer import TrainerSettings
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rollout import process_hosts
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.records import GroupGenerated, ReplicaFailed, SamplingSettings, Ticket
from loong_jax.rollout.versions import VersionStore
from loong_jax.run import devices, placement
from tests.doubles import tiny
from tests.doubles.fake_model import fake_problem
from tests.run.conftest import with_engine

PLACEMENTS = (
    ThreadReplicas(),
    ProcessReplicas(replicas_per_process=2, cores=(0,), single_threaded=True),
    RayReplicas(num_tpus=4.0),
)


def recipe(where, **engine):
    return with_engine(recipes.get_recipe("quickstart")(), placement=where, **engine)


@pytest.mark.parametrize("where", PLACEMENTS, ids=repr)
def test_every_placement_reads_back_and_does_what_schedulers_ask(where):
    given = recipe(where)
    assert configs.from_json(json.loads(json.dumps(configs.to_json(given)))) == given
    kind = placement.group_kind(where)
    assert kind is (LocalReplicaGroup if where == ThreadReplicas() else HostedReplicaGroup)
    for ability in (ReplicaGroup, MovesGroups):
        assert all(hasattr(kind, name) for name in vars(ability) if callable(vars(ability)[name])
                   and not name.startswith("_"))  # fmt: skip
    refuse_unable(algorithm_1(groups_per_step=3), kind, where="scheduler")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recipe_writes_and_scores_the_same_in_threads_and_in_processes():
    model = tiny.smallest_config(num_layers=1)
    graphdef, weights = moe.init_weights(model, jax.random.key(0))
    sampling = SamplingSettings(max_new_tokens=8)
    found, scored, answers = [], [], queue.Queue()
    for where in (ThreadReplicas(), ProcessReplicas()):
        shape = dict(slots_per_replica=8, cache_length=40, prefill_prompts=2, prefill_members=8)
        given = dataclasses.replace(recipe(where, narrow_slots=(), **shape), model=model)
        objective = longcat_objective(group_size=2, max_response_tokens=8)
        stage = dataclasses.replace(
            given.stages["rl_logic"], sampling=sampling, group_size=2, objective=objective
        )
        engine = engine_for(graphdef, model, AsciiTokenizer(), given.engine)
        store = VersionStore(stage.scheduler.max_staleness)
        store.put(0, weights)
        scoring = TrainerSettings(
            objective=stage.objective, optimizer=stage.optimizer, max_staleness=1, row_length=40
        )
        engines = [engine] * given.engine.num_replicas
        group = placement.start_replicas(given, stage, engines, store, scoring)
        events: queue.Queue = queue.Queue()
        group.start(events.put)
        groups = {}
        try:
            for replica in range(2):
                group.assign(replica, 0)
                numbers = range(3 * replica, 3 * replica + 3)
                tickets = [Ticket(number=n, problem=fake_problem(n)) for n in numbers]
                group.dispatch(replica, tickets, 0)
            while len(groups) < 6:
                event = events.get(timeout=700)
                assert not isinstance(event, ReplicaFailed), event
                if isinstance(event, GroupGenerated):
                    groups[event.group.ticket.number] = event.group
            found.append(
                {
                    number: [(r.tokens.tolist(), r.engine_logprob.tolist()) for r in one.rollouts]
                    for number, one in groups.items()
                }
            )
            if isinstance(group, HostedReplicaGroup):
                assert group.scorers(0) == (0, 1)
                group.score(1, list(groups.values()), answers.put)
                scored = answers.get(timeout=700)
        finally:
            group.close(30.0)
    assert found[0] == found[1]
    score_group = placement.make_scorer(given, scoring)  # as the trainer's own thread does it
    for one in scored:
        for theirs, ours in zip(one.rollouts, score_group(weights, one).rollouts, strict=True):
            np.testing.assert_allclose(theirs.behavior_logprob, ours.behavior_logprob, atol=1e-6)
    assert len(scored) == 6


def test_a_mesh_of_more_devices_than_a_process_sees_is_refused():
    given = recipe(ProcessReplicas(devices_per_process=1))
    assert devices.shares_of(given).replicas == ()
    wide = dataclasses.replace(given, replica_mesh=MeshSettings(tensor=2))
    with pytest.raises(ConfigError, match=r"takes 2 devices, and a process .* sees 1"):
        devices.shares_of(wide)


def test_processes_see_devices_of_their_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5,6")
    anew = functools.cache(process_hosts.listed_devices.__wrapped__)
    monkeypatch.setattr(process_hosts, "listed_devices", anew)
    own = process_hosts.visible_devices(2, 2)
    assert own["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert own["TPU_VISIBLE_CHIPS"] == "2,3"
    assert own["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,2,1"
    with pytest.raises(ConfigError, match="names 4"):
        process_hosts.visible_devices(3, 2)
    three = process_hosts.visible_devices(0, 3)  # of GPUs any number
    assert three["CUDA_VISIBLE_DEVICES"] == "3,4,5"
    assert "TPU_VISIBLE_CHIPS" not in three
    for name in ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS"):
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards
    devices.leave_to_replicas(recipe(ProcessReplicas(devices_per_process=2)))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert process_hosts.visible_devices(1, 2)["CUDA_VISIBLE_DEVICES"] == "4,5"  # for a replica yet
    assert os.environ["TPU_VISIBLE_CHIPS"] == "0"
