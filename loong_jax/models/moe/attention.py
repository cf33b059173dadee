"""Multi-head latent attention: queries through a low rank, keys and values through one latent.

Only the latent c (C wide) and one rotary key (R wide, shared by all heads) are cached per token.
Training and prefill expand c into the keys and values of every head; decoding folds that expansion
into the query and the output instead and attends over the latents themselves. Both are the same
function. alpha_q and alpha_kv undo the variance lost to the ranks; they are folded into the float32
weights of the norms on the latents. Source: arXiv:2509.01322, section 2.3; arXiv:2412.19437, 2.1.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe import parameters
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.norm import rms_norm
from loong_jax.sharding import ShardingRules


class Latent(NamedTuple):
    """What one attention keeps of each token."""

    latent: Float[Array, "B S C"]  # after its norm and alpha_kv
    rope_key: Float[Array, "B S R"]  # rotated; first components of all pairs, then the second


def rotate(
    x: Float[Array, "B T *heads R"], position: Int[Array, "B T"], theta: float
) -> Float[Array, "B T *heads R"]:
    """Rotary embedding over neighbouring pairs (0, 1), (2, 3), ..., in float32.

    The result holds the first components of all pairs, then the second: queries and keys are
    permuted alike, so scores do not see it.
    """
    width = x.shape[-1]
    inverse_frequency = theta ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle = position.astype(jnp.float32)[..., None] * inverse_frequency[None, None]
    angle = angle.reshape(*position.shape, *(1,) * (x.ndim - 3), width // 2)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], width // 2, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


class LatentAttention(nnx.Module):
    """One attention of every logical layer; methods expect one layer's slice of the weights."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        c, dtype = config, config.param_dtype
        num_layers, heads = c.num_layers, c.num_heads
        self.query_down = parameters.kernel(
            (num_layers, c.hidden_size, c.q_lora_rank),
            ("layers", "embed", "q_rank"),
            dtype,
            rngs,
            rules,
        )
        self.query_norm = parameters.ones((num_layers, c.q_lora_rank), ("layers", None), rules)
        self.query_up = parameters.kernel(
            (num_layers, c.q_lora_rank, heads, c.qk_nope_head_dim + c.qk_rope_head_dim),
            ("layers", "q_rank", "heads", "head_width"),
            dtype,
            rngs,
            rules,
            fan_in=c.hidden_size,  # alpha_q makes the input as strong as D values
        )
        self.latent_down = parameters.kernel(
            (num_layers, c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim),
            ("layers", "embed", "kv_rank"),
            dtype,
            rngs,
            rules,
        )
        self.latent_norm = parameters.ones((num_layers, c.kv_lora_rank), ("layers", None), rules)
        self.latent_up = parameters.kernel(
            (num_layers, c.kv_lora_rank, heads, c.qk_nope_head_dim + c.v_head_dim),
            ("layers", "kv_rank", "heads", "head_width"),
            dtype,
            rngs,
            rules,
            fan_in=c.hidden_size,  # alpha_kv, likewise
        )
        self.out = parameters.kernel(
            (num_layers, heads, c.v_head_dim, c.hidden_size),
            ("layers", "heads", "head_width", "embed"),
            dtype,
            rngs,
            rules,
            fan_in=heads * c.v_head_dim,
        )

    def queries(
        self, x: Float[Array, "B T D"], position: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B T N R"]]:
        """Unrotated and rotated parts of the query of every head, times the scale of scores."""
        config, rules = self.config, self.rules
        down_DQ = rules.gather(self.query_down[...], "embed", "q_rank")
        up_QNh = rules.gather(self.query_up[...], "q_rank", "heads", "head_width")
        compressed = jnp.einsum("BTD,DQ->BTQ", x, down_DQ)
        norm_weight = self.query_norm[...] * (config.q_scale * config.attention_scale)
        compressed = rms_norm(compressed, norm_weight, config.lora_norm_eps)
        query = jnp.einsum("BTQ,QNh->BTNh", compressed, up_QNh)
        nope, rope = jnp.split(query, [config.qk_nope_head_dim], axis=-1)
        return nope, rotate(rope, position, config.rope_theta)

    def compress(self, x: Float[Array, "B T D"], position: Int[Array, "B T"]) -> Latent:
        """The latent and the rotary key of every token, as they are cached."""
        config, rules = self.config, self.rules
        down_Dc = rules.gather(self.latent_down[...], "embed", "kv_rank")
        compressed = jnp.einsum("BTD,Dc->BTc", x, down_Dc)
        latent, rope_key = jnp.split(compressed, [config.kv_lora_rank], axis=-1)
        norm_weight = self.latent_norm[...] * config.kv_scale
        latent = rms_norm(latent, norm_weight, config.lora_norm_eps)
        return Latent(latent, rotate(rope_key[:, :, None], position, config.rope_theta)[:, :, 0])

    def _up(self) -> tuple[Float[Array, "C N H"], Float[Array, "C N U"]]:
        up = self.rules.gather(self.latent_up[...], "kv_rank", "heads", "head_width")
        return tuple(jnp.split(up, [self.config.qk_nope_head_dim], axis=-1))

    def _project_out(
        self, mixed: Float[Array, "B T N U"], x: Float[Array, "B T D"]
    ) -> Float[Array, "B T D"]:
        out_NUD = self.rules.gather(self.out[...], "heads", "head_width", "embed")
        return jnp.einsum("BTNU,NUD->BTD", mixed, out_NUD, out_sharding=self.rules.like(x))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        allowed: Bool[Array, "B T S"],
    ) -> tuple[Float[Array, "B T D"], Latent]:
        """Expanded form over the tokens of `x` itself; returns what a cache would keep as well.

        `allowed[b, t, s]` is true where query t may see key s. A query that may see none gets the
        mean of all values: finite, and meant to be masked by the caller.
        """
        rules = self.rules
        nope_BTNH, rope_BTNR = self.queries(x, position)
        # Queries stay sharded over their length; every one of them meets all keys.
        cached = jax.tree.map(
            lambda a: rules.place(a, "act_batch", "act_keys", "act_rank"),
            self.compress(x, position),
        )
        key_up_CNH, value_up_CNU = self._up()
        key_BSNH = jnp.einsum("BSC,CNH->BSNH", cached.latent, key_up_CNH)
        value_BSNU = jnp.einsum("BSC,CNU->BSNU", cached.latent, value_up_CNU)
        query = rules.partition("act_batch", "act_length", "act_heads", None)
        key = rules.partition("act_batch", "act_keys", "act_heads", None)
        attend = rules.shard_map(
            attend_in_chunks,
            in_specs=(
                query,
                query,
                key,
                rules.partition("act_batch", "act_keys", None),
                key,
                rules.partition("act_batch", "act_length", "act_keys"),
            ),
            out_specs=query,
        )
        mixed_BTNU = attend(nope_BTNH, rope_BTNR, key_BSNH, cached.rope_key, value_BSNU, allowed)
        return self._project_out(mixed_BTNU, x), cached

    def absorbed(
        self,
        x: Float[Array, "B T D"],
        position: Int[Array, "B T"],
        allowed: Bool[Array, "B T S"],
        cached: Latent,
    ) -> Float[Array, "B T D"]:
        """The same function over cached latents, which are never expanded."""
        nope_BTNH, rope_BTNR = self.queries(x, position)
        key_up_CNH, value_up_CNU = self._up()
        query_BTNC = jnp.einsum("BTNH,CNH->BTNC", nope_BTNH, key_up_CNH)
        score_BNTS = jnp.einsum("BTNC,BSC->BNTS", query_BTNC, cached.latent)
        score_BNTS += jnp.einsum("BTNR,BSR->BNTS", rope_BTNR, cached.rope_key)
        weight_BNTS, total_BNT = attention_weights(score_BNTS, allowed)
        latent_BTNC = jnp.einsum("BNTS,BSC->BTNC", weight_BNTS.astype(x.dtype), cached.latent)
        latent_BTNC = (latent_BTNC / jnp.moveaxis(total_BNT, 1, 2)[..., None]).astype(x.dtype)
        mixed_BTNU = jnp.einsum("BTNC,CNU->BTNU", latent_BTNC, value_up_CNU)
        return self._project_out(mixed_BTNU, x)


