"""A recipe with everything that the engine can do switched on, for a few steps of RL."""

import collections
import dataclasses
import queue
import time

import jax
import numpy as np
import pytest

from loong_jax.problems.verdict import correct, wrong
from loong_jax.recipes import EngineSettings, LocalVerifiers, get_recipe
from loong_jax.rl import batching, local_trainer, rewards, trainer
from loong_jax.rl.local_trainer import TrainerSettings
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rl.rewards import RewardRule
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.records import (
    BlockDecoded,
    GroupGenerated,
    GroupsMigrated,
    ReplicaFailed,
    SamplingSettings,
    Ticket,
)
from loong_jax.rollout.versions import VersionStore
from loong_jax.run import demonstrations
from loong_jax.run.session import Session
from tests.doubles import tiny

GROUP_SIZE, NUM_TICKETS, NUM_STEPS = 4, 5, 2
SAMPLING = SamplingSettings(max_new_tokens=24)
COUNTERS = (
    "num_preemptions",
    "num_pages_shared",
    "num_prefix_hits",
    "num_prefix_tokens",
    "num_tickets_given",
    "num_tickets_taken",
    "num_chunks_between_blocks",
    "num_drafts_proposed",
    "num_drafts_kept",
)


def recipe():
    return dataclasses.replace(
        get_recipe("quickstart")(),
        model=tiny.smallest_config(num_mtp_layers=1, num_layers=1),
        verifiers=LocalVerifiers(num_workers=1),
        engine=EngineSettings(
            slots_per_replica=8,
            cache_length=56,
            prefill_lengths=(8,),
            prefill_prompts=2,
            prefill_members=8,
            decode_steps=2,
            narrow_slots=(4,),
            chunked_prefill=True,
            speculation=True,
            pages=PageConfig(num_pages=40, page_size=4),
        ),
    )


def wait_for(events, wanted, *, timeout_s=600.0):
    """All events up to the first of which `wanted` is true, that one included."""
    seen, deadline_s = [], time.monotonic() + timeout_s
    while not seen or not wanted(seen[-1]):
        seen.append(events.get(timeout=max(0.1, deadline_s - time.monotonic())))
        assert not isinstance(seen[-1], ReplicaFailed), seen[-1]
    return seen


class Mover:
    """Takes events; asks for groups to be moved in the thread of the replica that decoded a block.

    So the request is there before the next block, however slow the test's own thread is.
    """

    def __init__(self, replicas):
        self.events, self.to_move, self._replicas = queue.Queue(), [], replicas

    def __call__(self, event):
        self.events.put(event)
        if isinstance(event, BlockDecoded) and event.active_slots > 0 and self.to_move:
            numbers, self.to_move = self.to_move, []
            self._replicas.migrate(0, 1, numbers)


def generate(replicas, mover, version, tickets):
    """Groups of all tickets: dispatched to replica 0, some moved to replica 1 while they run."""
    events = mover.events
    for replica in range(2):
        replicas.assign(replica, version)
    mover.to_move = [tickets[0].number]  # the next ones are read while another group decodes
    replicas.dispatch(0, tickets[:-1], version)
    seen = wait_for(events, lambda e: isinstance(e, GroupsMigrated))
    groups, is_posed_again = {}, False
    while True:
        groups |= {e.group.ticket.number: e.group for e in seen if isinstance(e, GroupGenerated)}
        if len(groups) == len(tickets) - 1 and not is_posed_again:
            is_posed_again = True  # now that its prompt was read in replica 0
            replicas.dispatch(0, tickets[-1:], version)
        if len(groups) == len(tickets):
            moved = [e for e in seen if isinstance(e, GroupsMigrated)]
            return [groups[number] for number in sorted(groups)], moved
        seen += wait_for(events, lambda e: isinstance(e, GroupGenerated))


def judged(group):
    """Right where the tokens sum to an even number, so that there is something to learn.

    Fresh weights hardly ever end a response, and one that is cut off would be masked.
    """
    verdicts = (correct() if r.tokens.sum() % 2 == 0 else wrong("value") for r in group.rollouts)
    return group.replace_rollouts(
        tuple(
            dataclasses.replace(r, verdict=v, finish_reason="stop")
            for r, v in zip(group.rollouts, verdicts, strict=True)
        )
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_feature_is_used_and_nothing_leaks():
    settings = TrainerSettings(
        objective=longcat_objective(group_size=GROUP_SIZE, max_response_tokens=24),
        optimizer=AdamW(schedule=WarmupConstant(peak=1e-2)),
        max_staleness=1,
        row_length=64,
        rows=8,
    )
    with Session(recipe()) as session:
        stream = demonstrations.stream_of(session.recipe, "stem", "train")
        programs = trainer.make_programs(
            session.policy, settings.objective, settings.optimizer, settings.max_staleness
        )
        state = trainer.initial_state(session.policy, settings.optimizer, session.fresh_weights)
        store = VersionStore(max_staleness=1)
        store.put(0, programs.publish(state.weights))
        replicas = LocalReplicaGroup(
            session.engine,
            store,
            num_replicas=2,
            group_size=GROUP_SIZE,
            sampling=SAMPLING,
            seed=session.recipe.seed,
        )
        mover = Mover(replicas)
        replicas.start(mover)
        num_moved, lengths = 0, collections.Counter()
        try:
            for step in range(NUM_STEPS):
                first = step * NUM_TICKETS
                problems = [stream.problem_at(first + i) for i in range(NUM_TICKETS - 1)]
                tickets = [Ticket(number=first + i, problem=p) for i, p in enumerate(problems)]
                again = Ticket(number=first + len(tickets), problem=problems[-1], issue=1)
                groups, moved = generate(replicas, mover, step, [*tickets, again])
                num_moved += sum(event.num_tokens_moved for event in moved)
                assert {group.version for group in groups} == {step}
                lengths.update(len(r.tokens) for group in groups for r in group.rollouts)
                weights = store.get(step)
                graded = [rewards.grade(judged(group), RewardRule()) for group in groups]
                kept = [
                    local_trainer.score_group(programs, weights, group, settings)
                    for group, disposition in graded
                    if disposition == "keep"
                ]
                assert kept
                for group in kept:  # what the engine says it sampled is what the trainer sees
                    for rollout in group.rollouts:
                        np.testing.assert_allclose(
                            rollout.engine_logprob, rollout.behavior_logprob, atol=1e-4
                        )
                batch = batching.make_batches(
                    kept,
                    settings.objective.signal,
                    trainer_version=step,
                    rows=settings.rows,
                    row_length=settings.row_length,
                )
                state, metrics = trainer.train_step(
                    programs, session.policy, state, batch, len(kept), SAMPLING.temperature
                )
                assert np.isfinite(metrics["loss"])
                store.put(step + 1, programs.publish(state.weights))
                store.retire(step)
        finally:
            replicas.close(120.0)
        counts = replicas.statistics()
        assert [name for name in COUNTERS if not counts[name]] == []
        assert num_moved > 0
        assert (counts["num_tokens_reprefilled"], counts["num_restarts"]) == (0, 0)
        assert (counts["num_pages_held"], counts["num_slots_held"]) == (0, 0)
        assert store.numbers() == (NUM_STEPS,)
        assert list(store.holders().values()) == [{}]
        assert max(lengths) == SAMPLING.max_new_tokens
        jax.block_until_ready(store.get(NUM_STEPS))
