"""The devices of this process, divided among the trainer and the replicas of a recipe; and options
of the TPU compiler under which what travels between devices runs beside products.

Without these the collectives of an exchange are synchronous, whatever the order in which the
program is written; ragged ones alone are asynchronous by themselves, on tpu7x and, from libtpu
0.0.50 on, on v5p. Names are those of libtpu; an unknown one is an error of the compiler.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from loong_jax import recipes
from loong_jax.errors import ConfigError
from loong_jax.models.families import ModelConfig, family_of
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.exchange import Exchange, GatherExchange, PaddedExchange, RaggedExchange
from loong_jax.recipes import MeshSettings, ProcessReplicas, Recipe, ThreadReplicas
from loong_jax.rollout.process_hosts import visible_devices
from loong_jax.sharding import NO_MESH, CompilerOptions, ShardingRules, make_mesh

# The scheduler starts a collective as late as its own estimate of the links allows: with libtpu
# 0.0.42 on v5p one of the three products of an FFN ran inside the window of 258 MB over 32 devices.
# Told that products take a quarter of their time, it starts the collective before all three.
# No other value was tried, and v6e and tpu7x were not compiled without it.
_START_EARLY = {"xla_lhs_output_fusion_latency_multiplier": 0.25}

_SPARSECORE = "xla_tpu_enable_sparse_core_collective_offload_"
# Gathers and scatters of weights over a few devices: a step of Qwen2.5-7B on eight v6e chips takes
# 0.28 s with these and 0.36 s without. v5e has no SparseCore.
_BY_SPARSECORE = {f"{_SPARSECORE}all_gather": True, f"{_SPARSECORE}reduce_scatter": True}
# v6e waits for a ragged exchange unless its SparseCores carry it. In decoding nothing ran beside it
# even then, and a step took 1 % more time.
_RAGGED_BESIDE_WORK = {f"{_SPARSECORE}ragged_all_to_all": True}

# Of dense weights.
_DENSE = {
    # Those that rest on more than 64 devices are gathered by an all-reduce, and v5p and v6e wait
    # for it unless their SparseCores carry it; tpu7x does so by itself.
    "v5p": {f"{_SPARSECORE}all_reduce": True},
    "v6e": {f"{_SPARSECORE}all_reduce": True},
    "tpu7x": {
        # It gathers them as such when told to, which moves half the bytes. v5p does so only where
        # its SparseCores carry gathers, and then waits for each of them.
        "xla_tpu_prefer_async_allgather_to_allreduce": True,
        # Sums over devices are put together up to this size, so a large gradient need not wait for
        # the last ones of its layer: the whole model's step takes 2.502 s on 512 devices and
        # 2.518 s without this.
        "xla_jf_crs_combiner_threshold_in_bytes": 2**25,
    },
}

# tpu7x multiplies from tiles of 16 rows, while arguments come in tiles of 8: without this a call
# of decoding begins by copying all weights, and keeps both (39.5 GB of dense ones, whole).
_TILES_OF_ARGUMENTS = {"xla_tpu_control_large_2nd_minor_layout_for_x16": False}


CHIPS = {  # `device_kind`, as JAX has it
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}


def of_device(kind: str, exchange: Exchange | None) -> CompilerOptions:
    """The compiler options of `ShardingRules`, by `device_kind`; none for other devices."""
    if (chip := CHIPS.get(kind)) is None:
        return CompilerOptions()
    both = (compiler_options(chip, exchange, decodes=decodes) for decodes in (False, True))
    return CompilerOptions(*(tuple(options.items()) for options in both))


def compiler_options(
    topology: str, exchange: Exchange | None, *, decodes: bool = False
) -> Mapping[str, bool | float]:
    """The compiler options for `jax.jit(...).lower(...).compile(compiler_options=...)`.

    `topology` begins with the name of the chip: `v5p:4x4x4`. A model without experts has no
    `exchange`. `decodes` is said of programs that read the same weights step after step, which need
    none for dense weights or a ragged exchange: those of docs/measurements/plan.md are without.
    """
    chip = topology.split(":")[0]
    resting = _TILES_OF_ARGUMENTS if decodes and chip == "tpu7x" else {}
    dense = _DENSE.get(chip, {})
    match exchange:
        case PaddedExchange():
            return resting | {"xla_tpu_enable_async_all_to_all": True} | _START_EARLY | dense
        case GatherExchange() if chip != "v5e":
            return resting | _BY_SPARSECORE
        case RaggedExchange() if not decodes:
            by_chip = {"tpu7x": {}, "v6e": _START_EARLY | _RAGGED_BESIDE_WORK}
            return by_chip.get(chip, _START_EARLY) | dense
        case None if not decodes:
            return dense | (_BY_SPARSECORE if chip == "v6e" else {})
    return resting


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
    size = replica_mesh(recipe)
    if not isinstance(engine.placement, ThreadReplicas):
        given = getattr(engine.placement, "devices_per_process", 0)
        if 0 < given < size.num_devices:
            raise ConfigError(
                f"replica_mesh={size} takes {size.num_devices} devices, and a process of "
                f"placement={engine.placement} sees {given}. Raise devices_per_process, or lower "
                "--replica-mesh.* sizes."
            )
        return Shares(trainer, ())
    own = engine.placement.devices == "own"
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
    rules = {first: rules_on(size, first, exchange) for first in apart + shared}
    if size == recipe.mesh:
        rules[0] = trainer
    return Shares(trainer, tuple(rules[first] for first in apart + shared))


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


def replica_rules(recipe: Recipe) -> ShardingRules:
    """In a process of its own: the rules of a replica."""
    return serving_rules(replica_mesh(recipe), recipe.model)


def serving_rules(mesh: MeshSettings, model: ModelConfig) -> ShardingRules:
    """`rules_on` the first devices; ConfigError where these do not divide the model."""
    recipes.refuse_misfit(model, mesh)
    return rules_on(mesh, 0, exchange_of(model))


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
    return dataclasses.replace(rules, compiler_options=of_device(kind, exchange))
