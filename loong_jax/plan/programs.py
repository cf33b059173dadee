"""The programs a pod runs, over abstract arrays: training step, prefill, decoding step.

They are built from the model itself. Training keeps float32 masters and both Adam moments, casts
the matrices to the model's dtype for the forward and backward pass, adds up micro-batches where
there are several, clips by the global norm and lets the controller move the biases of routers.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh
from jaxtyping import Array

from loong_jax.models import families, parameters
from loong_jax.models.families import ModelConfig
from loong_jax.models.moe import router
from loong_jax.models.moe.attention import Latent
from loong_jax.models.moe.cache import LatentCache
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.parameters import Weights
from loong_jax.plan.request import Request
from loong_jax.rl import optimizers
from loong_jax.sharding import ShardingRules, decoding_rules

_RANKS = ("q_lora_rank", "kv_lora_rank")  # of a model that has them


class Program(NamedTuple):
    """A function to compile; `kinds` names each argument for the account of memory.

    What `layouts` holds are further arguments of `jax.jit`: shardings with a layout that the
    compiler may choose, for what stays on the devices from step to step.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    kinds: tuple[str, ...]
    layouts: Mapping[str, Any] = MappingProxyType({})

    def lower(self) -> jax.stages.Lowered:
        jitted = jax.jit(self.function, donate_argnums=self.donated, **self.layouts)
        return jitted.lower(*self.arguments)


def sharding_rules(request: Request, mesh: Mesh) -> ShardingRules:
    """Where weights rest.

    Dense decoders train and are prefilled as runs do it (`run.devices`). With experts, dense
    weights rest cut over the expert axis as well as over fsdp then, as far as their widths allow,
    and are gathered over both just before use. Those of FFNs, the embedding and the head are cut
    along F and V: over 512 devices a part is whole tiles of TPU memory, and their gradients are
    scattered as they are summed, where 12 of 6144 rows are summed whole. Decoding gathers nothing:
    each step reads all weights.
    """
    return _rules_on(request, mesh).cutting()


