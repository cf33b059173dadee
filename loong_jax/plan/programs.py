"""The programs a pod runs, over abstract arrays: those of a trainer, prefill, a decoding step.

Training is what `rl.trainer` compiles for a run: scoring, the gradients of a micro-batch added to
those before it, and the update, each a program of its own.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh
from jaxtyping import Array

from loong_jax.models import families
from loong_jax.models.families import ModelConfig
from loong_jax.models.moe.attention import Latent, LatentCache
from loong_jax.models.parameters import Weights
from loong_jax.plan.request import Request
from loong_jax.rl import batching, objectives, offload, optimizers, policy_model, trainer
from loong_jax.rl.optimizers import Optimizer
from loong_jax.rl.policy_model import PolicyModel
from loong_jax.rl.trainer import TrainerPrograms, TrainState
from loong_jax.sharding import ShardingRules, decoding_rules


class Program(NamedTuple):
    """A compiled function and the shapes of its arguments, each of a kind for its `account`.

    `resident` are bytes by kind that lie on a device beside it, `runs` how often a step calls it.
    """

    function: Any
    arguments: tuple[Any, ...]
    kinds: tuple[str, ...]
    resident: Mapping[str, int] = MappingProxyType({})
    runs: int = 1

    def lower(self) -> jax.stages.Lowered:
        return self.function.lower(*self.arguments)

    def account(self) -> dict[str, Any]:
        """Fields of `compiled.Compiled` that are known before it is compiled."""
        shardings = {}  # `weights.head` -> `fsdp+expert, tensor`
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.arguments):
            name = jax.tree_util.keystr(path[1:], simple=True, separator=".")
            spec = () if leaf.sharding is None else leaf.sharding.spec
            shown = ", ".join(map(_show_axes, spec))
            shardings[f"{self.kinds[path[0].idx]}.{name}".rstrip(".")] = shown
        return {
            "runs": self.runs,
            "resident": dict(self.resident),
            "arguments": bytes_by_kind(self),
            "host_bytes": host_bytes(self),
            "shardings": shardings,
        }


def sharding_rules(request: Request, mesh: Mesh) -> ShardingRules:
    """The sharding of weights at rest, and its rules: those of runs (`Family.training_rules`).

    Decoding gathers nothing: each step reads all weights.
    """
    config: Any = request.config
    rules = families.family_of(config).training_rules(config, mesh)
    if request.mode == "decode":
        rules_on = decoding_rules if request.tensor_cuts == "sequences" else ShardingRules
        rules = dataclasses.replace(rules_on(mesh=mesh), ngram_width=rules.ngram_width)
    return rules.cutting()


def build(request: Request, rules: ShardingRules) -> dict[str, Program]:
    """The programs of the request's mode by name, their arguments sharded by `rules`."""
    config = config_of(request)
    graphdef, weights = families.family_of(config).abstract_weights(config, rules)
    if request.mode == "train":
        shape = request.batch // request.num_microbatches, request.length
        settings = request.num_microbatches, request.offload_moments
        return train_programs(config, rules, graphdef, weights, shape, *settings)
    made = (_prefill if request.mode == "prefill" else _decode)(request, rules, graphdef, weights)
    return {request.mode: made}


def config_of(request: Request) -> ModelConfig:
    """The config of the program: where it drafts, with a head, which its model may not have."""
    if request.num_drafts:
        return dataclasses.replace(request.config, num_mtp_layers=1)
    return request.config


def _array(rules: ShardingRules, shape: tuple[int, ...], dtype: Any, *names: str | None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=rules.spec(*names))


# ---- training


OPTIMIZER = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=3e-4), eps=1e-16)
_KINDS = ("weights", "masters", "gradients", "state")  # of arguments; all others are a batch's


