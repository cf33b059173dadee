"""Parts that decoders of all families share: construction, their two ends, stacked layers."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.parameters import Weights
from loong_jax.models.products import project, project_weight_first, together_going_back
from loong_jax.sharding import ShardingRules, varying_alike

Cache = TypeVar("Cache", bound=tuple)  # a named tuple of arrays
Make = Callable[..., nnx.Module]  # (rngs=, rules=) -> a model


def init(make: Make, key: Array, rules: ShardingRules | None) -> tuple[nnx.GraphDef, Weights]:
    """The graph and fresh weights of what `make` makes; the values do not depend on the mesh."""
    return _split(make(rngs=nnx.Rngs(key), rules=rules))


def abstract(make: Make, rules: ShardingRules | None) -> tuple[nnx.GraphDef, Weights]:
    """The graph and the abstract weights of a model: leaves are `jax.ShapeDtypeStruct`.

    They carry the shardings that the rules give them, so a pod's model can be looked at anywhere.
    """
    rules = rules or ShardingRules()
    with rules.scope():
        model = jax.eval_shape(lambda: make(rngs=nnx.Rngs(jax.random.key(0)), rules=rules))
    graphdef, weights = _split(model)

    def on_devices(leaf):
        """The sharding that an abstract mesh gave a leaf, on the devices of the mesh."""
        sharding = rules.mesh and NamedSharding(rules.mesh, leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return graphdef, jax.tree.map(on_devices, weights)


def _split(model: nnx.Module) -> tuple[nnx.GraphDef, Weights]:
    graphdef, state = nnx.split(model, graph=False)
    return graphdef, nnx.to_pure_dict(state)


def words(
    table: Float[Array, "V D"], tokens: Int[Array, "B T"], rules: ShardingRules, dtype: DTypeLike
) -> Float[Array, "B T D"]:
    """The row of each token, in the dtype of activations.

    A table that is cut along D stays so: the rows of some tokens are fewer than those of all words.
    """
    if rules.gathers("vocab"):
        table = rules.gather(table, "vocab", "vocab_embed")
    return rules.take(table, tokens, "act_embed").astype(dtype)


def logits(
    hidden: Float[Array, "B T D"], head: Float[Array, "D V"], rules: ShardingRules
) -> Float[Array, "B T V"]:
    """float32 logits from states after the final norm; `head` is in the dtype of these."""
    axes = ("vocab_embed", "vocab")
    if rules.gathers(*axes):
        # going back, its gradient is scattered beside the product that makes that of `hidden`
        hidden, head = together_going_back(hidden, head)
        head = rules.gather(head, *axes, meets=hidden)
        made = project_weight_first(hidden, head, out_dtype=jnp.float32)
    elif rules.mesh is None and hidden.dtype != jnp.float32:
        # going back, products of float32 take several times as long on GPU
        made = project_weight_first(hidden, head, out_dtype=jnp.float32)
    else:
        made = project(rules.gather_tokens(hidden, "vocab"), head, out_dtype=jnp.float32)
    spec = rules.after(hidden[..., 0], "act_vocab")
    return made if spec is None else jax.sharding.reshard(made, spec)


def logits_for(
    head: Float[Array, "D V"], num_tokens: int, rules: ShardingRules, dtype: DTypeLike
) -> Callable[[Float[Array, "F N D"]], Float[Array, "F N V"]]:
    """As `logits`, for some at a time of so many states; `dtype` is that of all of them.

    Instead of a head with more words than there are tokens, these are gathered: the head is cut
    along V once, and a device makes logits of its own words for all, which then lie so.
    """
    rows = [axis for axis in rules.axes("act_batch") if rules.size(axis) > 1]
    moved = rules.gathered_over("vocab_embed", "vocab")
    over = tuple(itertools.dropwhile(lambda axis: axis not in moved, rows))
    kept = tuple(rows[: len(rows) - len(over)])
    words = (*(a for a in rules.cutting().axes("vocab") if a not in (*moved, *over)), *over)
    num_gathered = num_tokens // math.prod(map(rules.size, kept))
    is_fewer = num_gathered < head.shape[1] and over
    if rules.mesh is None or not is_fewer or head.shape[1] % math.prod(map(rules.size, words)):
        return lambda hidden: logits(hidden, head.astype(dtype), rules)
    of_head, cut = PartitionSpec(None, words), head.astype(dtype)
    for part in ([a for a in words if a in moved or a not in over], words):  # XLA knows each step
        where = NamedSharding(rules.mesh, PartitionSpec(None, tuple(part)))
        cut = jax.sharding.reshard(cut, where)
    cut = cut.astype(head.dtype)  # gradients of all calls are added up before they are rounded

    def on_one_device(hidden, head):
        hidden, head = varying_alike((hidden, head))
        tokens = jax.lax.all_gather(hidden, over, tiled=True)
        return project_weight_first(tokens, head, out_dtype=jnp.float32)

    of_states = NamedSharding(rules.mesh, PartitionSpec(tuple(rows)))
    on_mesh = rules.shard_map(
        on_one_device,
        in_specs=(of_states.spec, of_head),
        out_specs=PartitionSpec(kept, None, words),
    )

    def of_some(hidden):
        hidden = jax.sharding.reshard(hidden, of_states)
        return on_mesh(hidden, cut.astype(dtype))

    return of_some


Cut = tuple[Any, ...]  # the weights of each layer


def cut(layers: nnx.Module, num_layers: int) -> Cut:
    """The weights of each layer, taken out of the stack."""
    _, stacked = nnx.split(layers, graph=False)
    return tuple(
        jax.tree.map(lambda a, index=index: a[index], stacked) for index in range(num_layers)
    )


def scan(
    step: Callable[[Any, Any, Int[Array, ""]], tuple[Any, Any]],
    carry: Any,
    stacked: Any,
    num_layers: int,
    *,
    cut: Cut | None = None,
    remat: Callable[[Any], Any] = lambda body: body,
    unroll: bool = False,
) -> tuple[Any, Any]:
    """`step(carry, weights, index)` over the layers: the last carry, and what steps return.

    Over the weights that are `cut` apart, if they are. `remat` wraps the step for going back.
    """
    body = remat(lambda carry, slices: step(carry, *slices))
    if cut is not None:
        made = []
        for index, weights in enumerate(cut):
            carry, out = body(carry, (weights, jnp.int32(index)))
            made.append(out)
        return carry, jax.tree.map(lambda *a: jnp.stack(a), *made)
    return jax.lax.scan(body, carry, (stacked, jnp.arange(num_layers)), unroll=unroll)


def restarting_positions(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Positions that count from the first token of each run of equal segment ids."""
    index_1T = jnp.arange(segment_ids.shape[1])[None]
    before = jnp.concatenate([segment_ids[:, :1], segment_ids[:, :-1]], axis=1)
    start = jax.lax.cummax(jnp.where(segment_ids != before, index_1T, 0), axis=1)
    return index_1T - start


