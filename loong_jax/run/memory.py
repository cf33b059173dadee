"""The memory that a recipe needs on every device, as a table, before anything is allocated.

Weights, moments, versions and caches are counted over the shapes and shardings that the run makes.
What programs need besides, activations and logits, is estimated.
"""

import collections
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.table import Table

from loong_jax import process
from loong_jax.errors import ConfigError
from loong_jax.models.families import family_of
from loong_jax.recipes import Recipe, RlStage, SftStage
from loong_jax.rl import batching, lora, sft, trainer
from loong_jax.rl.logprobs import CHUNK_LOGITS
from loong_jax.rl.policy_model import PolicyModel, policy_of
from loong_jax.rollout.speculation import DraftedCache
from loong_jax.run import devices, placement
from loong_jax.sharding import NO_MESH, ShardingRules

GB = 1e9
_ARENA_BYTES = 2**26  # of glibc's malloc, for any thread but the main one
_GRADIENTS = "gradients"


class Need(NamedTuple):
    """Bytes of one kind on a device."""

    what: str
    trainer: float
    replica: float  # on a device that replicas have to themselves; 0 where there is none
    lower: str  # which setting makes it less
    is_estimate: bool = False
    is_on_host: bool = False  # bytes in the memory of this process, and none on a device


def keep_freed(recipe: Recipe) -> None:
    """Where JAX will compute on CPU, has this process keep what programs free, in one arena for a
    model that is larger than an arena of a thread. To be called before JAX starts its threads.
    """
    if process.computes_on_cpu():
        weights = family_of(recipe.model).abstract_weights(recipe.model)[1]
        process.keep_freed_memory(one_arena=_bytes(weights, NO_MESH) > _ARENA_BYTES)


def needs(recipe: Recipe, name: str) -> list[Need]:
    """The needs of stage `name`, which trains. Raises ConfigError as `devices.shares_of`."""
    return list(_needs(recipe, recipe.stages[name]))


def compiled_needs(recipe: Recipe, name: str) -> list[Need]:
    """The needs of a stage, by its compiled programs in place of estimates.

    A step's program is compiled for micro-batches whose every token is predicted, the replicas' for
    blocks of all slots.
    """
    stage: Any = recipe.stages[name]
    counted = [need for need in needs(recipe, name) if not need.is_estimate]
    if isinstance(stage, SftStage):  # whose step makes gradients within
        counted = [need for need in counted if need.what != _GRADIENTS]
    return counted + list(_compiled(recipe, stage))


def total(found: list[Need]) -> float:
    """Bytes on the fullest device."""
    return max(_sums(found))


def _sums(found: list[Need]) -> tuple[float, float]:
    there = [need for need in found if not need.is_on_host]
    return sum(need.trainer for need in there), sum(need.replica for need in there)


class _Trained(NamedTuple):
    """The trained and published state of a stage, as shapes with their shardings."""

    policy: PolicyModel
    weights: Any
    state: trainer.TrainState
    frozen: Any  # () for nothing
    published: Any


def _trained(recipe: Recipe, stage: Any, rules: ShardingRules) -> _Trained:
    model = recipe.model
    graphdef, weights = family_of(model).abstract_weights(model, rules)
    policy, trained, frozen = policy_of(graphdef, model, recipe.bias, rules=rules), weights, ()
    with rules.scope():
        if stage.lora is not None:
            frozen = weights
            make = functools.partial(lora.initial_adapters, policy, stage.lora)
            trained = jax.eval_shape(make, frozen, jax.random.key(0))
            policy = lora.lora_policy(policy, stage.lora)
        state = trainer.abstract_state(policy, stage.optimizer, trained)
        return _Trained(policy, weights, state, frozen, jax.eval_shape(policy.published, weights))


def _needs(recipe: Recipe, stage: Any) -> Iterator[Need]:
    shares = devices.shares_of(recipe)
    rules = shares.trainer
    _, weights, state, frozen, published = _trained(recipe, stage, rules)
    masters = _bytes(state.weights, rules)
    yield Need("weights that train, float32", masters, 0, "--mesh.fsdp, --lora")
    moments, is_on_host = _bytes(state.optimizer_state, rules), stage.optimizer.offload_moments
    less = "--STAGE.optimizer.moments-dtype"
    if is_on_host:
        moments *= 1 if rules.mesh is None else len(rules.mesh.local_devices)
    else:
        less = f"--mesh.fsdp, {less}, --STAGE.optimizer.offload-moments"
    yield Need("moments of the optimizer", moments, 0, less, is_on_host=is_on_host)
    yield Need(_GRADIENTS, masters, 0, "--mesh.fsdp, --lora")
    if frozen:
        yield Need("frozen weights", _bytes(frozen, rules), 0, "--dtype bfloat16, --mesh.fsdp")
    if isinstance(stage, RlStage):
        yield from _of_rl(recipe, stage, shares, weights, published)
    yield from _estimated(recipe, stage, rules)