def trainer_of(
    config: ModelConfig,
    rules: ShardingRules,
    graphdef: nnx.GraphDef,
    length: int,
    optimizer: Optimizer = OPTIMIZER,
) -> tuple[PolicyModel, TrainerPrograms]:
    """The policy and the programs that a run would have for it, with LongCat's objective."""
    policy = policy_model.policy_of(graphdef, config, 1e-4, rules=rules)
    objective = objectives.longcat_objective(group_size=8, max_response_tokens=length)
    return policy, trainer.make_programs(policy, objective, optimizer, 0)


def train_programs(
    config: ModelConfig,
    rules: ShardingRules,
    graphdef: nnx.GraphDef,
    weights: Weights,
    shape: tuple[int, int],
    num_microbatches: int = 1,
    offload_moments: bool = False,
) -> dict[str, Program]:
    """Scoring, gradients of micro-batches of `shape[0]` rows of `shape[1]` tokens, an update."""
    optimizer = dataclasses.replace(OPTIMIZER, offload_moments=offload_moments)
    policy, compiled = trainer_of(config, rules, graphdef, shape[1], optimizer)
    state = trainer.abstract_state(policy, optimizer, weights)
    batch = batching.shapes(compiled.layout, rules, *shape)
    calls = trainer.calls(compiled, policy, state, batch, trainer.on_mesh(rules, weights))
    held = _bytes_of("state", state)
    moments = {"optimizer": held["optimizer"]}
    beside = {"logprobs": (held, 0), "accumulate": (moments, num_microbatches), "update": ({}, 1)}
    made = {}
    for name, call in calls.items():
        kinds = tuple(kind if kind in _KINDS else "batch" for kind in call.arguments)
        arguments = tuple(call.arguments.values())
        made[name] = Program(call.function, arguments, kinds, *beside[name])
    return made


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

    return Program(jax.jit(prefill), (weights, tokens, mask), ("weights", "batch", "batch"))


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
            tokens, positions, cache, before = carry
            history = before
            if history is not None:
                history = jnp.concatenate([history[:, 1:], tokens[:, :1]], axis=1)
            known = {} if before is None else {"history": before}
            if request.num_drafts:
                tokens, cache = _draft(model, tokens, positions, *cache, **known)
            else:
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
    given, made = (free_weights, free_cache, None, None, None), (None, free_cache)
    compiled = jax.jit(decode, donate_argnums=1, in_shardings=given, out_shardings=made)
    arguments = (weights, cache, tokens, positions, history)
    return Program(compiled, arguments, ("weights", "cache", "batch", "batch", "batch"))


def _draft(
    model: Any, tokens: Array, positions: Array, cache: LatentCache, head: Latent, **history: Array
):
    """The last of the tokens that the model makes of these, as if it kept all, and new drafts.

    The head reads all rows for the first draft, as `rollout.speculation` does, and one row for
    each further one.
    """
    logits, hidden, cache = model.extend(tokens, positions, cache, **history)
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
        for name, size in _bytes_of(kind, argument).items():
            total[name] = total.get(name, 0) + size
    return total


def host_bytes(program: Program) -> int:
    """Bytes of the arguments in host memory, for one device."""
    leaves = jax.tree.leaves(program.arguments)
    return sum(_part_bytes(leaf) for leaf in leaves if offload.is_on_host(leaf))


def _bytes_of(kind: str, argument: Any) -> dict[str, int]:
    parts = {kind: argument}
    if isinstance(argument, TrainState):
        parts = {"masters": argument.weights, "optimizer": argument._replace(weights=())}
    leaves = {name: jax.tree.leaves(part) for name, part in parts.items()}
    return {
        name: sum(_part_bytes(leaf) for leaf in leaves[name] if not offload.is_on_host(leaf))
        for name in parts
    }


def _show_axes(axes: Any) -> str:
    names = axes if isinstance(axes, tuple) else (axes,)
    return "+".join(str(name) for name in names if name is not None) or "-"


def _part_bytes(array: jax.ShapeDtypeStruct) -> int:
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    return jnp.dtype(array.dtype).itemsize * math.prod(shape)