def _rules_on(request: Request, mesh: Mesh) -> ShardingRules:
    config: Any = request.config
    ngram = getattr(config, "ngram", None)
    tables = () if ngram is None else (config.hidden_size // len(ngram.orders),)
    ngram_width = _dividing(("fsdp", "expert", "tensor"), mesh, *tables)
    if request.mode == "decode":
        rules_on = decoding_rules if request.tensor_cuts == "sequences" else ShardingRules
        return dataclasses.replace(rules_on(mesh=mesh), ngram_width=ngram_width)
    if not isinstance(config, MoEConfig):
        return ShardingRules(mesh=mesh, act_vocab="tensor")
    over, tensor = ("fsdp", "expert"), mesh.shape["tensor"]
    ranks = (getattr(config, name) for name in _RANKS if hasattr(config, name))
    return ShardingRules(
        mesh=mesh,
        ngram_width=ngram_width,
        embed=_dividing(over, mesh, config.hidden_size),
        rank=_dividing(over, mesh, *ranks),
        ffn=("tensor", *_dividing(over, mesh, config.ffn_hidden_size // tensor)),
        vocab=("tensor", *_dividing(over, mesh, config.vocab_size // tensor)),
        ffn_embed=None,
        vocab_embed=None,
        gathered_at_use=over,
    )


def _dividing(axes: tuple[str, ...], mesh: Mesh, *widths: int) -> tuple[str, ...]:
    """The last of these mesh axes that cut every width into equal parts, as many as can."""
    while axes and any(width % math.prod(mesh.shape[a] for a in axes) for width in widths):
        axes = axes[1:]
    return axes


def build(request: Request, rules: ShardingRules) -> Program:
    """The program of the request's mode, its arguments sharded by `rules`."""
    config = config_of(request)
    graphdef, weights = families.family_of(config).abstract_weights(config, rules)
    if request.mode == "train":
        return _train(request, rules, graphdef, weights)
    if request.mode == "prefill":
        return _prefill(request, rules, graphdef, weights)
    return _decode(request, rules, graphdef, weights)


def config_of(request: Request) -> ModelConfig:
    """The config of the program: where it drafts, with a head, which its model may not have."""
    if request.num_drafts:
        return dataclasses.replace(request.config, num_mtp_layers=1)
    return request.config


def _array(rules: ShardingRules, shape: tuple[int, ...], dtype: Any, *names: str | None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=rules.spec(*names))


# ---- training


class State(NamedTuple):
    """What a training step takes and returns."""

    masters: Weights  # float32
    moments: Any  # of Adam, float32
    step: Any


def _train(request: Request, rules: ShardingRules, graphdef, weights: Weights) -> Program:
    shape = request.batch, request.length
    return train_program(
        request.config, rules, graphdef, weights, shape, num_microbatches=request.num_microbatches
    )


def train_program(
    config: ModelConfig,
    rules: ShardingRules,
    graphdef: nnx.GraphDef,
    weights: Weights,
    shape: tuple[int, int],
    *,
    num_microbatches: int = 1,
) -> Program:
    """A training step of `shape[0]` sequences of `shape[1]` tokens, over abstract arrays."""
    optimizer = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=3e-4), eps=1e-16)
    dtypes = jax.tree.map(lambda w: w.dtype, weights)
    masters = jax.tree.map(
        lambda w: jax.ShapeDtypeStruct(w.shape, jnp.float32, sharding=w.sharding), weights
    )
    transformation = optimizers.transformation(
        optimizer, masters, parameters.is_controller_state, lambda _: None
    )
    moments = jax.eval_shape(transformation.init, masters)
    step = _array(rules, (), jnp.int32)
    num_rows, length = shape[0] // num_microbatches, shape[1]
    tokens = _array(
        rules, (num_microbatches, num_rows, length), jnp.int32, None, "act_batch", "act_length"
    )
    batch = (tokens, tokens)  # what is read, and what follows each token
    routed = config if isinstance(config, MoEConfig) else None

    def loss(weights, tokens, targets):
        output = nnx.merge(graphdef, nnx.State(weights))(tokens)
        return next_token_loss(output.logits, targets), output.load if routed else ()

    def train_step(state: State, batch):
        compute = jax.tree.map(lambda w, dtype: w.astype(dtype), state.masters, dtypes)
        gradient_of = jax.value_and_grad(loss, has_aux=True)

        def add(total, microbatch):
            (value, load), gradient = gradient_of(compute, *microbatch)
            return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, (gradient, value, load))

        if num_microbatches == 1:
            (value, load), gradient = gradient_of(compute, *(part[0] for part in batch))
        else:
            zeros = (
                jax.tree.map(jnp.zeros_like, state.masters),
                jnp.zeros((), jnp.float32),
                jnp.zeros((routed.num_layers, routed.num_targets), jnp.int32) if routed else (),
            )
            (gradient, value, load), _ = jax.lax.scan(
                lambda total, part: (add(total, part), None), zeros, batch
            )
        gradient = jax.tree.map(lambda g: g.astype(jnp.float32), gradient)
        gradient, norm = optimizers.clip_by_norm(gradient, optimizer.max_grad_norm)
        direction, moments = transformation.update(gradient, state.moments, state.masters)
        rate = optimizers.learning_rate(optimizer.schedule, state.step)
        masters = jax.tree.map(lambda w, d: w - rate * d, state.masters, direction)
        if routed:
            bias = masters["layers"]["router"]["bias"]
            masters["layers"]["router"]["bias"] = router.update_bias(bias, load, routed, 1e-4)
        return State(masters, moments, state.step + 1), (value, norm)

    return Program(train_step, (State(masters, moments, step), batch), (0,), ("state", "batch"))


def next_token_loss(logits: Array, targets: Array) -> Array:
    """Mean negative log-likelihood of the targets, in nats."""
    largest_BT1 = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    shifted_BTV = logits - largest_BT1
    normaliser_BT = jnp.log(jnp.sum(jnp.exp(shifted_BTV), axis=-1))
    is_target_BTV = targets[..., None] == jnp.arange(logits.shape[-1])[None, None]
    chosen_BT = jnp.sum(jnp.where(is_target_BTV, shifted_BTV, 0.0), axis=-1)
    return jnp.mean(normaliser_BT - chosen_BT)


# ---- inference


def _prefill(request: Request, rules: ShardingRules, graphdef, weights: Weights) -> Program:
    shape = (request.batch, request.length)
    tokens = _array(rules, shape, jnp.int32, "act_batch", "act_length")
    mask = _array(rules, shape, jnp.bool_, "act_batch", "act_length")

    def prefill(weights, tokens, mask):
        model = nnx.merge(graphdef, nnx.State(weights))
        output, cache = model.prefill(tokens, mask)
        # A masked sum finds the last state wherever sequences are cut; other logits are not made.
        is_last = jnp.arange(request.length) == request.length - 1
        last = jnp.sum(jnp.where(is_last[None, :, None], output.hidden, 0), axis=1, keepdims=True)
        return _best(model.logits_of(last))[:, 0], cache

    return Program(prefill, (weights, tokens, mask), (), ("weights", "batch", "batch"))


def _decode(request: Request, rules: ShardingRules, graphdef, weights: Weights) -> Program:
    family = families.family_of(request.config)
    shape = (request.batch, 1 + request.num_drafts)
    tokens = _array(rules, shape, jnp.int32, "act_batch", None)
    positions = _array(rules, (request.batch,), jnp.int32, "act_batch")
    make_cache = functools.partial(family.make_cache, request.config, request.batch, request.length)
    entries, axes = jax.eval_shape(make_cache), family.cache_axes
    cache = jax.tree.map(lambda a: _array(rules, a.shape, a.dtype, *axes), entries)
    if request.num_drafts:  # with a head that has one attention
        of_head = (_array(rules, a.shape[2:], a.dtype, *axes[2:]) for a in entries)
        cache = cache, Latent._make(of_head)
    history = None
    if num_before := family.num_before(request.config):
        history = _array(rules, (request.batch, num_before), jnp.int32, "act_batch", None)

    def decode(weights, cache, tokens, positions, history):
        model = nnx.merge(graphdef, nnx.State(weights))

        def step(carry, _):
            tokens, positions, cache, history = carry
            before = history
            if history is not None:
                history = jnp.concatenate([history[:, 1:], tokens[:, :1]], axis=1)
            if request.num_drafts:
                tokens, cache = _draft(model, tokens, positions, *cache, history=before)
            else:
                known = {} if before is None else {"history": before}
                logits, _, cache = model.extend(tokens, positions, cache, **known)
                tokens = _best(logits)
            return (tokens, positions + 1, cache, history), None

        carry = tokens, positions, cache, history
        if request.num_steps == 1:
            carry, _ = step(carry, None)
        else:
            carry, _ = jax.lax.scan(step, carry, length=request.num_steps)
        return carry[0], carry[2]

    # In a layout of the caller's the loop over layers would begin and end by copying both.
    free_weights, free_cache = (
        jax.tree.map(lambda a: Format(Layout.AUTO, a.sharding), tree) for tree in (weights, cache)
    )
    return Program(
        decode,
        (weights, cache, tokens, positions, history),
        (1,),
        ("weights", "cache", "batch", "batch", "batch"),
        {
            "in_shardings": (free_weights, free_cache, None, None, None),
            "out_shardings": (None, free_cache),
        },
    )


def _draft(
    model: Any,
    tokens: Array,
    positions: Array,
    cache: LatentCache,
    head: Latent,
    history: Array | None,
):
    """The last of the tokens that the model makes of these, as if it kept all, and new drafts.

    The head reads all rows for the first draft, as `rollout.speculation` does, and one row for
    each further one.
    """
    logits, hidden, cache = model.extend(tokens, positions, cache, None, history)
    rows, places = _best(logits), positions
    made = [rows[:, -1:]]
    while len(made) < tokens.shape[1]:
        logits, head = model.draft_extend(hidden, rows, places, head)
        rows, hidden = _best(logits)[:, -1:], hidden[:, -1:]
        places = positions + tokens.shape[1] + len(made) - 1
        made.append(rows)
    return jnp.concatenate(made, axis=1), (cache, head)


def _best(logits: Array) -> Array:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


# ---- accounts


def bytes_by_kind(program: Program) -> dict[str, int]:
    """Bytes on one device of the arguments, without padding; a train state splits in two."""
    total: dict[str, int] = {}
    for kind, argument in zip(program.kinds, program.arguments, strict=True):
        parts = {kind: argument}
        if isinstance(argument, State):
            parts = {"masters": argument.masters, "optimizer": (argument.moments, argument.step)}
        for name, part in parts.items():
            total[name] = total.get(name, 0) + sum(map(_device_bytes, jax.tree.leaves(part)))
    return total


def shardings(program: Program) -> dict[str, str]:
    """How each argument lies on the mesh: `weights.head` -> `fsdp+expert, tensor`."""
    named = jax.tree_util.tree_leaves_with_path(program.arguments)
    found = {}
    for path, leaf in named:
        kind = program.kinds[path[0].idx]
        name = jax.tree_util.keystr(path[1:], simple=True, separator=".")
        spec = () if leaf.sharding is None else leaf.sharding.spec
        found[f"{kind}.{name}".rstrip(".")] = ", ".join(map(_show_axes, spec))
    return found


def _show_axes(axes: Any) -> str:
    names = axes if isinstance(axes, tuple) else (axes,)
    return "+".join(str(name) for name in names if name is not None) or "-"


def _device_bytes(array: jax.ShapeDtypeStruct) -> int:
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    size = jnp.dtype(array.dtype).itemsize
    for dimension in shape:
        size *= dimension
    return size
