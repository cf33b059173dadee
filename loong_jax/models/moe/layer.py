"""The logical layer with its shortcut-connected mixture of experts.

    h1 = x  + Attention_0(norm(x))
    u  = norm(h1)
    m  = MoE(u)                      needs nothing below, so its exchanges hide behind it
    h2 = h1 + FFN_0(u)
    h3 = h2 + Attention_1(norm(h2))
    y  = h3 + FFN_1(norm(h3)) + m

The mixture m is made in five steps, `dispatch`, `receive`, `compute`, `combine` and `mix`. Rows
travel between the first two and between the last two, beside dense work that needs nothing of them.
The weights of that work are gathered while no rows travel: those of FFN_0 beside Attention_0, those
of Attention_1 and FFN_1 while experts compute.

Going back, FFN_0's weights are gathered, and the gradients of FFN_1's scattered, while experts
compute. The gradients of FFN_0's weights are scattered before Attention_0 goes back. Attention_1's
weights are gathered when its own backward pass needs them.

Source: arXiv:2509.01322, section 2.2; arXiv:2404.05019.
"""

from collections.abc import Callable

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models import parameters
from loong_jax.models.ffn import DenseFFN
from loong_jax.models.moe import router
from loong_jax.models.moe.attention import LatentAttention
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.experts import Experts
from loong_jax.models.norm import rms_norm
from loong_jax.sharding import ShardingRules

RESIDUAL = "residual"  # the name under which a checkpoint policy finds h1, h2 and h3

# The attention of sub-layer 0 or 1: from normed input to output.
Attend = Callable[[int, LatentAttention, Float[Array, "B T D"]], Float[Array, "B T D"]]


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
        x: Float[Array, "B T D"],
        mask: Bool[Array, "B T"],
        attend: Attend,
        score_shift: Float[Array, "A"] | None = None,
        forced_target: Int[Array, "B T K"] | None = None,
    ) -> tuple[Float[Array, "B T D"], router.LayerStatistics]:
        """The residual stream after the layer and the statistics of its routing and exchange.

        `attend(i, attention, x)` applies attention i; it decides between the expanded form and
        the cache. Tokens outside `mask` meet no expert and count in no load. Tokens go where
        `forced_target` says, if it does (`router.force`).
        """
        eps = self.config.rms_norm_eps
        with jax.named_scope("attention_0"):
            normed = rms_norm(x, self.attention_norm_0[...], eps)
            h1 = checkpoint_name(x + attend(0, self.attention_0, normed), RESIDUAL)
        with jax.named_scope("moe"):
            resting = self.ffn_0.resting()
            h1, resting = self.experts.after_gradient(h1, resting)
            h1, weights = self.experts.after(h1, self.ffn_0.gathered(resting, h1))
            u = rms_norm(h1, self.ffn_norm_0[...], eps)
            routing, score, own_target = self.router(u, score_shift, forced_target)
            mixture, u, weights = self.experts.dispatch(u, routing, mask, weights)
        with jax.named_scope("ffn_0"):  # rows travel
            ffn_0 = self.ffn_0.having(weights)
            h2 = h1 + ffn_0(u, "ffn_0")
        with jax.named_scope("moe"):
            resting = self.ffn_1.resting()
            mixture, h2, resting = self.experts.receive(mixture, h2, resting, weights)
            h2, ahead = self.experts.wait_for_all(h2, self.attention_1.resting())
            ahead, weights = self.attention_1.gathered(ahead, h2), self.ffn_1.gathered(resting, h2)
            mixture, h2, weights = self.experts.compute(mixture, h2, weights)
            mixture, h2, ahead = self.experts.wait_for_all(mixture, h2, ahead)
            h2 = checkpoint_name(h2, RESIDUAL)  # kept here, it waits for nothing going back
            mixture = self.experts.combine(mixture)  # under way during Attention_1 and FFN_1
        with jax.named_scope("attention_1"):
            normed = rms_norm(h2, self.attention_norm_1[...], eps)
            h3 = checkpoint_name(h2 + attend(1, self.attention_1.having(ahead), normed), RESIDUAL)
        with jax.named_scope("ffn_1"):
            ffn_1 = self.ffn_1.having(weights)
            normed = rms_norm(h3, self.ffn_norm_1[...], eps)
            y = h3 + ffn_1(normed, "ffn_1")
        with jax.named_scope("moe"):
            m, y = self.experts.mix(mixture, y)
            y = y + m
        return y, router.layer_statistics(routing, score, mask, mixture.num_overflowed, own_target)
