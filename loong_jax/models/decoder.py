"""Parts that decoders of all families share: construction, their two ends, stacked layers."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models.parameters import Weights
from loong_jax.models.products import project, project_weight_first, together_going_back
from loong_jax.sharding import ShardingRules, varying_alike

Cache = TypeVar("Cache", bound=tuple)  # a named tuple of arrays
LogitsOf: TypeAlias = Callable[[Float[Array, "F N D"]], Float[Array, "F N V"]]
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

    def on_devices(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
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
    return rules.take(table, tokens, "act_embed", dtype=dtype)


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
) -> LogitsOf:
    """As `logits`, for some at a time of so many states; `dtype` is that of all of them.

    Where a group of devices has fewer tokens than there are words, it gathers these instead of the
    head: the head is cut along V once, and a device makes the logits of its own words for all
    tokens of its group. Logits then lie so.
    """
    num_words, axes = head.shape[1], _TokensToWords.of(rules)
    num_gathered = num_tokens // math.prod(map(rules.size, axes.apart))
    is_fewer = axes.gathered and num_gathered < num_words
    if rules.mesh is None or not is_fewer or num_words % math.prod(map(rules.size, axes.words)):
        return lambda hidden: logits(hidden, head.astype(dtype), rules)
    own_words = head.astype(dtype)
    for over in (axes.words_before, axes.words):  # each is a step that XLA knows
        cut = NamedSharding(rules.mesh, PartitionSpec(None, over))
        own_words = jax.sharding.reshard(own_words, cut)
    # wide again, for the gradients of all calls are added up before they are rounded
    own_words = own_words.astype(head.dtype)

    def on_one_device(
        hidden: Float[Array, "own N D"], words: Float[Array, "D v"]
    ) -> Float[Array, "gathered N v"]:
        hidden, words = varying_alike((hidden, words))
        hidden = jax.lax.all_gather(hidden, axes.gathered, tiled=True)
        return project_weight_first(hidden, words, out_dtype=jnp.float32)

    rows = NamedSharding(rules.mesh, PartitionSpec((*axes.apart, *axes.gathered)))
    on_mesh = rules.shard_map(
        on_one_device,
        in_specs=(rows.spec, PartitionSpec(None, axes.words)),
        out_specs=PartitionSpec(axes.apart, None, axes.words),
    )

    def of_some(hidden: Float[Array, "F N D"]) -> Float[Array, "F N V"]:
        return on_mesh(jax.sharding.reshard(hidden, rows), own_words.astype(dtype))

    return of_some


class _TokensToWords(NamedTuple):
    """Mesh axes of the tokens and the words where tokens are gathered instead of the head."""

    apart: tuple[str, ...]  # tokens stay cut over these, a group of devices from the next
    gathered: tuple[str, ...]  # over which a group gathers its tokens; none: it cannot
    words: tuple[str, ...]  # over which the head is cut along V
    words_before: tuple[str, ...]  # those of `words` over which it lies in parts anyway

    @classmethod
    def of(cls, rules: ShardingRules) -> "_TokensToWords":
        """Tokens are gathered over the axes over which the head would be, and over those that cut
        rows after them: what is gathered is then in the order of the rows.
        """
        of_rows = tuple(axis for axis in rules.axes("act_batch") if rules.size(axis) > 1)
        of_head = rules.gathers("vocab_embed", "vocab")
        gathered = tuple(itertools.dropwhile(lambda axis: axis not in of_head, of_rows))
        of_words = rules.cutting().axes("vocab")
        staying = tuple(axis for axis in of_words if axis not in (*of_head, *gathered))
        return cls(
            apart=of_rows[: len(of_rows) - len(gathered)],
            gathered=gathered,
            words=(*staying, *gathered),
            words_before=(*staying, *(axis for axis in gathered if axis in of_head)),
        )


Carry = TypeVar("Carry")
Out = TypeVar("Out")  # what a step returns beside the carry
LayerWeights: TypeAlias = nnx.State
Cut: TypeAlias = tuple[LayerWeights, ...]
Step: TypeAlias = Callable[[Carry, LayerWeights, Int[Array, ""]], tuple[Carry, Out]]
Body: TypeAlias = Callable[[Carry, tuple[LayerWeights, Int[Array, ""]]], tuple[Carry, Out]]


def cut(layers: nnx.Module, num_layers: int) -> Cut:
    """The weights of each layer, taken out of the stack."""
    _, stacked = nnx.split(layers, graph=False)
    return tuple(
        jax.tree.map(lambda a, index=index: a[index], stacked) for index in range(num_layers)
    )


def scan(
    step: Step[Carry, Out],
    carry: Carry,
    stacked: LayerWeights,
    num_layers: int,
    *,
    cut: Cut | None = None,
    remat: Callable[[Body[Carry, Out]], Body[Carry, Out]] = lambda body: body,
    unroll: bool = False,
) -> tuple[Carry, Out]:
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


def from_first(
    cache: Cache,
    mask: Bool[Array, "B T"],
    shift: Callable[[Cache, Int[Array, "B"], ShardingRules], Cache],
    rules: ShardingRules,
) -> Cache:
    """A filled cache without the padding on its left: entry 0 is the first token of a sequence."""
    first_B = jnp.argmax(rules.place(mask, "act_batch", "act_keys"), axis=1)
    return jax.lax.cond(
        jnp.any(first_B > 0),
        lambda filled: shift(filled, first_B, rules),
        lambda filled: filled,
        cache,
    )


def shifted(
    cache: Cache, by: Int[Array, "B"], axes: Sequence[str | None], rules: ShardingRules
) -> Cache:
    """Entry s of sequence b becomes what was entry by[b] + s, counted around the end.

    Of a cache of arrays [*, *, B, S, *], whose logical axes are `axes`.
    """

    def move(
        entries: Shaped[Array, "_ _ B S _"], by: Int[Array, "B"]
    ) -> Shaped[Array, "_ _ B S _"]:
        capacity = entries.shape[3]
        at_BS = (by[:, None] + jnp.arange(capacity)[None]) % capacity
        return jnp.take_along_axis(entries, at_BS[None, None, :, :, None], axis=3)

    batch, whole = rules.partition("act_batch"), rules.partition(*axes)
    local = rules.shard_map(move, in_specs=(whole, batch), out_specs=whole)
    return type(cache)(*(local(entries, by) for entries in cache))


@runtime_checkable
class Layered(Protocol):
    """A decoder with all its layers in one stack."""

    cut: Cut | None  # the weights of each layer, where `layers_cut` has been called

    @property
    def config(self) -> Any: ...

    @property
    def rules(self) -> ShardingRules: ...

    @property
    def layers(self) -> nnx.Module: ...


Model = TypeVar("Model", bound=Layered)


def layers_cut(model: Model) -> Model:
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