def attend_in_chunks(
    nope: Float[Array, "B T N H"],
    rope: Float[Array, "B T N R"],
    key: Float[Array, "B S N H"],
    rope_key: Float[Array, "B S R"],
    value: Float[Array, "B S N U"],
    allowed: Bool[Array, "B T S"],
) -> Float[Array, "B T N U"]:
    """Attention a few sequences at a time, recomputed in the backward pass.

    The scores of one chunk stay in the cache of a CPU core, which makes forward and backward 3
    times as fast there as scores of the whole batch, and those of all chunks never exist at once.
    """

    @jax.checkpoint
    def one_sequence(sequence):
        nope_TNH, rope_TNR, key_SNH, rope_key_SR, value_SNU, allowed_TS = sequence
        shared_SNR = jnp.broadcast_to(
            rope_key_SR[:, None], (*key_SNH.shape[:2], rope_key_SR.shape[-1])
        )
        query_TNh = jnp.concatenate([nope_TNH, rope_TNR], axis=-1)
        key_SNh = jnp.concatenate([key_SNH, shared_SNR], axis=-1)
        score_NTS = jnp.einsum("TNh,SNh->NTS", query_TNh, key_SNh)
        weight_NTS, total_NT = attention_weights(score_NTS, allowed_TS)
        mixed_NTU = jnp.einsum("NTS,SNU->NTU", weight_NTS.astype(value.dtype), value_SNU)
        return jnp.moveaxis((mixed_NTU / total_NT[..., None]).astype(value.dtype), 0, 1)

    num_scores = nope.shape[1] * nope.shape[2] * key.shape[1]
    chunk = min(nope.shape[0], max(1, SCORES_PER_CHUNK // num_scores))
    sequences = (nope, rope, key, rope_key, value, allowed)
    return jax.lax.map(one_sequence, sequences, batch_size=chunk)


SCORES_PER_CHUNK = 2**18  # a megabyte in float32


def attention_weights(
    score: Float[Array, "... N T S"], allowed: Bool[Array, "... T S"]
) -> tuple[Float[Array, "... N T S"], Float[Array, "... N T"]]:
    """Softmax over the keys in float32 before its division, and what to divide by.

    The caller divides after multiplying by values, which are fewer than keys. Heads come before T
    in `score` and are missing in `allowed`. The largest weight of every query is 1.
    """
    allowed = jnp.expand_dims(allowed, -3)
    score = jnp.where(allowed, score.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    largest = jax.lax.stop_gradient(jnp.max(score, axis=-1, keepdims=True))
    weight = jnp.exp(score - largest)
    return weight, jnp.sum(weight, axis=-1)
