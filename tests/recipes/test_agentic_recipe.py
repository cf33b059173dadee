"""The agentic recipe, made small: calls, answers and masks on the whole way to the trainer; and
the same with partial rollouts, whose responses go on under new weights, with elastic replicas, and
with replicas in other processes, which score too.
"""

import dataclasses
import json
import time

import numpy as np
import pytest

from loong_jax.orchestrator.baselines import PartialRolloutPolicy
from loong_jax.orchestrator.dora import DoraPolicy, algorithm_1
from loong_jax.recipes import EngineSettings, LocalVerifiers, ProcessReplicas, get_recipe
from loong_jax.rl import local_trainer
from loong_jax.rl.collapse import CollapseError, CollapseLimits, CollapseRules
from loong_jax.rl.objectives import grpo_objective, longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.records import BlockDecoded
from loong_jax.rollout.replica import Replica
from loong_jax.run import run
from tests.doubles import tiny

GROUP_SIZE = 4


def recipe(scheduler, num_steps, *, learns_from_all=True, **engine):
    """A cold start that only just teaches to call; what it teaches best is the form.

    Groups of equal rewards count too: which of them differ is luck, with so young a policy.
    """
    full = get_recipe("agentic-mini")()
    small = dataclasses.replace(
        full,
        model=tiny.smallest_config(),
        verifiers=LocalVerifiers(num_workers=1),
        engine=EngineSettings(
            slots_per_replica=8,
            cache_length=144,
            prefill_lengths=(16,),
            prefill_prompts=4,
            prefill_members=8,
            chunked_prefill=True,
            pages=PageConfig(num_pages=60, page_size=8),
            **engine,
        ),
        evaluation=dataclasses.replace(full.evaluation, num_problems=4),
    )
    return small.with_stage(
        "sft",
        num_steps=200,
        optimizer=AdamW(schedule=WarmupConstant(peak=1e-2, warmup_steps=8)),
        rows=4,
    ).with_stage(
        "rl",
        num_steps=num_steps,
        scheduler=scheduler,
        objective=longcat_objective(group_size=GROUP_SIZE, max_response_tokens=128),
        group_size=GROUP_SIZE,
        rows=4,
        learns_from_all=learns_from_all,
    )


DORA = DoraPolicy(groups_per_step=2, max_staleness=1)


@pytest.fixture(scope="module")
def cold_start(tmp_path_factory):
    """A run whose cold start the others go on from."""
    directory = tmp_path_factory.mktemp("cold-start")
    run.train(recipe(DORA, num_steps=2), directory, only="sft")
    return directory


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_turns_with_tools_reach_the_trainer(tmp_path, cold_start):
    run.train(recipe(DORA, num_steps=2), tmp_path, only="rl", source=cold_start)
    done = json.loads((tmp_path / "stages" / "rl" / "done.json").read_text())
    assert done["steps"] == 2
    assert done["tickets"]["trained"] == 4
    counts = done["rollout"]
    wanted = ("slots_paused", "turns_of_tools", "calls", "tokens_of_tools", "tokens_read_on")
    assert {name for name in wanted if not counts[f"num_{name}"]} == set()
    assert counts["num_calls_left_behind"] == 0


@pytest.mark.release
@pytest.mark.timeout(1500)
def test_replicas_take_turns_with_the_trainer_in_a_recipe(tmp_path, cold_start):
    policy = algorithm_1(groups_per_step=2, max_staleness=1, max_ahead=3.0)
    run.train(recipe(policy, num_steps=3, num_elastic=1), tmp_path, only="rl", source=cold_start)
    done = json.loads((tmp_path / "stages" / "rl" / "done.json").read_text())
    assert done["tickets"]["trained"] == 6
    assert done["rollout"]["num_rests"] > 0
    assert done["rollout"]["num_restarts"] == 0


