"""The head that drafts one more token: multi-token prediction at depth one.

    e = norm(Emb(t_{i+1}))    g = norm(h_i)        h_i after the model's final norm
    x = [e ; g] W             the embedding's half first
    x = x + Attention(norm(x))
    x = x + FFN(norm(x))      one dense layer
    logits of t_{i+2} = norm(x) Head

Embedding and head are the model's own. Source: arXiv:2412.19437, section 2.2; arXiv:2509.01322,
which deploys a dense layer here; the order of the two halves is that of the released engines.
"""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int, Shaped

from loong_jax.models import decoder, parameters
from loong_jax.models.decoder import DenseFFN, Mask, Numbers, States
from loong_jax.models.moe import core_attention
from loong_jax.models.moe.attention import ENTRY_AXES, Latent, LatentAttention
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.kernels import AttentionMask
from loong_jax.models.products import project, rms_norm
from loong_jax.sharding import ShardingRules

Module = TypeVar("Module", bound=nnx.Module)


class MtpHead(nnx.Module):
    """Multi-token prediction: hidden state and next token to the state of the token after it."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        embed = config.hidden_size
        one = dataclasses.replace(config, num_layers=1)
        norm = (embed,), (None,), rules
        self.embedding_norm = parameters.ones(*norm)
        self.hidden_norm = parameters.ones(*norm)
        self.projection = parameters.kernel(
            (2 * embed, embed), ("embed", None), config.param_dtype, rngs, rules
        )
        self.attention_norm = parameters.ones(*norm)
        self.attention = LatentAttention(one, rngs=rngs, rules=rules)
        self.ffn_norm = parameters.ones(*norm)
        self.ffn = DenseFFN(one, rngs=rngs, rules=rules)
        self.final_norm = parameters.ones(*norm)

    def __call__(
        self, hidden: States, embedding: States, position: Numbers, attention_mask: AttentionMask
    ) -> tuple[States, Latent]:
        """The normed state of every row, and what a cache would keep.

        Row i joins `hidden` of token i with the embedding of token i + 1 and stands at position i.
        """
        x = self._join(hidden, embedding)
        normed = rms_norm(x, self.attention_norm[...], self.config.rms_norm_eps)
        attended, cached = _only_layer(self.attention)(normed, position, attention_mask)
        return self._finish(x + attended), cached

    def extend(
        self, hidden: States, embedding: States, positions: Int[Array, "B"], cache: Latent
    ) -> tuple[States, Latent]:
        """T more rows of each sequence from `positions` on, and the cache with them in it.

        A row that was wrong is written again by the next call that starts at its position, and
        nothing looks at it before.
        """
        position_BT = positions[:, None] + jnp.arange(hidden.shape[1])[None]
        x = self._join(hidden, embedding)
        normed = rms_norm(x, self.attention_norm[...], self.config.rms_norm_eps)
        attention = _only_layer(self.attention)
        new = attention.compress(normed, position_BT)
        cache = decoder.written(cache, new, position_BT, ENTRY_AXES, self.rules)
        latent, rope_key = (a[None, None] for a in cache)  # the first attention of one layer
        over_entries = core_attention.over_cache(
            latent, rope_key, jnp.int32(0), 0, position_BT, self.rules
        )
        attended = attention.absorbed(normed, position_BT, over_entries)
        return self._finish(x + attended), cache

    def _join(self, hidden: States, embedding: States) -> States:
        eps = self.config.rms_norm_eps
        both_BTd = jnp.concatenate(
            [
                rms_norm(embedding, self.embedding_norm[...], eps),
                rms_norm(hidden, self.hidden_norm[...], eps),
            ],
            axis=-1,
        )
        weight_dD = self.projection[...].astype(self.config.dtype)
        weight_dD = self.rules.gather(weight_dD, "embed", None)
        return project(both_BTd, weight_dD, out_sharding=self.rules.like(embedding))

    def _finish(self, x: States) -> States:
        eps = self.config.rms_norm_eps
        x += _only_layer(self.ffn)(rms_norm(x, self.ffn_norm[...], eps))
        return rms_norm(x, self.final_norm[...], eps)


def _only_layer(module: Module) -> Module:
    """A module of one stacked layer as its methods expect it: without the axis of layers."""
    graph, stacked = nnx.split(module, graph=False)
    return nnx.merge(graph, jax.tree.map(lambda a: a[0], stacked))


def drafted_rows(segment_ids: Numbers, loss_mask: Mask | None = None) -> Mask:
    """Rows whose next two tokens are of their own segment, the second under `loss_mask`.

    Segment 0 is padding.
    """
    counts = segment_ids > 0
    for distance in (1, 2):
        counts &= shift_left(segment_ids, distance) == segment_ids
    return counts if loss_mask is None else counts & shift_left(loss_mask, 2)


def shift_left(rows: Shaped[Array, "B T"], distance: int = 1) -> Shaped[Array, "B T"]:
    """Column i becomes column i + distance; zeros enter on the right."""
    return jnp.pad(rows, ((0, 0), (0, distance)))[:, distance:]
