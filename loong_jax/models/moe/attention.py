"""Multi-head latent attention: queries through a low rank, keys and values through one latent.

Only the latent c (C wide) and one rotary key (R wide, shared by all heads) are cached per token.
Training and prefill expand c into the keys and values of every head; decoding folds that expansion
into the query and the output instead and attends over the latents themselves. Both are the same
function. alpha_q and alpha_kv undo the variance lost to the ranks; they are folded into the float32
weights of the norms on the latents. Source: arXiv:2405.04434, section 2.1,
and, for the alphas, arXiv:2509.01322, section 2.3.
"""

import functools
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from loong_jax.models import decoder, parameters
from loong_jax.models.decoder import Numbers, States
from loong_jax.models.moe import core_attention
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.core_attention import AttendLatents
from loong_jax.models.moe.kernels import AttentionMask, Operands
from loong_jax.models.products import in_chunks, project, project_weight_first, rms_norm, scaled
from loong_jax.models.rope import halves, rotate, turn, turned
from loong_jax.sharding import ShardingRules

LATENTS = "latents"  # the name under which a checkpoint policy finds what the ranks hold, unnormed
ENTRY_AXES = "act_batch", "act_keys", "act_rank"  # logical axes of what is cached
AXES = ("layers", None, *ENTRY_AXES)  # of the cache of all layers


class Latent(NamedTuple):
    """The entries that one attention caches for each token."""

    latent: Float[Array, "B S C"]  # after its norm and alpha_kv
    rope_key: Float[Array, "B S R"]  # rotated; first components of all pairs, then the second


class LatentCache(NamedTuple):
    """Latents and rotary keys of S positions; entry s is position s, whoever wrote it."""

    latent: Float[Array, "L 2 B S C"]
    rope_key: Float[Array, "L 2 B S R"]

    @classmethod
    def zeros(
        cls, config: MoEConfig, batch: int, capacity: int, rules: ShardingRules | None = None
    ) -> "LatentCache":
        """An empty cache for `batch` sequences of at most `capacity` tokens."""
        lead = (config.num_layers, 2, batch, capacity)
        spec = (rules or ShardingRules()).spec_of(lead, *AXES)
        widths = config.kv_lora_rank, config.qk_rope_head_dim
        return cls(*(jnp.zeros((*lead, width), config.dtype, device=spec) for width in widths))

    def read(self, layer: Int[Array, ""], sub_layer: int) -> Latent:
        """The entries of one attention."""
        return Latent(self.latent[layer, sub_layer], self.rope_key[layer, sub_layer])

    def write(
        self,
        layer: Int[Array, ""],
        sub_layer: int,
        new: Latent,
        position: Int[Array, "B T"],
        rules: ShardingRules,
    ) -> "LatentCache":
        """Puts T new entries of one attention into each sequence; see `decoder.written`."""
        return decoder.written(self, new, position, AXES, rules, layer=(layer,), part=(sub_layer,))