def _of_rl(
    recipe: Recipe, stage: RlStage, shares: devices.Shares, weights: Any, published: Any
) -> Iterator[Need]:
    rules, staleness = shares.trainer, stage.scheduler.max_staleness
    if stage.objective.kl is not None:
        yield Need("reference weights", _bytes(weights, rules), 0, "an objective without penalty")
    version, count = _bytes(published, rules), staleness + 2  # serving, and one staged
    apart = [other for other in shares.replicas if not _overlap(other, rules)]
    here = [other for other in shares.replicas if other not in apart]

    def loaded(other: ShardingRules) -> float:
        return _bytes(_loaded(recipe, other, published), other)

    less = "--STAGE.scheduler.max-staleness, --dtype bfloat16"
    versions = count * version, _on_fullest(apart, loaded)
    yield Need(f"{count} versions of the policy", *versions, less)
    copies = [other for other in here if other != rules or recipe.engine.mantissa_bits]
    if copied := _on_fullest(copies, loaded):
        yield Need("weights as replicas load them", copied, 0, "--replica-mesh as --mesh")
    less = "--engine.slots-per-replica, --engine.cache-length, --engine.pages, "
    cache = functools.partial(_cache_bytes, recipe)
    caches = _on_fullest(here, cache), _on_fullest(apart, cache)
    yield Need("caches of replicas", *caches, f"{less}--engine.num-replicas")


def _compiled(recipe: Recipe, stage: SftStage | RlStage) -> Iterator[Need]:
    shares = devices.shares_of(recipe)
    rules = shares.trainer
    made = _trained(recipe, stage, rules)
    state, frozen = made.state, trainer.on_mesh(rules, made.frozen)
    shape = stage.rows, stage.row_length
    if isinstance(stage, RlStage):
        programs = trainer.make_programs(
            made.policy,
            stage.objective,
            stage.optimizer,
            stage.scheduler.max_staleness,
            stage.replays_routing,
            stage.shares_prompts,
        )
        model: Any = recipe.model
        batch = batching.shapes(
            programs.layout,
            rules,
            *shape,
            has_behavior=not stage.scores_in_step,
            has_reference=stage.objective.kl is not None,
            num_choices=(model.num_layers, model.num_chosen) if stage.replays_routing else None,
        )
        published = trainer.on_mesh(rules, made.published)
        called = trainer.calls(programs, made.policy, state, batch, published, frozen)
        space = max(_space(called[name].lower()) for name in ("accumulate", "update"))
        less = "--STAGE.rows"
    else:
        step = sft.make_train_step(made.policy, stage.optimizer)
        micro_batch = sft.batch_shapes(made.policy, _rows_at_once(stage, rules), stage.row_length)
        count = sft.num_micro_batches(stage.rows, stage.micro_rows)
        space = _space(step.lower(state, (micro_batch,) * count, frozen))
        less = "--STAGE.micro-rows"
    less += ", --STAGE.row-length, --model.remat layer, --mesh.*"
    yield Need("working space of a step", space, 0, less)
    if not isinstance(stage, RlStage):
        return
    here, apart = [0.0], [0.0]
    for other in set(shares.replicas):
        engine = placement.engine_on(recipe, other)
        block = engine.lower_block(_loaded(recipe, other, made.published))
        (here if _overlap(other, rules) else apart).append(_space(block))
    less = "--engine.slots-per-replica, --engine.cache-length"
    yield Need("working space of a block of decoding", max(here), max(apart), less)


