"""The devices of this process, divided among the trainer and the replicas of a recipe."""

import dataclasses
import functools
import os
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from loong_jax.errors import ConfigError
from loong_jax.models.families import ModelConfig, family_of
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.exchange import Exchange
from loong_jax.recipes import MeshSettings, ProcessReplicas, Recipe, ThreadReplicas
from loong_jax.rollout.process_hosts import visible_devices
from loong_jax.run import compiler_options
from loong_jax.sharding import NO_MESH, ShardingRules, make_mesh


class Shares(NamedTuple):
    """Rules over the devices of each; equal ones are the same devices."""

    trainer: ShardingRules
    replicas: tuple[ShardingRules, ...]  # in threads of this process; () for other processes


def shares_of(recipe: Recipe) -> Shares:
    """Divides the devices as the recipe's meshes and placement say.

    The trainer has the first devices. Replicas of a placement with devices of their own follow, one
    mesh after the other, except for elastic ones, which work where the trainer does. Shared ones
    are spread over the trainer's devices.

    Raises ConfigError where this process has too few devices.
    """
    engine, exchange = recipe.engine, exchange_of(recipe.model)
    trainer = training_rules_on(recipe.mesh, recipe.model)
    if not isinstance(engine.placement, ThreadReplicas):
        return Shares(trainer, ())
    size, own = replica_mesh(recipe), engine.placement.devices == "own"
    num_apart = engine.num_replicas - engine.num_elastic if own else 0
    needed = recipe.mesh.num_devices + num_apart * size.num_devices
    if needed > len(devices := jax.local_devices()):
        apart = f" and {num_apart} replicas {size.num_devices} each" if num_apart else ""
        raise ConfigError(
            f"mesh={recipe.mesh} takes {recipe.mesh.num_devices} devices for the trainer{apart}, "
            f"{needed} in all, and this process has {len(devices)} "
            f"({devices[0].platform}). Lower --mesh.* or --replica-mesh.* sizes, "
            "--engine.num-replicas, or give replicas the trainer's devices with "
            "--engine.placement.devices shared."
        )
    apart = [recipe.mesh.num_devices + i * size.num_devices for i in range(num_apart)]
    places = max(1, recipe.mesh.num_devices // size.num_devices)  # side by side at the trainer's
    shared = [i % places * size.num_devices for i in range(engine.num_replicas - num_apart)]
    return Shares(
        trainer,
        tuple(
            trainer if first == 0 and size == recipe.mesh else rules_on(size, first, exchange)
            for first in apart + shared
        ),
    )


def replica_mesh(recipe: Recipe) -> MeshSettings:
    """The mesh of a replica: that of the trainer where they share devices and none is given."""
    placement, given = recipe.engine.placement, recipe.replica_mesh
    shares = isinstance(placement, ThreadReplicas) and placement.devices == "shared"
    return recipe.mesh if shares and given.num_devices == 1 else given


def leave_to_replicas(recipe: Recipe) -> None:
    """Sees to it that this process takes no accelerator that replicas in other processes are to
    have. To be called before JAX looks for devices.
    """
    placement = recipe.engine.placement
    if isinstance(placement, ProcessReplicas) and placement.devices_per_process:
        own = visible_devices(0, recipe.mesh.num_devices)
        os.environ.update({name: own[name] for name in own if name != "XLA_FLAGS"})


def exchange_of(model: ModelConfig) -> Exchange | None:
    """The exchange of a model's experts; None for a model without them."""
    return model.exchange if isinstance(model, MoEConfig) else None


@functools.lru_cache(maxsize=64)
def rules_on(mesh: MeshSettings, first: int, exchange: Exchange | None = None) -> ShardingRules:
    """Rules over the devices of this process from number `first` on; equal ones for equal meshes.

    They are those of an engine with a mesh of its own, whose logits stay cut as the head is. JAX's
    first device alone needs no mesh. On TPUs programs are compiled under the options with which
    `loong plan` measures a model of that `exchange`.
    """
    if mesh.num_devices == 1 and first == 0:
        return NO_MESH
    return _compiled(ShardingRules(mesh=_mesh(mesh, first), act_vocab="tensor"), exchange)


@functools.lru_cache(maxsize=64)
def training_rules_on(mesh: MeshSettings, model: ModelConfig) -> ShardingRules:
    """Rules over the first devices for a policy that trains, and for an engine in turns with it."""
    if mesh.num_devices == 1:
        return NO_MESH
    rules = family_of(model).training_rules(model, _mesh(mesh, 0))
    return _compiled(rules, exchange_of(model))


def _mesh(mesh: MeshSettings, first: int) -> Mesh:
    return make_mesh(**dataclasses.asdict(mesh), devices=jax.local_devices()[first:])


def _compiled(rules: ShardingRules, exchange: Exchange | None) -> ShardingRules:
    assert rules.mesh is not None
    kind = rules.mesh.devices.flat[0].device_kind
    return dataclasses.replace(rules, compiler_options=compiler_options.of_device(kind, exchange))