class LatentAttention(parameters.Gathering, nnx.Module):
    """One attention of every logical layer; methods expect one layer's slice of the weights."""

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        "query_down": ("embed", "q_rank"),
        "query_up": ("rank", "heads", "head_width"),
        "latent_down": ("embed", "kv_rank"),
        "latent_up": ("rank", "heads", "head_width"),
        "out": ("heads", "head_width", "embed"),
    }

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        self.ahead: parameters.Matrices = None  # its own, gathered ahead of their use
        c, matrix = config, functools.partial(self.fresh, rngs)
        heads, width = c.num_heads, c.hidden_size
        query = c.qk_nope_head_dim + c.qk_rope_head_dim
        key_value = c.qk_nope_head_dim + c.v_head_dim

        def norm(rank: int) -> nnx.Param:
            return parameters.ones((c.num_layers, rank), ("layers", None), rules)

        self.query_down = matrix("query_down", width, c.q_lora_rank)
        self.query_norm = norm(c.q_lora_rank)
        # alpha_q and alpha_kv make the inputs of the next two as strong as D values
        self.query_up = matrix("query_up", c.q_lora_rank, heads, query, fan_in=width)
        self.latent_down = matrix("latent_down", width, c.kv_lora_rank + c.qk_rope_head_dim)
        self.latent_norm = norm(c.kv_lora_rank)
        self.latent_up = matrix("latent_up", c.kv_lora_rank, heads, key_value, fan_in=width)
        fan_in = heads * c.v_head_dim
        self.out = matrix("out", heads, c.v_head_dim, width, fan_in=fan_in, gain=c.residual_gain)

    def sharded_matrices(self) -> parameters.Matrices:
        """The sharded matrices; no gradient comes back this way: see `with_matrices`."""
        return jax.lax.stop_gradient(super().sharded_matrices())

    def with_matrices(self, weights: parameters.Matrices) -> "LatentAttention":
        """This attention with what `gathered` gave; gradients reach its own matrices."""
        if weights is None:
            return self
        copy = nnx.merge(*nnx.split(self, graph=False))
        copy.ahead = nnx.data(weights)
        return copy

    def _gather(self, name: str, weight: Array, x: States | None) -> Array:
        """A matrix as it is multiplied with; `out` meets nothing but tokens."""
        return super()._gather(name, weight, x if name == "out" else None)

    def _matrix(self, name: str, x: States | None = None) -> Array:
        """One of its matrices, gathered; `out` for the tokens `x`."""
        own = self._gather(name, getattr(self, name)[...], x)
        return own if self.ahead is None else parameters.ahead_of(own, self.ahead[name])

    def queries(
        self, x: States, position: Numbers, *, cut_weights: bool
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B T N R"]]:
        """Unrotated and rotated parts of the query of every head, times the scale of scores.

        Either the queries are cut and brought into the order of the rotation or, with
        `cut_weights`, what makes them: on TPU that moves all there is to cut, and of many tokens
        the queries are more.
        """
        config = self.config
        down_DQ = self._matrix("query_down")
        up_QNh = self._matrix("query_up")
        norm_weight = scaled(self.query_norm[...], config.q_scale * config.attention_scale)
        compressed_BTQ = checkpoint_name(project(x, down_DQ), LATENTS)
        compressed_BTQ = rms_norm(compressed_BTQ, norm_weight, config.lora_norm_eps)
        if cut_weights:
            nope_up_QNH, rope_up_QNR = jnp.split(up_QNh, [config.qk_nope_head_dim], axis=-1)
            nope = project(compressed_BTQ, nope_up_QNH)
            rope = project(compressed_BTQ, halves(rope_up_QNR))
        else:
            query = project(compressed_BTQ, up_QNh)
            nope, rope = jnp.split(query, [config.qk_nope_head_dim], axis=-1)
            rope = halves(rope)
        by = turn(position, config.qk_rope_head_dim, config.rope_theta, config.yarn)
        return nope, turned(rope, by)

    def compress(self, x: States, position: Numbers) -> Latent:
        """The latent and the rotary key of every token, as they are cached."""
        config = self.config
        down_Dc = self._matrix("latent_down")
        both_BTc = checkpoint_name(project(x, down_Dc), LATENTS)
        latent, rope_key = jnp.split(both_BTc, [config.kv_lora_rank], axis=-1)
        norm_weight = scaled(self.latent_norm[...], config.kv_scale)
        latent = rms_norm(latent, norm_weight, config.lora_norm_eps)
        rope_key = rotate(rope_key[:, :, None], position, config.rope_theta, config.yarn)[:, :, 0]
        return Latent(latent, rope_key)

    def _up(self) -> tuple[Float[Array, "C N H"], Float[Array, "C N U"]]:
        up = self._matrix("latent_up")
        keys, values = jnp.split(up, [self.config.qk_nope_head_dim], axis=-1)
        return keys, values

    def _project_out(self, mixed: Float[Array, "B T N U"], x: States) -> States:
        product = project_weight_first if self.rules.gathers(*self.AXES["out"]) else project
        out_NUD = self._matrix("out", x)
        return product(mixed, out_NUD, num_contracted=2, out_sharding=self.rules.like(x))

    def __call__(
        self, x: States, position: Numbers, attention_mask: AttentionMask
    ) -> tuple[States, Latent]:
        """Expanded form over the tokens of `x` itself; returns what a cache would keep as well."""
        rows = self.config.chunk_rows(x.shape[1]) if self.rules.mesh is None else None
        given = (array for array in attention_mask if array is not None)
        return in_chunks(self._expanded, (x, position, *given), rows)

    def _expanded(
        self, x: States, position: Numbers, *attention_mask: Numbers
    ) -> tuple[States, Latent]:
        new = self.compress(x, position)
        operands = self._operands(x, position, new)
        mixed_BTNU = core_attention.whole(
            operands, AttentionMask(*attention_mask), self.rules, self.config.attention
        )
        return self._project_out(mixed_BTNU, x), new

    def over_cache(
        self, x: States, position: Numbers, attention_mask: AttentionMask, cached: Latent
    ) -> States:
        """The same for tokens that see cached latents, in the form that takes fewer operations."""
        config, num_queries = self.config, x.shape[1]
        head = config.qk_nope_head_dim + config.v_head_dim
        rope, rank = config.qk_rope_head_dim, config.kv_lora_rank
        expanded = num_queries * (head + rope) + rank * head  # half of those per head and key
        if num_queries * (2 * rank + rope) < expanded:  # 560B: for up to 170 tokens
            return self.absorbed(
                x, position, core_attention.over_latents(attention_mask.pairs(), *cached)
            )
        operands = self._operands(x, position, cached)
        mixed_BTNU = core_attention.cached(operands, attention_mask, self.rules, config.attention)
        return self._project_out(mixed_BTNU, x)

    def _operands(self, x: States, position: Numbers, keys: Latent) -> Operands:
        parts = self.queries(x, position, cut_weights=self.rules.platform == "tpu")
        query_BTNh = jnp.concatenate(parts, axis=-1)
        return Operands(query_BTNh, keys.latent, keys.rope_key, *self._up())

    def absorbed(self, x: States, position: Numbers, attend_latents: AttendLatents) -> States:
        """The same function over cached latents, which are never expanded, for few tokens.

        Heads stand before queries: a product over the cache then has all queries of a sequence as
        rows.
        """
        nope_BTNH, rope_BTNR = self.queries(x, position, cut_weights=False)
        key_up_CNH, value_up_CNU = self._up()
        query_BNTC = jnp.einsum("BTNH,CNH->BNTC", nope_BTNH, key_up_CNH)
        latent_BNTC = attend_latents(query_BNTC, jnp.moveaxis(rope_BTNR, 2, 1))
        mixed_BTNU = jnp.einsum("BNTC,CNU->BTNU", latent_BNTC, value_up_CNU)
        return self._project_out(mixed_BTNU, x)
