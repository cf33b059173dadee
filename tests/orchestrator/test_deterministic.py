"""Deterministic mode on the real engine, trainer and threads, with a tiny model."""

import dataclasses
import os
import signal

import jax
import numpy as np
import pytest

from loong_jax.models import moe
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.journal import Journal
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.problems.verdict import correct, wrong
from loong_jax.rl import local_trainer, trainer
from loong_jax.rl.local_trainer import LocalTrainer, TrainerSettings
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rl.policy_model import longcat_policy
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.hosts import HostSetup
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.process_hosts import ProcessLauncher
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.versions import VersionStore
from tests.doubles import tiny
from tests.doubles.fake_world import KeptLog, made_loop
from tests.doubles.problems import made_problem
from tests.doubles.scoring import AtOnce
from tests.orchestrator import straight_line
from tests.sweeps import thinned

NUM_STEPS, GROUPS, GROUP_SIZE, SEED = 4, 3, 4, 5
SAMPLING = SamplingSettings(max_new_tokens=6)


def problem_at(cursor):
    return made_problem(cursor, prompt=f"{cursor}?", verifier="parity")


def judge(text):
    """Right where the characters sum to an even number: half of all answers, at random."""
    return correct() if sum(map(ord, text)) % 2 == 0 else wrong("value")


@dataclasses.dataclass
class Parts:
    engine: SlotEngine
    policy: object
    weights: dict
    settings: TrainerSettings


SHAPES = tiny.engine_shapes(cache_length=16, prefill_prompts=2, decode_steps=2)


def make_engine():
    config = tiny.smallest_config()
    return engine_for(moe.abstract_weights(config)[0], config, tiny.tokenizer(), SHAPES)


@pytest.fixture(scope="module")
def parts():
    config = tiny.smallest_config()
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    engine = engine_for(graphdef, config, tiny.tokenizer(), SHAPES)
    settings = TrainerSettings(
        objective=longcat_objective(group_size=GROUP_SIZE, max_response_tokens=6),
        optimizer=AdamW(schedule=WarmupConstant(peak=1e-2)),
        max_staleness=1,
        row_length=32,
        rows=4,
        score_rows=2,
    )
    return Parts(engine, longcat_policy(graphdef, config, 0.01), weights, settings)


def start_replicas(place, parts, store, num_replicas):
    """In threads where `place` is None."""
    how = dict(group_size=GROUP_SIZE, sampling=SAMPLING, seed=SEED)
    if place is None:
        return LocalReplicaGroup(parts.engine, store, num_replicas=num_replicas, **how)
    setup = HostSetup(
        **how,
        make_engine=make_engine,
        groups_per_replica=2,
        max_staleness=store.capacity - 2,
        report_s=0.0,
    )
    return HostedReplicaGroup(place(), store, setup, num_hosts=num_replicas)


def orchestrated(
    parts,
    directory,
    *,
    staleness,
    num_replicas,
    stop_after=None,
    resume=False,
    place=None,
    on_step=lambda step, replicas: None,
):
    """One run; returns final weights and log. `stop_after` kills it at a step."""
    store = VersionStore(max_staleness=staleness)
    control = None
    if resume:
        state, versions, control, _ = local_trainer.restore(
            parts.policy, parts.settings, parts.weights, directory
        )
    else:
        state = trainer.initial_state(parts.policy, parts.settings.optimizer, parts.weights)
        versions = {0: parts.weights}
    for version, weights in sorted(versions.items()):
        store.put(version, weights)
    replicas = start_replicas(place, parts, store, num_replicas)
    learner = LocalTrainer(
        model=parts.policy,
        settings=parts.settings,
        state=state,
        versions=store,
        checkpoints=directory,
    )
    log = KeptLog()
    journal = Journal(directory / "journal")
    policy = DoraPolicy(groups_per_step=GROUPS, max_staleness=staleness, deterministic=True)
    run = made_loop(
        dict(num_steps=NUM_STEPS, scheduler=policy, checkpoint_every=2),
        trainer=learner,
        replicas=replicas,
        verifiers=AtOnce(lambda request: judge(request.response_text)),
        tickets=TicketSource(problem_at),
        versions=store,
        log=log,
        journal=journal,
    )
    run.restore(control)
    logged = log.step

    def step_and_more(number, metrics, groups):
        logged(number, metrics, groups)
        on_step(number, replicas)
        if number == stop_after:
            raise KeyboardInterrupt

    log.step = step_and_more
    try:
        final = run.run()
        assert final.counts()["trained"] == NUM_STEPS * GROUPS
        return store.get(final.step), log
    except KeyboardInterrupt:
        return None, log
    finally:
        replicas.close(30.0)
        learner.close(30.0)
        journal.close()


