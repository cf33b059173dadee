"""The loop around real replicas of a fake model: what stands in for trainer, verifiers and log."""

import dataclasses
import time

from loong_jax.orchestrator.dora import Triggers
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.problems.verdict import correct, wrong
from loong_jax.rl import events as rl_events
from loong_jax.rl import rewards
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.replica import Replica
from tests.doubles.fake_model import fake_engine, fake_problem, fake_weights
from tests.doubles.fake_world import made_loop
from tests.doubles.scoring import AtOnce, scored_as_sampled

GROUP_SIZE, SEED = 2, 3
SAMPLING = SamplingSettings(max_new_tokens=24)


def slowed(engine, block_s):
    """The engine with blocks that take `block_s` longer: something to move, interrupt or lose."""
    generate = engine.generate

    def slowly(*arguments, **options):
        time.sleep(block_s)
        return generate(*arguments, **options)

    engine.generate = slowly
    return engine


def slow_engine():
    return slowed(fake_engine(decode_steps=2, slots_per_replica=6, cache_length=56), 0.02)


def in_threads(store, **settings):
    settings |= {"group_size": GROUP_SIZE, "sampling": SAMPLING, "seed": SEED}
    return LocalReplicaGroup(slow_engine(), store, **settings)


class Trainer:
    """Publishes other weights after every step, and takes no time."""

    def __init__(self, store):
        self.store = store

    def start(self, emit):
        self.emit = emit

    def score(self, groups):
        self.emit(rl_events.GroupsScored(scored_as_sampled(groups), 0.0, 0.0))

    def train(self, step, groups):
        self.emit(rl_events.StepTrained(step, {}, 0.0, 0.0))

    def publish(self, version):
        self.store.put(version, fake_weights(version))
        self.emit(rl_events.VersionPublished(version, 0.0, 0.0))

    def save(self, step, control):
        self.emit(rl_events.Saved(step, "", 0.0, 0.0))

    def close(self, timeout_s): ...


def half_right(request):
    """One of the two is right, so every group trains."""
    return correct() if int(request.key.split("/")[-1]) else wrong("value")


# Lends devices and moves groups whenever there is a reason to, and looks for one often.
RESTLESS = dict(
    groups_per_step=2,
    max_staleness=2,
    max_ahead=4.0,
    triggers=Triggers(period_s=0.2, least_gap_s=0.05),
)


class Log:
    def __init__(self):
        self.moves, self.groups = [], []

    def event(self, record):
        if record["kind"] == "migrate":
            self.moves.append(record)

    def step(self, step, metrics, groups):
        self.groups += groups

    def judged(self, group, disposition): ...


def orchestrator(replicas, store, policy, *, num_steps, trainer=None, log=None):
    """The loop around `replicas`, which follow `store`; watch it through `log`."""
    return made_loop(
        dict(num_steps=num_steps, scheduler=policy, stall_timeout_s=400.0),
        trainer=trainer or Trainer(store),
        replicas=replicas,
        verifiers=AtOnce(half_right),
        tickets=TicketSource(fake_problem),
        versions=store,
        grade=lambda group: rewards.grade(ended(group), RewardRule()),
        log=log or Log(),
    )


def ended(group):
    """One that was cut off would be masked."""
    return group.replace_rollouts(
        tuple(dataclasses.replace(r, finish_reason="stop") for r in group.rollouts)
    )


def content(group):
    return [(r.tokens.tolist(), r.engine_logprob.tolist(), r.versions) for r in group.rollouts]


ALONE = fake_engine(cache_length=56)


def written_alone(group):
    """The same ticket in a replica that has nothing else, under the same weights."""
    replica = Replica(ALONE, group_size=GROUP_SIZE, sampling=SAMPLING, seed=SEED)
    replica.assign(group.version, ALONE.load_params(fake_weights(group.version)))
    replica.submit([group.ticket])
    while True:
        found, _ = replica.step()
        if found:
            return found[0]
