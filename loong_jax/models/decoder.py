"""Parts of decoders of all families: construction, ends, stacked layers, dense FFN, caches."""

import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from loong_jax.models import parameters
from loong_jax.models.parameters import Weights
from loong_jax.models.products import (
    in_chunks,
    project,
    project_weight_first,
    rms_norm,
    together_going_back,
)
from loong_jax.sharding import ShardingRules, varying_alike

LogitsOf: TypeAlias = Callable[[Float[Array, "F N D"]], Float[Array, "F N V"]]
Make: TypeAlias = Callable[..., nnx.Module]  # (config, rngs=, rules=) -> a model
Made: TypeAlias = tuple[nnx.GraphDef, Weights]

# Of sequences side by side, as layers see them.
States: TypeAlias = Float[Array, "B T D"]
Numbers: TypeAlias = Int[Array, "B T"]  # tokens, positions, or the segments that they are of
Mask: TypeAlias = Bool[Array, "B T"]


def init(make: Make, config: Any, key: Array, rules: ShardingRules | None) -> Made:
    """The graph and fresh weights, a nested dict of arrays that are sharded from birth.

    Inside jit, `nnx.merge(graphdef, nnx.State(weights))(tokens)` calls the model. The values do
    not depend on the mesh.
    """
    return _split(make(config, rngs=nnx.Rngs(key), rules=rules))


