"""Reductions: how the tokens of a step become one number.

Every denominator is known before a step's first micro-batch, so the losses and gradients of its
micro-batches add up to those of the step, however rollouts are packed into them. Equations without
a paper are of arXiv:2509.18883.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.rl.objectives import segments


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSumOverConstant:
    """Sum over tokens, over num_groups * group_size * max_response_tokens (eq. 4: G * T_max).

    Constant: neither masked rollouts nor micro-batches nor packing change it.
    """

    group_size: int  # G, masked rollouts included
    max_response_tokens: int  # T_max

    def __post_init__(self):
        if self.group_size < 1 or self.max_response_tokens < 1:
            raise ConfigError(
                f"group_size={self.group_size} and max_response_tokens={self.max_response_tokens} "
                "must be >= 1. Correct the recipe."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanOfSequenceMeans:
    """Mean over a response's tokens, then over num_groups * group_size responses (eq. 3)."""

    group_size: int  # G, masked rollouts included

    def __post_init__(self):
        if self.group_size < 1:
            raise ConfigError(f"group_size={self.group_size} must be >= 1. Correct the recipe.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMean:
    """Sum over tokens, over the number of tokens of the whole step that have a loss mask.

    arXiv:2503.14476 (eq. 8) and 2506.13585 (eq. 4) divide within each group and then average over
    groups; their released code and this divide by all tokens at once.
    """


Reduction = TokenSumOverConstant | MeanOfSequenceMeans | TokenMean


def reduced(
    reduction: Reduction,
    per_token: Float[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    num_groups: Int[Array, ""] | int,
    num_tokens: Float[Array, ""] | Int[Array, ""] | int | None,
) -> Float[Array, ""]:
    """The objective of these rows, of which `per_token` is 0 outside the mask.

    `num_groups` and `num_tokens` (for `TokenMean` alone) are those of the whole step.
    """
    match reduction:
        case MeanOfSequenceMeans(group_size=size):
            total = jnp.sum(per_token / segments.segment_length(loss_mask, segment_ids))
            return total / (num_groups * size)
        case TokenSumOverConstant(group_size=size, max_response_tokens=length):
            return jnp.sum(per_token) / (num_groups * size * length)
        case TokenMean():
            if num_tokens is None:
                raise ValueError(
                    "TokenMean divides by the tokens of the whole step, which are missing. Pass "
                    "num_tokens, the sum of loss_mask over all micro-batches."
                )
            return jnp.sum(per_token) / jnp.maximum(jnp.asarray(num_tokens, jnp.float32), 1.0)