def _rows_at_once(stage: SftStage | RlStage, rules: ShardingRules) -> int:
    if isinstance(stage, RlStage):
        return stage.rows
    parts = rules.parts("act_batch")
    count = sft.num_micro_batches(stage.rows, stage.micro_rows)
    return parts * -(-stage.rows // (parts * count))


def _space(lowered: Any) -> float:
    return float(lowered.compile().memory_analysis().temp_size_in_bytes)


def _estimated(recipe: Recipe, stage: SftStage | RlStage, rules: ShardingRules) -> Iterator[Need]:
    model = recipe.model
    width = jnp.dtype(model.dtype).itemsize
    parts = rules.parts("act_batch") * rules.parts("act_length")
    tokens = _rows_at_once(stage, rules) * stage.row_length / parts
    # of every layer what going back needs: states, heads, both sides of the feed-forward net
    heads = model.num_heads * getattr(model, "head_dim", getattr(model, "v_head_dim", 0))
    inner = 6 * model.hidden_size + (4 * heads + 4 * model.ffn_hidden_size) / rules.size("tensor")
    layers = model.num_layers if getattr(model, "remat", "off") == "off" else 1
    kept = (layers * inner + model.num_layers * model.hidden_size) * tokens * width
    yield Need("activations of a micro-batch", kept, 0, "--STAGE.rows, --model.remat layer", True)
    words = model.vocab_size / rules.parts("act_vocab")
    listed = min(tokens, CHUNK_LOGITS / model.vocab_size)
    yield Need("logits, a chunk at a time", 3 * 4 * listed * words, 0, "--mesh.tensor", True)


def _cache_bytes(recipe: Recipe, rules: ShardingRules) -> float:
    shapes, family = recipe.engine_on(rules), family_of(recipe.model)
    make: Any = family.make_cache
    if shapes.speculation and family.drafts(recipe.model):
        make = DraftedCache.zeros
    size = shapes.slots_per_replica, shapes.cache_length
    if shapes.pages is not None:
        size = shapes.pages.num_pages, shapes.pages.page_size
    whole = _bytes(jax.eval_shape(lambda: make(recipe.model, *size)), NO_MESH)
    return whole / math.prod(rules.parts(axis) for axis in family.cache_axes if axis)


def _loaded(recipe: Recipe, rules: ShardingRules, like: Any) -> Any:
    """The weights of a replica under `rules`, as shapes in the dtypes of `like`."""
    sharded = family_of(recipe.model).abstract_weights(recipe.model, rules)[1]
    return jax.tree.map(
        lambda a, b: jax.ShapeDtypeStruct(a.shape, b.dtype, sharding=a.sharding), sharded, like
    )


def _devices(rules: ShardingRules) -> set[Any]:  # of jax.Device
    return {jax.local_devices()[0]} if rules.mesh is None else set(rules.mesh.devices.flat)


def _overlap(one: ShardingRules, other: ShardingRules) -> bool:
    return bool(_devices(one) & _devices(other))


def _on_fullest(replicas: list[ShardingRules], size: Callable[[ShardingRules], float]) -> float:
    """Bytes on the fullest device, of replicas that each hold `size` on every one of theirs."""
    held: dict[Any, float] = collections.defaultdict(float)
    for rules in replicas:
        for device in _devices(rules):
            held[device] += size(rules)
    return max(held.values(), default=0.0)


def _bytes(tree: Any, rules: ShardingRules) -> float:
    """On one device, of arrays that lie as their types say."""
    total = 0.0
    for leaf in jax.tree.leaves(tree):
        spec = getattr(getattr(leaf, "sharding", None), "spec", ())
        axes = [(part,) if isinstance(part, str) else part or () for part in spec]
        parts = math.prod(rules.size(axis) for part in axes for axis in part)
        total += math.prod(leaf.shape) * leaf.dtype.itemsize / parts
    return total


def table(name: str, found: list[Need], limit: float | None) -> Table:
    """A table of the needs of stage `name`, and of a device's memory in bytes, where known."""
    unit, size = ("GB", 1e9) if total(found) >= 1e9 else ("MB", 1e6)
    shown = Table(title=f"{name}: memory of a device, in {unit}", title_justify="left")
    has_replicas = any(need.replica for need in found)
    shown.add_column("what", overflow="fold")
    for side in ("trainer", "replica")[: 1 + has_replicas]:
        shown.add_column(side, justify="right", no_wrap=True)
    shown.add_column("less of it by", overflow="fold")

    def add(what: str, *sides: float, lower: str) -> None:
        shown.add_row(what, *(f"{side / size:.2f}" for side in sides[: 1 + has_replicas]), lower)

    on_device = [need for need in found if not need.is_on_host]
    for need in on_device:
        about = ", about" if need.is_estimate else ""
        add(need.what + about, need.trainer, need.replica, lower=need.lower)
    shown.add_section()
    add("together", *_sums(found), lower="" if limit is None else f"of {limit / size:.2f} there")
    for need in found:
        if need.is_on_host:
            shown.add_section()
            add(f"{need.what}, in host memory", need.trainer, 0.0, lower=need.lower)
    return shown


def limit_of_devices() -> float | None:
    """Bytes that a program may allocate on a device; None where JAX does not say, as on CPU."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit")


def refuse_too_much(name: str, found: list[Need], limit: float | None) -> None:
    """ConfigError where the counted part alone does not fit a device."""
    counted = [need for need in found if not (need.is_estimate or need.is_on_host)]
    if limit is not None and total(counted) > limit:
        largest = max(counted, key=lambda need: max(need.trainer, need.replica))
        raise ConfigError(
            f"{name} needs {total(counted) / GB:.1f} GB on a device before any activation, and "
            f"there are {limit / GB:.1f} GB. The largest part is {largest.what}; less of it by "
            f"{largest.lower}."
        )
