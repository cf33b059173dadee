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
from loong_jax.models.moe.dense import in_chunks, project
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
            ("layers", "rank", "heads", "head_width"),
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
            ("layers", "rank", "heads", "head_width"),
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
        up_QNh = rules.gather(self.query_up[...], "rank", "heads", "head_width")
        norm_weight = self.query_norm[...] * (config.q_scale * config.attention_scale)
        compressed_BTQ = rms_norm(project(x, down_DQ), norm_weight, config.lora_norm_eps)
        query = project(compressed_BTQ, up_QNh)
        nope, rope = jnp.split(query, [config.qk_nope_head_dim], axis=-1)
        return nope, rotate(rope, position, config.rope_theta)

    def compress(self, x: Float[Array, "B T D"], position: Int[Array, "B T"]) -> Latent:
        """The latent and the rotary key of every token, as they are cached."""
        config, rules = self.config, self.rules
        down_Dc = rules.gather(self.latent_down[...], "embed", "kv_rank")
        latent, rope_key = jnp.split(project(x, down_Dc), [config.kv_lora_rank], axis=-1)
        norm_weight = self.latent_norm[...] * config.kv_scale
        latent = rms_norm(latent, norm_weight, config.lora_norm_eps)
        return Latent(latent, rotate(rope_key[:, :, None], position, config.rope_theta)[:, :, 0])

    def _up(self) -> tuple[Float[Array, "C N H"], Float[Array, "C N U"]]:
        up = self.rules.gather(self.latent_up[...], "rank", "heads", "head_width")
        keys, values = jnp.split(up, [self.config.qk_nope_head_dim], axis=-1)
        return keys, values

    def _project_out(
        self, mixed: Float[Array, "B T N U"], x: Float[Array, "B T D"]
    ) -> Float[Array, "B T D"]:
        out_NUD = self.rules.gather(self.out[...], "heads", "head_width", "embed")
        return project(mixed, out_NUD, num_contracted=2, out_sharding=self.rules.like(x))

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
        rows = self.config.chunk_rows(x.shape[1]) if self.rules.mesh is None else None
        return in_chunks(self._expanded, (x, position, allowed), rows)

    def _expanded(self, x, position, allowed):
        rules = self.rules
        nope_BTNH, rope_BTNR = self.queries(x, position)
        # Queries stay sharded over their length; every one of them meets all keys.
        cached = jax.tree.map(
            lambda a: rules.place(a, "act_batch", "act_keys", "act_rank"),
            self.compress(x, position),
        )
        key_up_CNH, value_up_CNU = self._up()
        key_BSNH = project(cached.latent, key_up_CNH)
        value_BSNU = project(cached.latent, value_up_CNU)
        shared_BSNR = jax.lax.broadcast_in_dim(
            cached.rope_key,
            (*key_BSNH.shape[:3], self.config.qk_rope_head_dim),
            (0, 1, 3),
            out_sharding=rules.like(key_BSNH),
        )
        query_BTNh = jnp.concatenate([nope_BTNH, rope_BTNR], axis=-1)
        key_BSNh = jnp.concatenate([key_BSNH, shared_BSNR], axis=-1)
        score_BNTS = jnp.einsum("BTNh,BSNh->BNTS", query_BTNh, key_BSNh)
        weight_BNTS, total_BNT = attention_weights(score_BNTS, allowed)
        mixed_BNTU = jnp.einsum("BNTS,BSNU->BNTU", weight_BNTS.astype(x.dtype), value_BSNU)
        mixed_BNTU = (mixed_BNTU / total_BNT[..., None]).astype(x.dtype)
        return self._project_out(jnp.moveaxis(mixed_BNTU, 1, 2), x), cached

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
        # Heads before queries: a product over the cache then has all queries of a sequence as rows.
        query_BNTC = jnp.einsum("BTNH,CNH->BNTC", nope_BTNH, key_up_CNH)
        score_BNTS = jnp.einsum("BNTC,BSC->BNTS", query_BNTC, cached.latent)
        rope_BNTR = jnp.moveaxis(rope_BTNR, 2, 1)
        score_BNTS += jnp.einsum("BNTR,BSR->BNTS", rope_BNTR, cached.rope_key)
        weight_BNTS, total_BNT = attention_weights(score_BNTS, allowed)
        latent_BNTC = jnp.einsum("BNTS,BSC->BNTC", weight_BNTS.astype(x.dtype), cached.latent)
        latent_BNTC = (latent_BNTC / total_BNT[..., None]).astype(x.dtype)
        mixed_BTNU = jnp.einsum("BNTC,CNU->BTNU", latent_BNTC, value_up_CNU)
        return self._project_out(mixed_BTNU, x)


def attention_weights(
    score: Float[Array, "B N T S"], allowed: Bool[Array, "B T S"]
) -> tuple[Float[Array, "B N T S"], Float[Array, "B N T"]]:
    """Softmax over the keys in float32 before its division, and what to divide by.

    The caller divides the mixed values instead of the weights: there are U of them, not S. The
    largest weight of every query is 1.
    """
    score = jnp.where(allowed[:, None], score.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    largest = jax.lax.stop_gradient(jnp.max(score, axis=-1, keepdims=True))
    weight = jnp.exp(score - largest)
    return weight, jnp.sum(weight, axis=-1)
