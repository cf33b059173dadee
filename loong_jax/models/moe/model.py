"""LongCat-Flash: embedding, shortcut-connected layers, final norm and an untied head.

Ways in: a call over whole sequences, `prefill`, which also fills a cache, and over that cache
`decode`, one token per sequence, or `extend`, a few at once. Beside these `draft` and
`draft_extend` run the head that drafts one more token, where the config has one. Weights are
plain nested dicts; see `init_weights`. Source: arXiv:2509.01322.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.models import decoder, parameters
from loong_jax.models.decoder import Body, Carry, Decoder, Made, Mask, Numbers, Out, States
from loong_jax.models.entry import entry
from loong_jax.models.moe import context, core_attention, ngram
from loong_jax.models.moe.attention import AXES, ENTRY_AXES, Latent, LatentAttention, LatentCache
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.experts import DISPATCHED
from loong_jax.models.moe.kernels import AttentionMask, cudnn
from loong_jax.models.moe.layer import ShortcutLayer
from loong_jax.models.moe.mtp import MtpHead
from loong_jax.models.moe.router import LayerStatistics
from loong_jax.sharding import ShardingRules


class ModelOutput(NamedTuple):
    logits: Float[Array, "B T V"]  # float32
    load: Int[Array, "L A"]  # unmasked tokens that chose each target
    score_sum: Float[Array, "L A"]  # float32, sum over unmasked tokens of router probabilities
    hidden: Float[Array, "B T D"]  # after the final norm
    target: Int[Array, "L B T K"]  # the choices of every token
    num_overflowed: Int[Array, "L"]  # choices that waited for a later round of the exchange
    own_target: Int[Array, "L B T K"] | None = None  # the routers' own, where choices were forced


class _Rows(NamedTuple):
    """Whole sequences as the layers see them, each array where it belongs on the mesh.

    Tokens are in the order of their sequence, all else in that of `context.order`.
    """

    tokens: Int[Array, "B T"]
    recent: Int[Array, "B T order"] | None  # the last ones up to each token, for n-gram embeddings
    positions: Int[Array, "B T"]
    mask: Bool[Array, "B T"]
    attention_mask: AttentionMask
    forced_target: Int[Array, "L B T K"] | None = None


# The attention of a sub-layer over a cache: its number, normed inputs, the cache, and the layer.
OverCache: TypeAlias = Callable[[int, LatentAttention, States, LatentCache, Int[Array, ""]], States]


class LongcatFlash(Decoder):
    """The model."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules | None = None):
        super().__init__(config, rules)
        rules, dtype = self.rules, config.param_dtype
        vocab, embed = config.vocab_size, config.hidden_size
        with rules.scope():
            self.embedding = parameters.kernel(
                (vocab, embed), ("vocab", "vocab_embed"), dtype, rngs, rules, fan_in=1
            )
            if config.ngram is not None:
                self.ngram = ngram.NgramTables(config, rngs=rngs, rules=rules)
            self.layers = ShortcutLayer(config, rngs=rngs, rules=rules)
            self.final_norm = parameters.ones((embed,), (None,), rules)
            self.head = parameters.kernel(
                (embed, vocab), ("vocab_embed", "vocab"), dtype, rngs, rules
            )
            if config.num_mtp_layers:
                self.mtp = MtpHead(config, rngs=rngs, rules=rules)

    @entry
    def __call__(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
        score_shift: Float[Array, "L A"] | None = None,
        forced_target: Int[Array, "L B T K"] | None = None,
        parent_ids: Int[Array, "B T"] | None = None,
    ) -> ModelOutput:
        """Logits of the token after each token.

        The arguments of every family are those of `Decoder`; padding counts in no load.
        `score_shift` is added to the router scores of every token (see `balance.stability_ratio`).

        With `forced_target`, the `target` of another call or of an engine, tokens go there, to
        zero-computation experts too, and gates are what the routers' own scores give those targets;
        a token with -1 or another number outside [0, A) among its choices in a layer, or with one
        of them twice, is routed freely there. `own_target` then says what the routers would have
        chosen.

        Raises ValueError for parents without positions, or with n-gram embeddings, whose tokens see
        those that stand before them.
        """
        if parent_ids is not None and (positions is None or self.config.ngram is not None):
            raise ValueError(
                "parent_ids need positions, since a segment goes on where its parent ends, and a "
                "model without n-gram embeddings. Give positions, or let each segment have its own "
                "prompt."
            )
        rows = self._rows(tokens, positions, mask, segment_ids, forced_target, parent_ids)
        output, _ = self._whole(rows, score_shift)
        return output

    @entry
    def prefill(
        self,
        tokens: Int[Array, "B T"],
        mask: Bool[Array, "B T"] | None = None,
        cache: LatentCache | None = None,
        start: Int[Array, "B"] | None = None,
        history: Int[Array, "B before"] | None = None,
    ) -> tuple[ModelOutput, LatentCache]:
        """A call that also returns the cache of its T positions; with `cache`, the next chunk.

        `history` is that of `extend`: the tokens before these.

        Raises:
          ValueError: one of `cache` and `start` is given without the other.
          ConfigError: a chunk without history for a model with an n-gram embedding.
        """
        mask = jnp.ones_like(tokens, bool) if mask is None else mask
        decoder.refuse_half(cache, start)
        if cache is None or start is None:
            output, filled = self._whole(self._rows(tokens, None, mask, None), None)
            return output, decoder.from_first(filled, mask, AXES, self.rules)
        rules, capacity = self.rules, cache.latent.shape[3]
        start = rules.place(start, "act_batch")
        tokens, mask = (rules.place(a, "act_batch", "act_keys") for a in (tokens, mask))
        recent = None
        if self.config.ngram is not None:
            recent = self.ngram.recent_of_chunk(tokens, mask, start, history)
        positions, written_at = decoder.over_chunk(mask, start, capacity)
        key_segment_BS = jnp.ones_like(cache.latent[0, 0, :, :, 0], jnp.int32)
        key_index_BS = jnp.arange(capacity)[None] * key_segment_BS
        tokens, positions, mask = (
            rules.place(a, "act_batch", "act_length") for a in (tokens, positions, mask)
        )
        seen = AttentionMask(mask.astype(jnp.int32), positions, key_segment_BS, key_index_BS)

        x, statistics, cache = self._over_cache(
            self._embed(tokens, recent),
            positions,
            written_at,
            mask,
            cache,
            lambda i, attention, normed, cache, layer: attention.over_cache(
                normed, positions, seen, cache.read(layer, i)
            ),
        )
        return self._output(x, statistics), cache

    @entry
    def draft(
        self,
        hidden: Float[Array, "B T D"],
        next_tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T V"], Latent]:
        """The drafting head's logits of the token after the next one, and its cache.

        Row i joins `hidden[:, i]`, of a call or a prefill over the same rows, and the token that
        follows row i; the other arguments are those of that call.
        """
        x, cached = self.draft_states(hidden, next_tokens, positions, mask, segment_ids)
        return self.logits_of(x), cached

    @entry
    def draft_states(
        self,
        hidden: Float[Array, "B T D"],
        next_tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        segment_ids: Int[Array, "B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Latent]:
        """The states of `draft`, which `logits_of` takes."""
        rules, rows = self.rules, self._rows(next_tokens, positions, mask, segment_ids)
        hidden = rules.place(hidden, "act_batch", "act_length", "act_embed")
        hidden, word = (context.enter(a, rules) for a in (hidden, self._word(rows.tokens)))
        x, cached = self._drafting_head()(hidden, word, rows.positions, rows.attention_mask)
        cached = Latent(*(context.leave(a, rules) for a in cached))
        return context.leave(x, rules), decoder.placed(cached, ENTRY_AXES, rules)

    @entry
    def draft_extend(
        self,
        hidden: Float[Array, "B T D"],
        next_tokens: Int[Array, "B T"],
        positions: Int[Array, "B"],
        cache: Latent,
    ) -> tuple[Float[Array, "B T V"], Latent]:
        """Drafts for T more rows of each sequence, the first at `positions`, over a cache."""
        hidden, next_tokens, positions = (
            self.rules.place(a, "act_batch") for a in (hidden, next_tokens, positions)
        )
        x, cache = self._drafting_head().extend(hidden, self._word(next_tokens), positions, cache)
        return self.logits_of(x), cache

    def _drafting_head(self) -> MtpHead:
        if not self.config.num_mtp_layers:
            raise ConfigError(
                "num_mtp_layers=0: this model has no drafting head. Set it to 1 and load or train "
                "the head, or decode without drafts."
            )
        return self.mtp

    def _rows(
        self,
        tokens: Numbers,
        positions: Numbers | None,
        mask: Mask | None,
        segment_ids: Numbers | None,
        forced_target: Int[Array, "L B T K"] | None = None,
        parent_ids: Numbers | None = None,
    ) -> _Rows:
        rules = self.rules
        positions, segment_ids, keys = self._keys(tokens, positions, mask, segment_ids)
        recent = None
        if self.config.ngram is not None:
            recent = self.ngram.recent_of_rows(tokens, keys[0])
        tokens, *others = (
            rules.place(a, "act_batch", "act_length")
            for a in (tokens, positions, segment_ids, keys[1])
        )
        positions, segment_ids, index = (context.enter(a, rules) for a in others)
        if parent_ids is not None:
            parent_ids = rules.place(parent_ids, "act_batch", "act_length")
            parent_ids = context.enter(parent_ids, rules)
        attention_mask = AttentionMask(segment_ids, index, *keys, parent_ids)
        if forced_target is not None:
            forced_BTLK = jnp.moveaxis(forced_target.astype(jnp.int32), 0, 2)
            placed = rules.place(forced_BTLK, "act_batch", "act_length", None, None)
            forced_target = jnp.moveaxis(context.enter(placed, rules), 2, 0)
        return _Rows(tokens, recent, positions, segment_ids > 0, attention_mask, forced_target)

    def _whole(
        self, rows: _Rows, score_shift: Float[Array, "L A"] | None
    ) -> tuple[ModelOutput, LatentCache]:
        rules = self.rules

        def step(x, layer, index):
            cached: list[Latent] = []

            def attend(_: int, attention: LatentAttention, normed: States) -> States:
                out, new = attention(normed, rows.positions, rows.attention_mask)
                cached.append(new)
                return out

            shift = None if score_shift is None else score_shift[index]
            forced = None if rows.forced_target is None else rows.forced_target[index]
            x, statistics = layer(x, rows.mask, attend, shift, forced)
            return x, (statistics, jax.tree.map(lambda *a: jnp.stack(a), *cached))

        x = context.enter(self._embed(rows.tokens, rows.recent), rules)
        x, (statistics, cached) = self._scan(step, x, self._remat)
        left = {"target": context.leave(statistics.target, rules, axis=2)}
        if statistics.own_target is not None:
            left["own_target"] = context.leave(statistics.own_target, rules, axis=2)
        output = self._output(context.leave(x, rules), statistics._replace(**left))
        return output, LatentCache(*(context.leave(a, rules, axis=3) for a in cached))

    def _remat(self, body: Body[Carry, Out]) -> Body[Carry, Out]:
        """`body` of the scan, keeping for its backward pass what the config says."""
        names = self.config.remat
        if names == "off":
            return body
        if isinstance(names, str):
            names = (DISPATCHED,) if names == "all_but_dispatched" else ()
        policy = jax.checkpoint_policies.save_only_these_names(*names)
        if cudnn.KEPT_AS in names:
            policy = jax.checkpoint_policies.save_from_both_policies(
                policy, cudnn.is_forward_kernel
            )
        return jax.checkpoint(body, policy=policy, prevent_cse=False)

    @entry
    def decode(
        self,
        tokens: Int[Array, "B"],
        positions: Int[Array, "B"],
        cache: LatentCache,
        mask: Bool[Array, "B"] | None = None,
        history: Int[Array, "B before"] | None = None,
    ) -> tuple[Float[Array, "B V"], LatentCache]:
        """Logits after one more token of each sequence, and the cache with that token in it.

        Sequences outside `mask` meet no expert.
        """
        logits, _, cache = self.extend(tokens[:, None], positions, cache, mask, history)
        return logits[:, 0], cache

    @entry
    def decode_routed(
        self,
        tokens: Int[Array, "B"],
        positions: Int[Array, "B"],
        cache: LatentCache,
        mask: Bool[Array, "B"] | None = None,
        history: Int[Array, "B before"] | None = None,
    ) -> tuple[Float[Array, "B V"], Int[Array, "L B K"], LatentCache]:
        """`decode`, which also returns the targets that the router of every layer chose."""
        x, statistics, cache = self._extend(tokens[:, None], positions, cache, mask, history)
        return self.logits_of(self._normed(x))[:, 0], statistics.target[:, :, 0], cache

    @entry
    def extend(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B"],
        cache: LatentCache,
        mask: Bool[Array, "B"] | None = None,
        history: Int[Array, "B before"] | None = None,
    ) -> tuple[Float[Array, "B T V"], Float[Array, "B T D"], LatentCache]:
        """Logits after each of a few more tokens, states after the final norm, and the cache.

        `history`, needed where the model has an n-gram embedding, holds the tokens before these,
        the last on the right: max_order - 1, or anything in place of those that a sequence does not
        have.
        """
        x, _, cache = self._extend(tokens, positions, cache, mask, history)
        hidden = self._normed(x)
        return self.logits_of(hidden), hidden, cache

    def _extend(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B"],
        cache: LatentCache,
        mask: Bool[Array, "B"] | None,
        history: Int[Array, "B before"] | None,
    ) -> tuple[States, LayerStatistics, LatentCache]:
        """States before the final norm, the statistics of every layer, and the cache."""
        rules, num_tokens = self.rules, tokens.shape[1]
        tokens, positions = (rules.place(a, "act_batch") for a in (tokens, positions))
        position_BT = positions[:, None] + jnp.arange(num_tokens)[None]
        mask = jnp.ones_like(positions, bool) if mask is None else rules.place(mask, "act_batch")
        mask_BT = jnp.repeat(mask[:, None], num_tokens, axis=1)
        recent = None
        if self.config.ngram is not None:
            recent = self.ngram.recent_of_few(tokens, position_BT, history)

        def attend(i, attention, normed, cache: LatentCache, layer):
            entries = core_attention.over_cache(*cache, layer, i, position_BT, rules)
            return attention.absorbed(normed, position_BT, entries)

        x = self._embed(tokens, recent)
        return self._over_cache(x, position_BT, position_BT, mask_BT, cache, attend, few_rows=True)

    def _over_cache(
        self,
        x: States,
        positions: Numbers,
        written_at: Numbers,
        mask: Mask,
        cache: LatentCache,
        attended: OverCache,
        *,
        few_rows: bool = False,
    ) -> tuple[States, LayerStatistics, LatentCache]:
        """The layers over tokens that see a cache and are written to it.

        With `few_rows`, which are not cut along the length, reading the weights is most of the
        work, and those of the experts are left in their stack.
        """
        rules, is_whole = self.rules, few_rows and self.cut is None
        whole = ("experts",) if is_whole and self.layers.experts.rest_ready else ()

        def step(carry, layer, index):
            x, cache = carry

            def attend(i: int, attention: LatentAttention, normed: States) -> States:
                nonlocal cache
                new = attention.compress(normed, positions)
                new = new if few_rows else decoder.placed(new, ENTRY_AXES, rules)
                cache = cache.write(index, i, new, written_at, rules)
                return attended(i, attention, normed, cache, index)

            x, statistics = layer(x, mask, attend)
            return (x, cache), statistics

        (x, cache), statistics = self._scan(step, (x, cache), whole=whole)
        return x, statistics, cache

    def _embed(self, tokens: Numbers, recent: Int[Array, "B T order"] | None) -> States:
        word = self._word(tokens)
        return word if recent is None else self.ngram(word, recent)

    def _output(self, x: Float[Array, "B T D"], statistics: LayerStatistics) -> ModelOutput:
        hidden = self._normed(x)
        return ModelOutput(logits=self.logits_of(hidden), hidden=hidden, **statistics._asdict())


def init_weights(config: MoEConfig, key: Array, rules: ShardingRules | None = None) -> Made:
    """The graph and fresh weights; see `decoder.init`."""
    return decoder.init(LongcatFlash, config, key, rules)


def abstract_weights(config: MoEConfig, rules: ShardingRules | None = None) -> Made:
    """The graph and the abstract weights; see `decoder.abstract`."""
    return decoder.abstract(LongcatFlash, config, rules)