def segments_of(
    tokens: Int[Array, "B T"],
    mask: Bool[Array, "B T"] | None,
    segment_ids: Int[Array, "B T"] | None,
) -> Int[Array, "B T"]:
    """The number of each token's sequence, from 1; 0 for padding.

    Raises ValueError where there is no token.
    """
    if 0 in tokens.shape:
        raise ValueError(f"tokens of shape {tokens.shape} hold no token. Pass one at least.")
    if segment_ids is None:
        return jnp.ones_like(tokens) if mask is None else mask.astype(jnp.int32)
    return segment_ids if mask is None else jnp.where(mask, segment_ids, 0)


def from_first(cache: Any, mask: Bool[Array, "B T"], rules: ShardingRules) -> Any:
    """A filled cache without the padding on its left: entry 0 is the first token of a sequence."""
    first_B = jnp.argmax(rules.place(mask, "act_batch", "act_keys"), axis=1)
    return jax.lax.cond(
        jnp.any(first_B > 0),
        lambda filled: filled.shift(first_B, rules),
        lambda filled: filled,
        cache.place(rules),
    )


def shifted(
    cache: Cache, by: Int[Array, "B"], axes: Sequence[str | None], rules: ShardingRules
) -> Cache:
    """Entry s of sequence b becomes what was entry by[b] + s, counted around the end.

    Of a cache of arrays [*, *, B, S, *], whose logical axes are `axes`.
    """

    def move(entries, by_B):
        capacity = entries.shape[3]
        at_BS = (by_B[:, None] + jnp.arange(capacity)[None]) % capacity
        return jnp.take_along_axis(entries, at_BS[None, None, :, :, None], axis=3)

    batch, whole = rules.partition("act_batch"), rules.partition(*axes)
    local = rules.shard_map(move, in_specs=(whole, batch), out_specs=whole)
    return type(cache)(*(local(entries, by) for entries in cache))


def layers_cut(model: Any) -> Any:
    """The same function, to be called many times by one program, as decoding does.

    On CPU and GPU a loop over stacked layers copies the weights of every layer out of the stack
    whenever it comes to it. Cut apart here, they are copied once, if this is called outside the
    loop over tokens. On TPU, or on a mesh, nothing changes.
    """
    if model.rules.mesh is not None or model.rules.platform == "tpu":
        return model
    copy = nnx.merge(*nnx.split(model, graph=False))
    copy.cut = nnx.data(cut(copy.layers, model.config.num_layers))
    return copy
