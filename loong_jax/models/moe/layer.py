"""The logical layer with its shortcut-connected mixture of experts.

    h1 = x  + Attention_0(norm(x))
    u  = norm(h1)
    m  = MoE(u)                      needs nothing below, so its exchanges hide behind it
    h2 = h1 + FFN_0(u)
    h3 = h2 + Attention_1(norm(h2))
    y  = h3 + FFN_1(norm(h3)) + m

The mixture m is made in four steps, `dispatch`, `compute`, `combine` and `mix`. Rows travel during
the first and the third, beside dense work that needs nothing of them.

Source: arXiv:2509.01322, section 2.2; arXiv:2404.05019.
"""

from collections.abc import Callable

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float

from loong_jax.models.moe import parameters, router
from loong_jax.models.moe.attention import LatentAttention
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.dense import in_chunks, project
from loong_jax.models.moe.experts import Experts
from loong_jax.models.moe.norm import rms_norm
from loong_jax.sharding import ShardingRules

# The attention of sub-layer 0 or 1: from normed input to output.
Attend = Callable[[int, LatentAttention, Float[Array, "B T D"]], Float[Array, "B T D"]]


class DenseFFN(nnx.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        layers, embed, ffn = config.num_layers, config.hidden_size, config.ffn_hidden_size
        into, back = ("layers", "embed", "ffn"), ("layers", "ffn", "embed")
        dtype = config.param_dtype
        self.gate = parameters.kernel((layers, embed, ffn), into, dtype, rngs, rules)
        self.up = parameters.kernel((layers, embed, ffn), into, dtype, rngs, rules)
        self.down = parameters.kernel((layers, ffn, embed), back, dtype, rngs, rules)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        rows = self.config.chunk_rows(x.shape[1]) if self.rules.mesh is None else None
        return in_chunks(self._at_once, (x,), rows)

    def _at_once(self, x):
        rules = self.rules
        gate_BTF = project(x, rules.gather(self.gate[...], "embed", "ffn"))
        up_BTF = project(x, rules.gather(self.up[...], "embed", "ffn"))
        down_FD = rules.gather(self.down[...], "ffn", "embed")
        return project(jax.nn.silu(gate_BTF) * up_BTF, down_FD, out_sharding=rules.like(x))


class ShortcutLayer(nnx.Module):
    """All logical layers, weights stacked on L; a call expects one layer's slice."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config = config
        norm = (config.num_layers, config.hidden_size), ("layers", None), rules
        self.attention_norm_0 = parameters.ones(*norm)
        self.attention_0 = LatentAttention(config, rngs=rngs, rules=rules)
        self.ffn_norm_0 = parameters.ones(*norm)
        self.router = router.Router(config, rngs=rngs, rules=rules)
        self.experts = Experts(config, rngs=rngs, rules=rules)
        self.ffn_0 = DenseFFN(config, rngs=rngs, rules=rules)
        self.attention_norm_1 = parameters.ones(*norm)
        self.attention_1 = LatentAttention(config, rngs=rngs, rules=rules)
        self.ffn_norm_1 = parameters.ones(*norm)
        self.ffn_1 = DenseFFN(config, rngs=rngs, rules=rules)

    def __call__(
        self, x: Float[Array, "B T D"], mask: Bool[Array, "B T"], attend: Attend
    ) -> tuple[Float[Array, "B T D"], router.LayerStatistics]:
        """The residual stream after the layer and what its router and exchange counted.

        `attend(i, attention, x)` applies attention i; it decides between the expanded form and
        the cache. Tokens outside `mask` meet no expert and count in no load.
        """
        eps = self.config.rms_norm_eps
        with jax.named_scope("attention_0"):
            normed = rms_norm(x, self.attention_norm_0[...], eps)
            h1 = x + attend(0, self.attention_0, normed)
        u = rms_norm(h1, self.ffn_norm_0[...], eps)
        with jax.named_scope("moe"):
            routing = self.router(u)
            mixture, u = self.experts.dispatch(u, routing, mask)  # under way during FFN_0
        with jax.named_scope("ffn_0"):
            h2 = h1 + self.ffn_0(u)
        with jax.named_scope("moe"):
            mixture, h2 = self.experts.compute(mixture, h2)
            mixture = self.experts.combine(mixture)  # under way during Attention_1 and FFN_1
        with jax.named_scope("attention_1"):
            normed = rms_norm(h2, self.attention_norm_1[...], eps)
            h3 = h2 + attend(1, self.attention_1, normed)
        with jax.named_scope("ffn_1"):
            y = h3 + self.ffn_1(rms_norm(h3, self.ffn_norm_1[...], eps))
        with jax.named_scope("moe"):
            m, y = self.experts.mix(mixture, y)
            y = y + m
        load = router.count_load(routing.target, mask, self.config.num_targets)
        return y, router.LayerStatistics(load, mixture.num_overflowed)