def abstract(make: Make, config: Any, rules: ShardingRules | None) -> Made:
    """The graph and the abstract weights: leaves are `jax.ShapeDtypeStruct`, no array is made.

    They carry the shardings that the rules give them, so a pod's model can be looked at anywhere.
    """
    rules = rules or ShardingRules()
    with rules.scope():
        model = jax.eval_shape(lambda: make(config, rngs=nnx.Rngs(jax.random.key(0)), rules=rules))
    graphdef, weights = _split(model)

    def on_devices(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """The sharding that an abstract mesh gave a leaf, on the devices of the mesh."""
        sharding = rules.mesh and NamedSharding(rules.mesh, leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return graphdef, jax.tree.map(on_devices, weights)


def _split(model: nnx.Module) -> Made:
    graphdef, state = nnx.split(model, graph=False)
    return graphdef, nnx.to_pure_dict(state)


Carry = TypeVar("Carry")
Out = TypeVar("Out")  # what a step returns beside the carry
LayerWeights: TypeAlias = nnx.State
Step: TypeAlias = Callable[[Carry, Any, Int[Array, ""]], tuple[Carry, Out]]
Body: TypeAlias = Callable[[Carry, tuple[LayerWeights, Int[Array, ""]]], tuple[Carry, Out]]


class Decoder(nnx.Module):
    """A decoder of some family, which makes `embedding`, `layers`, `final_norm` and `head`.

    Ways in, of every family; `nnx.split(model, graph=False)` gives its graph and its weights:

        __call__   logits of the token after each token of whole sequences
        prefill    the same, and the cache of their positions; with `cache`, of the next chunk
        decode     logits after one more token of each sequence, and the cache with that in it
        extend     the same after a few tokens, and their states after the final norm

    A token is a number below `vocab_size`; others are not noticed and mean nothing. `mask` is true
    where there is a token; a sequence stands together, with padding on either side. In packed rows
    `segment_ids` numbers the sequences from 1, all below is padding, and tokens see their own
    segment only, or also the segment that `parent_ids` names at them, which stands before theirs in
    the row: a prompt that several responses share. `positions` count from the first token of each
    sequence unless given; with `parent_ids` they must be. Logits of padding are finite and mean
    nothing. Under jit what is not used of an output is not computed.

    Entry s of a cache is position s, and entries past the last token are never looked at. With a
    cache, sequence b of a prefill already has `start[b]` tokens in it: its new tokens see those and
    each other, and are written behind them, none past the capacity. Chunks of any lengths together
    equal one whole prefill. In decoding token t of sequence b is written at `positions[b] + t` and
    sees entries up to there; a position outside the cache writes nothing, and its logits mean
    nothing, nor do those of sequences outside `mask`, free slots say. What is written past the
    tokens that are kept is never looked at: what speculation rejects needs no undoing.
    """

    embedding: nnx.Param
    layers: Any  # a module, all of them with weights stacked on L
    final_norm: nnx.Param
    head: nnx.Param

    def __init__(self, config: Any, rules: ShardingRules | None):
        self.config, self.rules = config, rules or ShardingRules()
        self.cut: tuple[LayerWeights, ...] | None = None  # the weights of each layer, if cut apart
        self.imported_config: str | None = None  # the config.json that the weights came with
        self.imported_dtype: str | None = None  # of the embedding in the files beside it
        self.imported_layout: str | None = None  # of these files, see `hf.writing`

    def layers_cut(self) -> "Decoder":
        """The same function, to be called many times by one program, as decoding does.

        On CPU and GPU a loop over stacked layers copies the weights of every layer out of the stack
        whenever it comes to it. Cut apart here, they are copied once, if this is called outside the
        loop over tokens. On TPU, or on a mesh, nothing changes.
        """
        if self.rules.mesh is not None or self.rules.platform == "tpu":
            return self
        copy = nnx.merge(*nnx.split(self, graph=False))
        _, stacked = nnx.split(copy.layers, graph=False)
        numbers = range(self.config.num_layers)
        copy.cut = nnx.data(tuple(jax.tree.map(lambda a, i=i: a[i], stacked) for i in numbers))
        return copy

    def logits_of(self, hidden: States) -> Float[Array, "B T V"]:
        """Logits from states after the final norm, the `hidden` of an output."""
        return logits(hidden, self._head().astype(self.config.dtype), self.rules)

    def logits_for(self, num_tokens: int) -> LogitsOf:
        """As `logits_of`, for some at a time of so many states in all; see the function."""
        return logits_for(self._head(), num_tokens, self.rules, self.config.dtype)

    def _head(self) -> Float[Array, "D V"]:
        return self.head[...]

    def _keys(
        self, tokens: Numbers, positions: Numbers | None, mask: Mask | None, segment_ids: Any
    ) -> tuple[Numbers, Numbers, tuple[Numbers, Numbers]]:
        """Positions and segments of whole sequences; segment and index of each as a key.

        Segments are numbered from 1; 0 is padding. Raises ValueError where there is no token.
        """
        if 0 in tokens.shape:
            raise ValueError(f"tokens of shape {tokens.shape} hold no token. Pass one at least.")
        if segment_ids is None:
            segment_ids = jnp.ones_like(tokens) if mask is None else mask.astype(jnp.int32)
        elif mask is not None:
            segment_ids = jnp.where(mask, segment_ids, 0)
        key_segment_BS = self.rules.place(segment_ids, "act_batch", "act_keys")
        key_index_BS = jnp.zeros_like(key_segment_BS) + jnp.arange(tokens.shape[1])[None]
        if positions is None:
            positions = restarting_positions(key_segment_BS)
        return positions, segment_ids, (key_segment_BS, key_index_BS)

    def _word(self, tokens: Numbers) -> States:
        return words(self.embedding[...], tokens, self.rules, self.config.dtype)

    def _normed(self, x: States) -> States:
        return rms_norm(x, self.final_norm[...], self.config.rms_norm_eps)

    def _scan(
        self,
        step: Step[Carry, Out],
        carry: Carry,
        remat: Callable[[Body[Carry, Out]], Body[Carry, Out]] = lambda body: body,
        whole: tuple[str, ...] = (),
    ) -> tuple[Carry, Out]:
        """`step(carry, layer, index)` over the layers: the last carry, and what steps return.

        `remat` wraps the step for going back. Sub-layers that `whole` names keep the weights of all
        layers, and are told the index: a slice for each step would be copied out of them.
        """
        graph, stacked = nnx.split(self.layers, graph=False)
        kept = {name: stacked.pop(name) for name in whole}

        def of_slice(carry: Carry, slices: Any) -> tuple[Carry, Out]:
            weights, index = slices
            layer = nnx.merge(graph, nnx.State({**weights, **kept}))
            for name in whole:
                getattr(layer, name).layer = nnx.data(index)
            return step(carry, layer, index)

        body = remat(of_slice)
        if self.cut is None:
            slices = stacked, jnp.arange(self.config.num_layers)
            return jax.lax.scan(body, carry, slices, unroll=self.config.unroll_layers)
        made = []
        for index, weights in enumerate(self.cut):
            carry, out = body(carry, (weights, jnp.int32(index)))
            made.append(out)
        return carry, jax.tree.map(lambda *a: jnp.stack(a), *made)


class DenseFFN(parameters.Gathering, nnx.Module):
    """down(silu(gate(x)) * up(x)), each with a bias where asked for."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "gate": ("ffn_embed", "ffn"),
        "up": ("ffn_embed", "ffn"),
        "down": ("ffn", "ffn_embed"),
    }

    def __init__(self, config: Any, *, rngs: nnx.Rngs, rules: ShardingRules, biases: bool = False):
        self.config, self.rules = config, rules
        layers, embed, ffn = config.num_layers, config.hidden_size, config.ffn_hidden_size
        self.gate = self.fresh(rngs, "gate", embed, ffn)
        self.up = self.fresh(rngs, "up", embed, ffn)
        self.down = self.fresh(rngs, "down", ffn, embed, gain=config.residual_gain)
        if biases:
            dtype, wide = config.param_dtype, ((layers, ffn), ("layers", "ffn"))
            self.gate_bias = parameters.zeros(*wide, dtype, rules)
            self.up_bias = parameters.zeros(*wide, dtype, rules)
            self.down_bias = parameters.zeros((layers, embed), ("layers", None), dtype, rules)

    def with_matrices(self, weights: parameters.Matrices) -> "DenseFFN":
        """This net with these matrices in the place of its own."""
        if weights is None:
            return self
        graph, state = nnx.split(self, graph=False)
        return nnx.merge(graph, nnx.State(nnx.to_pure_dict(state) | weights))

    def __call__(self, x: States, kept_as: str = "ffn") -> States:
        """A checkpoint policy finds the products of gate and up under the name `kept_as`."""
        gate_DF, up_DF, down_FD = (self._gather(n, getattr(self, n)[...], x) for n in self.AXES)
        is_alone = self.rules.mesh is None
        rows = self.config.chunk_rows(x.shape[1]) if is_alone else None
        # for a CPU it is less work to make the hidden layer again than to keep its parts
        gated = jax.checkpoint(_gated) if is_alone and self.rules.platform == "cpu" else _gated

        def at_once(x: States) -> States:
            gathered = self.rules.gather_tokens(x, "ffn")
            gate_BTF = checkpoint_name(project(gathered, gate_DF), kept_as)
            up_BTF = checkpoint_name(project(gathered, up_DF), kept_as)
            gate_BTF = self._biased(gate_BTF, "gate", "ffn")
            up_BTF = self._biased(up_BTF, "up", "ffn")
            hidden_BTF = gated(gate_BTF, up_BTF)
            out_BTD = self.rules.scatter_sums(project, hidden_BTF, down_FD, like=x)
            return self._biased(out_BTD, "down", None)

        return in_chunks(at_once, (x,), rows)

    def _biased(
        self, x: Float[Array, "B T width"], name: str, axis: str | None
    ) -> Float[Array, "B T width"]:
        bias = getattr(self, f"{name}_bias", None)
        if bias is None:
            return x
        return x + self.rules.gather(bias[...].astype(x.dtype), axis)[None, None]


def _gated(gate: Float[Array, "B T F"], up: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
    return jax.nn.silu(gate) * up


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
    of_rows = tuple(axis for axis in rules.axes("act_batch") if rules.size(axis) > 1)
    of_head = rules.gathers("vocab_embed", "vocab")
    # Tokens are gathered over the axes over which the head would be, and over those that cut rows
    # after them: what is gathered is then in the order of the rows. Over `apart` they stay cut.
    gathered = tuple(itertools.dropwhile(lambda axis: axis not in of_head, of_rows))
    apart = of_rows[: len(of_rows) - len(gathered)]
    of_words = rules.cutting().axes("vocab")
    staying = tuple(axis for axis in of_words if axis not in (*of_head, *gathered))
    over_words = (*staying, *gathered)  # over which the head is cut along V
    num_words = head.shape[1]
    num_gathered = num_tokens // math.prod(map(rules.size, apart))
    is_fewer = gathered and num_gathered < num_words
    if rules.mesh is None or not is_fewer or num_words % math.prod(map(rules.size, over_words)):
        return lambda hidden: logits(hidden, head.astype(dtype), rules)
    in_parts_anyway = (*staying, *(axis for axis in gathered if axis in of_head))
    own_words = head.astype(dtype)
    for over in (in_parts_anyway, over_words):  # each is a step that XLA knows
        cut = NamedSharding(rules.mesh, PartitionSpec(None, over))
        own_words = jax.sharding.reshard(own_words, cut)
    # wide again, for the gradients of all calls are added up before they are rounded
    own_words = own_words.astype(head.dtype)

    def on_one_device(hidden, head):
        hidden, head = varying_alike((hidden, head))
        hidden = jax.lax.all_gather(hidden, gathered, tiled=True)
        return project_weight_first(hidden, head, out_dtype=jnp.float32)

    rows = NamedSharding(rules.mesh, PartitionSpec((*apart, *gathered)))
    on_mesh = rules.shard_map(
        on_one_device,
        in_specs=(rows.spec, PartitionSpec(None, over_words)),
        out_specs=PartitionSpec(apart, None, over_words),
    )

    def of_some(hidden: Float[Array, "F N D"]) -> Float[Array, "F N V"]:
        return on_mesh(jax.sharding.reshard(hidden, rows), own_words.astype(dtype))

    return of_some


def restarting_positions(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Positions that count from the first token of each run of equal segment ids."""
    index_1T = jnp.arange(segment_ids.shape[1])[None]
    before = jnp.concatenate([segment_ids[:, :1], segment_ids[:, :-1]], axis=1)
    start = jax.lax.cummax(jnp.where(segment_ids != before, index_1T, 0), axis=1)
    return index_1T - start


def refuse_half(cache: Any, start: Any) -> None:
    """ValueError where one of the two arguments of a prefill is given without the other."""
    if (cache is None) != (start is None):
        raise ValueError("cache and start belong together: pass both, or neither to begin.")


def over_chunk(mask: Mask, start: Int[Array, "B"], capacity: int) -> tuple[Numbers, Numbers]:
    """Positions of the next tokens of sequences that have `start` already, and where in a cache
    they are written: those outside `mask` nowhere.
    """
    positions = start[:, None] + jnp.cumsum(mask, axis=1) - 1
    nowhere_1T = capacity + jnp.arange(mask.shape[1])[None]
    return positions, jnp.where(mask, positions, nowhere_1T)


Cache = TypeVar("Cache", bound=tuple)  # a named tuple of arrays
Axes: TypeAlias = tuple[str | None, ...]  # logical ones, of each array of a cache


def written(
    cache: Cache,
    new: tuple[Shaped[Array, "B T ..."], ...],
    position: Numbers,
    axes: Axes,
    rules: ShardingRules,
    *,
    layer: tuple[Int[Array, ""], ...] = (),
    part: tuple[int | slice, ...] = (),
    new_axes: Axes = ("act_batch",),
) -> Cache:
    """The cache with T new entries of each sequence at their positions, which differ in a sequence.

    `layer` and `part` index the axes before B and S. Nothing is written at a position outside.
    Where the cache is donated, or carried by a loop, no other entry is copied.
    """

    def put(entries, new, position, *layer):
        row_B1 = jnp.arange(position.shape[0])[:, None]
        at = entries.at[(*layer, *part, row_B1, position)]
        return at.set(new, mode="drop", unique_indices=True, wrap_negative_indices=False)

    batch, whole = rules.partition("act_batch"), rules.partition(*axes)
    specs = whole, rules.partition(*new_axes), batch, *(rules.partition() for _ in layer)
    local = rules.shard_map(put, in_specs=specs, out_specs=whole)
    pairs = zip(cache, new, strict=True)
    return type(cache)(*(local(entries, a, position, *layer) for entries, a in pairs))


def placed(cache: Cache, axes: Axes, rules: ShardingRules) -> Cache:
    """The cache where caches lie on the mesh."""
    return type(cache)(*(rules.place(entries, *axes) for entries in cache))


def from_first(cache: Cache, mask: Mask, axes: Axes, rules: ShardingRules) -> Cache:
    """A filled cache without the padding on its left: entry 0 is the first token of a sequence.

    Of a cache of arrays [*, *, B, S, *]; what stood before comes last.
    """

    def move(entries: Shaped[Array, "_ _ B S _"], by: Int[Array, "B"]):
        capacity = entries.shape[3]
        at_BS = (by[:, None] + jnp.arange(capacity)[None]) % capacity
        return jnp.take_along_axis(entries, at_BS[None, None, :, :, None], axis=3)

    cache = placed(cache, axes, rules)
    first_B = jnp.argmax(rules.place(mask, "act_batch", "act_keys"), axis=1)
    batch, whole = rules.partition("act_batch"), rules.partition(*axes)
    local = rules.shard_map(move, in_specs=(whole, batch), out_specs=whole)
    return jax.lax.cond(
        jnp.any(first_B > 0),
        lambda filled: type(cache)(*(local(entries, first_B) for entries in filled)),
        lambda filled: filled,
        cache,
    )