@pytest.mark.release
@pytest.mark.timeout(900)
def test_replicas_in_other_processes_write_and_score_in_a_recipe(tmp_path, cold_start):
    placement = ProcessReplicas(single_threaded=True)
    policy = algorithm_1(groups_per_step=2, max_staleness=1, max_ahead=3.0)
    chosen = recipe(policy, num_steps=3, num_replicas=2, placement=placement)
    run.train(chosen, tmp_path, only="rl", source=cold_start)
    done = json.loads((tmp_path / "stages" / "rl" / "done.json").read_text())
    assert done["tickets"]["trained"] == 6
    assert done["rollout"]["num_calls"] > 0
    assert done["scored"]["trainer"] + done["scored"]["generators"] >= 6
    assert done["scored"]["generators"] > 0


@pytest.mark.release
@pytest.mark.timeout(1500)
def test_a_run_that_collapses_stops_and_goes_on_when_its_rule_is_moved(tmp_path, cold_start):
    """With an objective that has a penalty, so that the reference reaches the trainer too."""

    def watched(collapse):
        made = recipe(DORA, num_steps=3, learns_from_all=False)
        objective = grpo_objective(group_size=GROUP_SIZE, beta=0.1)
        return made.with_stage("rl", objective=objective, collapse=collapse)

    longer_than_any = CollapseRules(length=CollapseLimits(low=1000.0, window=2))
    with pytest.raises(CollapseError, match=r"step 2: completions/mean_length.*collapse\.length"):
        run.train(watched(longer_than_any), tmp_path, only="rl", source=cold_start)
    run.train(watched(CollapseRules()), tmp_path, only="rl", source=cold_start)
    lines = (tmp_path / "stages" / "rl" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [record["step"] for record in steps] == [1, 2, 3]
    assert steps[0]["kl/mean"] == pytest.approx(0, abs=1e-6)  # the reference is where it starts
    assert steps[2]["kl/mean"] > 0


@pytest.mark.release
@pytest.mark.timeout(1500)
def test_partial_rollouts_train_in_a_recipe(tmp_path, cold_start, monkeypatch):
    scored = []
    score_group = local_trainer.score_group

    def noted(*arguments):
        scored.append(score_group(*arguments))
        return scored[-1]

    steps = {}  # training step: when it was commanded

    def waits_for_weights(replica):
        """What is under way when a training step begins goes on under the weights it makes."""
        now_s = time.monotonic()
        newest = max(steps, default=0)
        goes_on = newest < made.stages["rl"].num_steps and replica.active_slots
        if goes_on and replica.version < newest and now_s < steps[newest] + 30:
            time.sleep(0.02)
            return [], BlockDecoded(0, 0, now_s, now_s, 0, 0, 0)
        return decode(replica)

    def train(trainer, number, groups):
        steps[number] = time.monotonic()
        start_training(trainer, number, groups)

    decode, start_training = Replica.step, local_trainer.LocalTrainer.train
    monkeypatch.setattr(local_trainer, "score_group", noted)
    monkeypatch.setattr(Replica, "step", waits_for_weights)
    monkeypatch.setattr(local_trainer.LocalTrainer, "train", train)
    policy = PartialRolloutPolicy(groups_per_step=2, max_staleness=2, max_ahead=3.0)
    made = recipe(policy, num_steps=4)
    run.train(made, tmp_path, only="rl", source=cold_start)
    done = json.loads((tmp_path / "stages" / "rl" / "done.json").read_text())
    assert done["tickets"]["trained"] == 8
    assert done["rollout"]["num_tokens_reprefilled"] > 0
    rollouts = [r for group in scored for r in group.rollouts]
    mixed = [r for r in rollouts if len(r.versions) > 1]
    assert mixed
    for rollout in mixed:
        numbers = [version for _, version in rollout.versions]
        assert numbers == sorted(set(numbers))
        np.testing.assert_array_equal(rollout.behavior_logprob, rollout.engine_logprob)
    pure = [r for r in rollouts if len(r.versions) == 1]
    assert any((r.behavior_logprob != r.engine_logprob).any() for r in pure)  # another program