def trained(log):
    """Tickets of each step."""
    return [[group.ticket.number for group in groups] for groups in log.groups]


def assert_equal_trees(one, other):
    one, other = jax.tree.map(np.asarray, (one, other))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def numbers_of(metrics):
    return {name: metrics[name] for name in ("loss", "grad_norm", "entropy", "engine_ratio/mean")}


def on_a_straight_line(parts, engine):
    def verify(group):
        return group.replace_rollouts(
            tuple(dataclasses.replace(r, verdict=judge(r.text)) for r in group.rollouts)
        )

    return straight_line.train(
        engine=engine,
        model=parts.policy,
        settings=parts.settings,
        weights=parts.weights,
        problem_at=problem_at,
        verify=verify,
        num_steps=NUM_STEPS,
        groups_per_step=GROUPS,
        group_size=GROUP_SIZE,
        sampling=SAMPLING,
        seed=SEED,
    )


@pytest.mark.slow
def test_staleness_zero_equals_the_straight_line(parts, tmp_path):
    expected, history = on_a_straight_line(parts, parts.engine)
    weights, log = orchestrated(parts, tmp_path, staleness=0, num_replicas=2)
    assert trained(log) == [numbers for _, numbers in history]
    assert [numbers_of(m) for m in log.metrics] == [numbers_of(m) for m, _ in history]
    assert_equal_trees(weights, expected)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", thinned([0, 1], 1))
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(parts, tmp_path, staleness):
    expected, whole = orchestrated(parts, tmp_path / "a", staleness=staleness, num_replicas=2)
    _, first = orchestrated(
        parts, tmp_path / "b", staleness=staleness, num_replicas=1, stop_after=3
    )
    weights, second = orchestrated(
        parts, tmp_path / "b", staleness=staleness, num_replicas=2, resume=True
    )
    assert trained(first)[:2] + trained(second) == trained(whole)
    assert_equal_trees(weights, expected)


def on_ray():
    return pytest.importorskip("loong_jax.rollout.ray_hosts").RayLauncher(num_cpus=0.1)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two runs that compile, and processes that start beside other tests
@pytest.mark.parametrize(
    "place",
    thinned([ProcessLauncher, pytest.param(on_ray, marks=pytest.mark.ray)], 0),
    ids=["process", "ray"],
)
def test_replicas_elsewhere_train_the_same_weights_even_when_killed(parts, tmp_path, place):
    """Same seed, same digest, whether replicas are threads, processes or Ray actors; one of them
    is killed in mid-run, and no ticket is lost.
    """
    expected, whole = orchestrated(parts, tmp_path / "a", staleness=1, num_replicas=2)
    killed = []

    def kill(step, replicas):
        if step == 2:
            pid = replicas.pids()[0]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    weights, log = orchestrated(
        parts, tmp_path / "b", staleness=1, num_replicas=2, place=place, on_step=kill
    )
    assert killed
    assert trained(log) == trained(whole)
    assert [numbers_of(m) for m in log.metrics] == [numbers_of(m) for m in whole.metrics]
    assert_equal_trees(weights, expected)
