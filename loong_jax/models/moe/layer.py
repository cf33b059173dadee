"""The logical layer with its shortcut-connected mixture of experts.

    h1 = x  + Attention_0(norm(x))
    u  = norm(h1)
    m  = MoE(u)                      needs nothing below, so its exchanges hide behind it
    h2 = h1 + FFN_0(u)
    h3 = h2 + Attention_1(norm(h2))
    y  = h3 + FFN_1(norm(h3)) + m

What runs beside what is decided in `overlap`, without a change of any value.
Source: arXiv:2509.01322, section 2.2; arXiv:2404.05019.
"""

import functools
from collections.abc import Callable

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from loong_jax.models import parameters
from loong_jax.models.decoder import DenseFFN, Mask, States
from loong_jax.models.moe import router
from loong_jax.models.moe.attention import LatentAttention
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.experts import Experts
from loong_jax.models.moe.overlap import RESIDUAL, Overlap
from loong_jax.models.products import rms_norm
from loong_jax.sharding import ShardingRules

# The attention of sub-layer 0 or 1: from normed input to output.
Attend = Callable[[int, LatentAttention, States], States]


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
        self,
        x: States,
        mask: Mask,
        attend: Attend,
        score_shift: Float[Array, "A"] | None = None,
        forced_target: Int[Array, "B T K"] | None = None,
    ) -> tuple[States, router.LayerStatistics]:
        """The residual stream after the layer and the statistics of its routing and exchange.

        `attend(i, attention, x)` applies attention i; it decides between the expanded form and
        the cache. Tokens outside `mask` meet no expert and count in no load. Tokens go where
        `forced_target` says, if it does (`router.force`).
        """
        norm = functools.partial(rms_norm, eps=self.config.rms_norm_eps)
        moe = Overlap(self.experts)
        with jax.named_scope("attention_0"):
            h1 = x + attend(0, self.attention_0, norm(x, self.attention_norm_0[...]))
            h1 = checkpoint_name(h1, RESIDUAL)
        with jax.named_scope("moe"):
            h1 = moe.before_router(h1, self.ffn_0)
            u = norm(h1, self.ffn_norm_0[...])
            routing, score, own_target = self.router(u, score_shift, forced_target)
            u, ffn_0 = moe.dispatch(u, routing, mask, self.ffn_0)
        with jax.named_scope("ffn_0"):
            h2 = h1 + ffn_0(u, "ffn_0")
        with jax.named_scope("moe"):
            h2, attention_1, ffn_1 = moe.compute(h2, self.attention_1, self.ffn_1)
        with jax.named_scope("attention_1"):
            h3 = h2 + attend(1, attention_1, norm(h2, self.attention_norm_1[...]))
            h3 = checkpoint_name(h3, RESIDUAL)
        with jax.named_scope("ffn_1"):
            y = h3 + ffn_1(norm(h3, self.ffn_norm_1[...]), "ffn_1")
        with jax.named_scope("moe"):
            m, y = moe.combine(y)
            y = y + m
        return y, router.layer_statistics(routing, score, mask, moe.num_overflowed, own_target)
