"""A dense decoder: embedding, layers of attention and feed-forward net, final norm, head.

Ways in, as of every family: a call over whole sequences, `prefill`, which also fills a cache, and
over that cache `decode`, one token per sequence, or `extend`, a few at once. Llama
(arXiv:2407.21783), Qwen2 (arXiv:2407.10671) and Qwen3 (arXiv:2505.09388) differ by fields of the
config.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models import decoder, parameters
from loong_jax.models.decoder import (
    Body,
    Carry,
    Decoder,
    DenseFFN,
    Made,
    Mask,
    Numbers,
    Out,
    States,
)
from loong_jax.models.dense.attention import CACHE_AXES, GroupedAttention, KeyValueCache, View
from loong_jax.models.dense.config import DenseConfig
from loong_jax.models.entry import entry
from loong_jax.models.products import rms_norm
from loong_jax.models.rope import Turn, turn
from loong_jax.sharding import ShardingRules

# From a layer's attention and its normed input to its output.
Attend: TypeAlias = Callable[[GroupedAttention, States], States]


class DenseOutput(NamedTuple):
    logits: Float[Array, "B T V"]  # float32
    hidden: Float[Array, "B T D"]  # after the final norm


class DenseLayer(nnx.Module):
    """All layers, weights stacked on L; the parts of one are called with its slice."""

    def __init__(self, config: DenseConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config = config
        norm = (config.num_layers, config.hidden_size), ("layers", None), rules
        self.attention_norm = parameters.ones(*norm)
        self.attention = GroupedAttention(config, rngs=rngs, rules=rules)
        self.ffn_norm = parameters.ones(*norm)
        self.ffn = DenseFFN(config, rngs=rngs, rules=rules, biases=config.ffn_bias)

    def __call__(self, x: States, attend: Attend) -> States:
        """`attend(attention, x)` is the attention of normed inputs, over whatever it sees."""
        eps = self.config.rms_norm_eps
        with jax.named_scope("attention"):
            x = x + attend(self.attention, rms_norm(x, self.attention_norm[...], eps))
        with jax.named_scope("ffn"):
            return x + self.ffn(rms_norm(x, self.ffn_norm[...], eps))


class DenseDecoder(Decoder):
    """The model."""

    def __init__(self, config: DenseConfig, *, rngs: nnx.Rngs, rules: ShardingRules | None = None):
        super().__init__(config, rules)
        rules, dtype = self.rules, config.param_dtype
        vocab, embed = config.vocab_size, config.hidden_size
        names, fan_in = ("vocab", "vocab_embed"), embed if config.tied else 1
        with rules.scope():
            self.embedding = parameters.kernel(
                (vocab, embed), names, dtype, rngs, rules, fan_in=fan_in
            )
            self.layers = DenseLayer(config, rngs=rngs, rules=rules)
            self.final_norm = parameters.ones((embed,), (None,), rules)
            if not config.tied:
                self.head = parameters.kernel((embed, vocab), names[::-1], dtype, rngs, rules)

    @entry
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
        parent_ids: Int[Array, "B T"] | None = None,
    ) -> DenseOutput:
        """Logits of the token after each token; see `Decoder`.

        Raises ValueError for parents without positions.
        """
        if parent_ids is not None and positions is None:
            raise ValueError(
                "parent_ids are given without positions, and a segment goes on where its parent "
                "ends. Pass the position of every token."
            )
        x, _ = self._whole(tokens, positions, mask, segment_ids, parent_ids)
        return self._output(x)

    @entry
    def prefill(
        self,
        tokens: Int[Array, "B T"],
        mask: Bool[Array, "B T"] | None = None,
        cache: KeyValueCache | None = None,
        start: Int[Array, "B"] | None = None,
    ) -> tuple[DenseOutput, KeyValueCache]:
        """A call that also returns the cache of its T positions, or of the next chunk's.

        Raises ValueError where one of `cache` and `start` is given without the other.
        """
        decoder.refuse_half(cache, start)
        mask = jnp.ones_like(tokens, bool) if mask is None else mask
        rules = self.rules
        if cache is not None and start is not None:
            start, mask = rules.place(start, "act_batch"), rules.place(mask, "act_batch", None)
            position_BT, written_at = decoder.over_chunk(mask, start, cache.key.shape[3])
            x, grown = self._over_cache(tokens, position_BT, written_at, cache)
            return self._output(x), grown
        x, filled = self._whole(tokens, None, mask, None, None)
        return self._output(x), decoder.from_first(filled, mask, CACHE_AXES, rules)

    @entry
    def decode(
        self,
        tokens: Int[Array, "B"],
        positions: Int[Array, "B"],
        cache: KeyValueCache,
        mask: Bool[Array, "B"] | None = None,
    ) -> tuple[Float[Array, "B V"], KeyValueCache]:
        """Logits after one more token of each sequence, and the cache with that token in it."""
        logits, _, cache = self.extend(tokens[:, None], positions, cache, mask)
        return logits[:, 0], cache

    @entry
    def extend(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B"],
        cache: KeyValueCache,
        mask: Bool[Array, "B"] | None = None,
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B T D"], KeyValueCache]:
        """Logits after each of a few more tokens, states after the final norm, and the cache."""
        del mask
        positions = self.rules.place(positions, "act_batch")
        position_BT = positions[:, None] + jnp.arange(tokens.shape[1])[None]
        x, cache = self._over_cache(tokens, position_BT, position_BT, cache)
        output = self._output(x)
        return output.logits, output.hidden, cache

    def _head(self) -> Float[Array, "D V"]:
        return self.embedding[...].T if self.config.tied else self.head[...]

    def _whole(
        self,
        tokens: Numbers,
        positions: Numbers | None,
        mask: Mask | None,
        segment_ids: Numbers | None,
        parent_ids: Numbers | None,
    ) -> tuple[States, KeyValueCache]:
        rules = self.rules
        positions, segment_ids, keys = self._keys(tokens, positions, mask, segment_ids)
        parent_ids = segment_ids if parent_ids is None else parent_ids
        tokens, positions, segment_ids, parent_ids, index = (
            rules.place(a, "act_batch", "act_length")
            for a in (tokens, positions, segment_ids, parent_ids, keys[1])
        )
        view = View(segment_ids, parent_ids, index, *keys)
        turn = self._turn(positions)

        def step(x: States, layer: DenseLayer, _: Any) -> tuple[States, tuple[Array, ...]]:
            cached: list[Float[Array, "KV B S H"]] = []

            def attend(attention: GroupedAttention, normed: States) -> States:
                key, value = (
                    jnp.moveaxis(rules.place(a, "act_batch", "act_keys", "heads", None), 2, 0)
                    for a in attention.keys_and_values(normed, turn)
                )
                cached.extend((key, value))
                return attention.mixed(normed, attention.queries(normed, turn), key, value, view)

            return layer(x, attend), tuple(cached)

        x, cached = self._scan(step, self._word(tokens), self._remat)
        return x, KeyValueCache(*cached)

    def _over_cache(
        self, tokens: Numbers, position_BT: Numbers, written_at: Numbers, cache: KeyValueCache
    ) -> tuple[States, KeyValueCache]:
        rules = self.rules
        tokens, position_BT, written_at = (
            rules.place(a, "act_batch", None) for a in (tokens, position_BT, written_at)
        )
        view = View.of_cache(position_BT, cache.key.shape[3])
        turn = self._turn(position_BT)

        def step(
            carry: tuple[States, KeyValueCache], layer: DenseLayer, index: Int[Array, ""]
        ) -> tuple[tuple[States, KeyValueCache], None]:
            x, cache = carry

            def attend(attention: GroupedAttention, normed: States) -> States:
                nonlocal cache
                new = attention.keys_and_values(normed, turn)
                cache = cache.write(index, *new, written_at, rules)
                query = attention.queries(normed, turn)
                entries = cache.key[index], cache.value[index]
                return attention.mixed(normed, query, *entries, view, length=None)

            x = layer(x, attend)
            return (x, cache), None

        (x, cache), _ = self._scan(step, (self._word(tokens), cache))
        return x, cache

    def _remat(self, body: Body[Carry, Out]) -> Body[Carry, Out]:
        if self.config.remat == "layer":
            return jax.checkpoint(body, prevent_cse=False)
        if self.rules.mesh is not None or self.rules.platform != "cpu":
            return body
        # for a CPU it is less work to make the rest again than to keep it
        kept = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(body, prevent_cse=False, policy=kept)

    def _turn(self, positions: Int[Array, "B T"]) -> Turn:
        c = self.config
        return turn(positions, c.head_dim, c.rope_theta, c.rope)

    def _output(self, x: States) -> DenseOutput:
        hidden = self._normed(x)
        return DenseOutput(self.logits_of(hidden), hidden)


def init_weights(config: DenseConfig, key: Array, rules: ShardingRules | None = None) -> Made:
    """The graph and fresh weights; see `decoder.init`."""
    return decoder.init(DenseDecoder, config, key, rules)


def abstract_weights(config: DenseConfig, rules: ShardingRules | None = None) -> Made:
    """The graph and the abstract weights; see `decoder.abstract`."""
    return decoder.abstract(DenseDecoder, config, rules)
