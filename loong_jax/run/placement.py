"""Replicas of a recipe, where its `placement` puts them."""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.models.families import family_of
from loong_jax.recipes import ProcessReplicas, RayReplicas, Recipe, RlStage, ThreadReplicas
from loong_jax.rl import local_trainer, trainer
from loong_jax.rl.local_trainer import TrainerSettings
from loong_jax.rl.policy_model import policy_of
from loong_jax.rollout import paged_engine
from loong_jax.rollout.agentic.agent import Agent
from loong_jax.rollout.engine_config import Placement
from loong_jax.rollout.hosted_replicas import HostedReplicaGroup
from loong_jax.rollout.hosts import HostLauncher, HostSetup
from loong_jax.rollout.local_replicas import LocalReplicaGroup, ScoreGroup
from loong_jax.rollout.process_hosts import SINGLE_THREADED, ProcessLauncher
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.versions import VersionStore
from loong_jax.run import devices
from loong_jax.run.texts import RecipePrompts, agent_of, texts_of
from loong_jax.sharding import ShardingRules


def group_kind(placement: Placement) -> type:
    """The type that `start_replicas` will return."""
    return LocalReplicaGroup if isinstance(placement, ThreadReplicas) else HostedReplicaGroup


def start_replicas(
    recipe: Recipe,
    settings: RlStage,
    engines: Sequence[SlotEngine],
    versions: VersionStore,
    trainer_settings: TrainerSettings,
    agent: Agent | None = None,
) -> LocalReplicaGroup | HostedReplicaGroup:
    """A group for one stage; `engines`, one for each replica, and `agent` are this process's."""
    shapes = recipe.engine
    both: dict[str, Any] = {
        "group_size": settings.group_size,
        "sampling": settings.sampling,
        "seed": recipe.seed,
        "encode_prompt": RecipePrompts(recipe),
    }
    if isinstance(shapes.placement, ThreadReplicas):
        return LocalReplicaGroup(
            engines,
            versions,
            num_replicas=shapes.num_replicas,
            num_elastic=shapes.num_elastic,
            groups_per_replica=shapes.groups_per_replica,
            agent=agent,
            **both,
        )
    slots = shapes.slots_per_replica
    setup = HostSetup(
        **both,
        make_engine=functools.partial(make_engine, recipe),
        groups_per_replica=shapes.groups_per_replica or max(1, slots // settings.group_size),
        max_staleness=settings.scheduler.max_staleness,
        num_replicas=shapes.replicas_per_host,
        make_agent=None if agent is None else functools.partial(agent_of, recipe),
        make_scorer=functools.partial(make_scorer, recipe, trainer_settings),
    )
    num_hosts = shapes.num_replicas // shapes.replicas_per_host
    place = place_of(shapes.placement, recipe.mesh.num_devices)
    return HostedReplicaGroup(place, versions, setup, num_hosts=num_hosts)


def place_of(placement: ProcessReplicas | RayReplicas, first_device: int = 0) -> HostLauncher:
    """`first_device` is the first one that is not the trainer's."""
    match placement:
        case ProcessReplicas():
            return ProcessLauncher(
                environment=SINGLE_THREADED if placement.single_threaded else {},
                cores=placement.cores or None,
                devices_per_process=placement.devices_per_process,
                first_device=first_device,
            )
        case RayReplicas():
            from loong_jax.rollout.ray_hosts import RayLauncher

            return RayLauncher(
                num_cpus=placement.num_cpus,
                num_gpus=placement.num_gpus,
                resources={"TPU": placement.num_tpus} if placement.num_tpus else {},
                address=placement.address,
            )


def engine_on(
    recipe: Recipe, rules: ShardingRules, tokenizer: Tokenizer | None = None
) -> SlotEngine:
    """The engine of a replica under `rules`."""
    model, tokenizer = recipe.model, tokenizer or texts_of(recipe).tokenizer
    graphdef, _ = family_of(model).abstract_weights(model, rules)
    return paged_engine.engine_for(graphdef, model, tokenizer, recipe.engine_on(rules), rules)


def make_engine(recipe: Recipe) -> SlotEngine:
    """In a host: the engine that a session makes in the trainer's process."""
    return engine_on(recipe, devices.replica_rules(recipe))


def make_scorer(recipe: Recipe, settings: TrainerSettings) -> ScoreGroup:
    """In a host: the trainer's program that computes behaviour log-probabilities."""
    model, rules = recipe.model, devices.replica_rules(recipe)
    graphdef, weights = family_of(model).abstract_weights(model, rules)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, weights)
    programs = trainer.make_programs(
        policy_of(graphdef, model, 0.0, rules=rules),
        settings.objective,
        settings.optimizer,
        0,
        settings.replays_routing,
        settings.shares_prompts,
    )

    def score(weights, group):
        if rules.mesh is not None:
            weights = jax.device_put(weights, shardings)
        return local_trainer.score_group(programs, weights, group, settings)

    return score
