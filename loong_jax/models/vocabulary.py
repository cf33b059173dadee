"""The two ends of a model: states of tokens that enter, logits of those that may follow."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from loong_jax.models.products import project, project_weight_first, together_going_back
from loong_jax.sharding import ShardingRules


def words(
    table: Float[Array, "V D"], tokens: Int[Array, "B T"], rules: ShardingRules, dtype: DTypeLike
) -> Float[Array, "B T D"]:
    """The row of each token, in the dtype of activations."""
    table = rules.gather(table, "vocab", "vocab_embed")
    return rules.take(table, tokens, "act_embed").astype(dtype)


def logits(
    hidden: Float[Array, "B T D"], head: Float[Array, "D V"], rules: ShardingRules
) -> Float[Array, "B T V"]:
    """float32 logits from states after the final norm; `head` is in the dtype of these."""
    axes = ("vocab_embed", "vocab")
    if rules.gathers(*axes):
        # going back, its gradient is scattered beside the product that makes that of `hidden`
        hidden, head = together_going_back(hidden, head)
        head = rules.gather(head, *axes, meets=hidden)
        made = project_weight_first(hidden, head, out_dtype=jnp.float32)
    elif rules.mesh is None and hidden.dtype != jnp.float32:
        # going back, products of float32 take several times as long on GPU
        made = project_weight_first(hidden, head, out_dtype=jnp.float32)
    else:
        made = project(rules.gather_tokens(hidden, "vocab"), head, out_dtype=jnp.float32)
    spec = rules.after(hidden[..., 0], "act_vocab")
    return made if spec is None else jax.sharding.reshard(made, spec)
