"""The scheduler of a stage is a choice between dataclasses: JSON, command line, refusal."""

import dataclasses
import json

import pytest

from loong_jax import configs, options, recipes
from loong_jax.errors import ConfigError
from loong_jax.orchestrator import baselines, dora
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.protocols import refuse_unable
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.local_replicas import LocalReplicaGroup
from loong_jax.rollout.reuse import GroupReuse
from loong_jax.sharding import NO_MESH

POLICIES = (
    DoraPolicy(groups_per_step=3, max_ahead=0.5),
    dora.algorithm_1(groups_per_step=3, max_staleness=1, triggers=None, gate=None),
    dora.algorithm_1(groups_per_step=3, over_stale="regenerate"),
    baselines.SynchronousPolicy(groups_per_step=3),
    baselines.TailBatchingPolicy(groups_per_step=3, max_ahead=1.5),
    baselines.OneStepOffPolicy(groups_per_step=3),
    baselines.PartialRolloutPolicy(groups_per_step=3, keep_cache=True),
    baselines.DropAndReplacePolicy(groups_per_step=3, max_staleness=1),
)


def with_scheduler(policy):
    return recipes.get_recipe("quickstart")().with_stage("rl_logic", scheduler=policy)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_every_scheduler_reads_back_and_its_fields_are_options(policy):
    recipe = with_scheduler(policy)
    assert configs.from_json(json.loads(json.dumps(configs.to_json(recipe)))) == recipe
    given = options.parse_train(
        "quickstart", "text", recipe, ["--rl-logic.scheduler.groups-per-step", "7"]
    )
    changed = dataclasses.replace(policy, groups_per_step=7)
    assert given.config == with_scheduler(changed)


def test_what_waits_is_kept_ahead_and_is_read_again_is_for_the_recipe_to_say():
    recipe = with_scheduler(dora.algorithm_1(groups_per_step=3))
    arguments = ["--rl-logic.scheduler.over-stale", "regenerate"]
    arguments += ["--rl-logic.scheduler.max-ahead", "1.25", "--rl-logic.reuse.share", "0.25"]
    arguments += ["--rl-logic.replays-routing", "--engine.mantissa-bits", "7"]
    changed = options.parse_train("quickstart", "text", recipe, arguments).config
    stage = changed.stages["rl_logic"]
    assert stage.scheduler == dora.algorithm_1(
        groups_per_step=3, over_stale="regenerate", max_ahead=1.25
    )
    assert stage.reuse == GroupReuse(share=0.25)
    assert configs.from_json(json.loads(json.dumps(configs.to_json(changed)))) == changed
    assert not recipe.engine_on(NO_MESH).routing
    assert changed.engine_on(NO_MESH).routing, "what is replayed must be recorded"
    assert changed.engine_on(NO_MESH).mantissa_bits == 7
    with pytest.raises(ConfigError, match=r"reuse\.share=0\.5.*Raise max_staleness"):
        dataclasses.replace(
            stage,
            scheduler=baselines.SynchronousPolicy(groups_per_step=3),
            reuse=GroupReuse(share=0.5),
        )


def test_a_run_of_before_there_was_a_choice_goes_on(tmp_path):
    """What its config.json said of the scheduler, letter by letter."""
    recipe = with_scheduler(DoraPolicy(groups_per_step=32, max_ahead=0.4))
    configs.open_run(recipe, tmp_path)
    path = tmp_path / "config.json"
    record = json.loads(path.read_text())
    record["config"]["stages"]["rl_logic"]["scheduler"] = {
        "_kind": "orchestrator.policy.DoraPolicy",
        "groups_per_step": 32,
        "max_staleness": 2,
        "max_ahead": 0.4,
        "replicas_per_version": 1,
        "score_at_least": 8,
        "deterministic": False,
    }
    path.write_text(json.dumps(record))
    assert configs.open_run(recipe, tmp_path) == []
    with pytest.raises(ConfigError, match="scheduler"):
        configs.open_run(with_scheduler(POLICIES[1]), tmp_path)


@pytest.mark.parametrize(
    "kind", ["multi_version_policy", "orchestrator.choices.MultiVersionPolicy"]
)
def test_dora_of_two_classes_is_read(kind):
    """What config.json said while Algorithm 1 had a policy of its own."""
    usual = configs.to_json(dora.algorithm_1(groups_per_step=3))
    old = {
        "_kind": kind,
        "groups_per_step": 3,
        "max_staleness": 1,
        "over_stale": "regenerate",
        "over_provision": 0.25,
        "triggers": None,
        "gate": usual["gate"],
        "generators_score": False,
    }
    assert configs.from_json(old) == dora.algorithm_1(
        groups_per_step=3,
        max_staleness=1,
        over_stale="regenerate",
        max_ahead=1.25,
        triggers=None,
        generators_score=False,
    )


class Plain:
    """Replicas without a single optional ability."""


class Moving:
    def migrate(self, source, target, ticket_numbers): ...


def test_refuses_what_the_replicas_cannot_do_before_anything_runs():
    moving = dora.algorithm_1(groups_per_step=3)
    with pytest.raises(ConfigError, match=r"rl_stem\.scheduler=.*migrate.*DoraPolicy"):
        refuse_unable(moving, Plain, where="rl_stem.scheduler")
    refuse_unable(moving, Moving, where="rl_stem.scheduler")
    for policy in POLICIES:
        refuse_unable(policy, LocalReplicaGroup, where="scheduler")
        refuse_unable(policy, HostedReplicaGroup, where="scheduler")
