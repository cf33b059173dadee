"""The n-gram embedding: hashed tables that tell the input which tokens came just before.

    x_t = (word(t) + sum over tables i of P_i table_i[h_i(t)]) / (1 + number of tables)
    h_i(t) = sum over j < order of token_{t-j} V^j   mod the rows of table i

A token that the n-gram does not reach counts as token 0: there is none, or an end of sequence lies
between. Source: arXiv:2601.21204; the hash and its reach are those of the released code.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from loong_jax.errors import ConfigError
from loong_jax.models import parameters
from loong_jax.models.decoder import Mask, Numbers
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.products import project
from loong_jax.sharding import ShardingRules


class NgramTables(nnx.Module):
    """All tables, one below the other, cut along their width; and the projection of each."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        assert config.ngram is not None
        self.config, self.ngram, self.rules = config, config.ngram, rules
        embed, num_tables = config.hidden_size, len(config.ngram.rows)
        width = embed // num_tables
        dtype = config.param_dtype
        self.table = parameters.kernel(
            (sum(config.ngram.rows), width), (None, "ngram_width"), dtype, rngs, rules, fan_in=1
        )
        self.projection = parameters.kernel(
            (num_tables, width, embed), (None, None, "embed"), dtype, rngs, rules
        )

    def __call__(
        self, word: Float[Array, "B T D"], recent: Int[Array, "B T order"]
    ) -> Float[Array, "B T D"]:
        """The input of the first layer, from the embedding of each token and `recent_tokens`."""
        rows = self.ngram.rows
        first = np.cumsum([0, *rows[:-1]])
        row_BTi = jnp.stack(
            [
                hashed(recent[..., :order], self.config.vocab_size, modulus)
                for order, modulus in zip(self.ngram.orders, rows, strict=True)
            ],
            axis=-1,
        )
        row_BTi = row_BTi + jnp.asarray(first, jnp.int32)[None, None]
        found_BTiw = self.rules.take(self.table[...], row_BTi, dtype=word.dtype)
        projection = self.projection[...].astype(word.dtype)
        projection = self.rules.gather(projection, None, None, "embed")
        added = project(
            found_BTiw,
            projection,
            num_contracted=2,
            out_sharding=self.rules.like(word),
            out_dtype=jnp.float32,
        )
        return ((word.astype(jnp.float32) + added) / (1 + len(rows))).astype(word.dtype)

    def recent_of_rows(self, tokens: Numbers, segment_ids: Numbers) -> Int[Array, "B T order"]:
        """`recent_tokens` of whole rows, where segment 0 is padding."""
        rules, num_tokens = self.rules, tokens.shape[1]
        whole = rules.place(tokens, "act_batch", "act_keys")
        padded = jnp.pad(segment_ids, ((0, 0), (self.ngram.max_order - 1, 0)))
        end, orders = padded.shape[1], range(self.ngram.max_order)
        before = [padded[:, end - num_tokens - j : end - j] for j in orders]
        seen = jnp.stack([(b == segment_ids) & (segment_ids > 0) for b in before], axis=-1)
        recent = recent_tokens(whole, seen, self.ngram)
        return rules.place(recent, "act_batch", "act_length", None)

    def recent_of_few(
        self, tokens: Numbers, position: Numbers, history: Int[Array, "B before"] | None
    ) -> Int[Array, "B T order"]:
        """`recent_tokens` of a few at these positions, behind the last ones of `history`.

        Raises ConfigError where there is none.
        """
        distance = jnp.arange(self.ngram.max_order)
        seen = position[..., None] >= distance[None, None]
        before = self.rules.place(_given(history), "act_batch")
        return recent_tokens(jnp.concatenate([before, tokens], axis=1), seen, self.ngram)

    def recent_of_chunk(
        self,
        tokens: Numbers,
        mask: Mask,
        start: Int[Array, "B"],
        history: Int[Array, "B before"] | None,
    ) -> Int[Array, "B T order"]:
        """The same of sequences that have `start` tokens already, for the next ones.

        Those in `mask` stand together, with padding on either side, whose rows mean nothing.
        """
        rules = self.rules
        batch, whole = rules.partition("act_batch"), rules.partition("act_batch", "act_keys")

        def on_one_device(tokens, mask, start, history):
            num_tokens = tokens.shape[1]
            first_B1 = jnp.argmax(mask, axis=1)[:, None]
            index_1T = jnp.arange(num_tokens)[None]
            tokens = jnp.take_along_axis(tokens, (index_1T + first_B1) % num_tokens, axis=1)
            position_BT = start[:, None] + index_1T
            seen = position_BT[..., None] >= jnp.arange(self.ngram.max_order)[None, None]
            recent = recent_tokens(jnp.concatenate([history, tokens], axis=1), seen, self.ngram)
            back_BT = (index_1T - first_B1) % num_tokens
            return jnp.take_along_axis(recent, back_BT[..., None], axis=1)

        specs = whole, whole, batch, batch
        local = rules.shard_map(on_one_device, in_specs=specs, out_specs=batch)
        recent = local(tokens, mask, start, rules.place(_given(history), "act_batch"))
        return rules.place(recent, "act_batch", "act_length", None)


def _given(history: Int[Array, "B before"] | None) -> Int[Array, "B before"]:
    if history is None:
        raise ConfigError(
            "the n-gram embedding needs the tokens before these, and there are none. Pass "
            "history, the last max_order - 1 tokens of every sequence."
        )
    return history


def hashed(
    recent: Int[Array, "*batch order"], vocab_size: int, modulus: int
) -> Int[Array, "*batch"]:
    """sum_j recent[j] vocab_size^j mod `modulus`, which must be below 2^31, in 32-bit integers."""
    token = recent.astype(jnp.uint32) % modulus
    total = token[..., -1]
    for j in reversed(range(recent.shape[-1] - 1)):
        total = (_times(total, vocab_size, modulus) + token[..., j]) % modulus
    return total.astype(jnp.int32)


def _times(x: UInt32[Array, "*batch"], factor: int, modulus: int) -> UInt32[Array, "*batch"]:
    """x * factor mod `modulus`, for x below it, by digits of `factor` too small to overflow."""
    bits = 32 - modulus.bit_length()
    factor %= modulus
    digits = [(factor >> at) & ((1 << bits) - 1) for at in range(0, factor.bit_length(), bits)]
    product = jnp.zeros_like(x)
    for digit in reversed(digits):
        product = ((product << bits) % modulus + (x * jnp.uint32(digit)) % modulus) % modulus
    return product


def recent_tokens(
    tokens: Int[Array, "B S"], seen: Bool[Array, "B T order"], ngram: NgramEmbedding
) -> Int[Array, "B T order"]:
    """Entry j is token t - j, or 0 where the n-gram does not reach it.

    `tokens` may have more columns on the left than `seen`; `seen[b, t, j]` is true where token
    t - j belongs to the sequence of token t.
    """
    num_tokens = seen.shape[1]
    padded = jnp.pad(tokens, ((0, 0), (ngram.max_order - 1, 0)))
    end = padded.shape[1]
    columns, reached = [], jnp.ones_like(seen[..., 0])
    for j in range(ngram.max_order):
        token = padded[:, end - num_tokens - j : end - j]
        reached &= seen[..., j] & (token != ngram.eos_token if j else True)
        columns.append(jnp.where(reached, token, 0))
    return jnp.stack(columns, axis=-1)
