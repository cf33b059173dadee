"""Policy objectives as data: how far a ratio is trusted, what is subtracted, how tokens are summed.

One function, `policy_loss`, reads an `Objective`. `longcat_objective` is eq. 4 of arXiv:2509.18883
(triplet clipping, truncated importance sampling, token sum over G * T_max, no KL); `grpo_objective`
is its eq. 3 (symmetric clipping, mean over a response's tokens, then over responses, k3 KL).

Eq. 4 as printed applies its outer max to every advantage. For A > 0 and eps_neg_high > 1 +
eps_pos_high that max is the constant eps_neg_high * A, and no positive advantage has a gradient.
Here, as intended, it bounds the negative ones only:

    A > 0:   A min(r, 1 + eps_pos_high)
    A < 0:  -|A| min(max(r, 1 - eps_neg_low), eps_neg_high)
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.rl import advantages


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRatio:
    """One importance ratio for each token.

    `engine_cap` is C of eq. 4: the detached exp(behavior - engine_logprob) weighs a token, at most
    C. None: the gap between engine and trainer is not corrected.
    """

    engine_cap: float | None = 2.0
    max_log_ratio: float = 20.0  # nats; both log-ratios are clipped to it before exp

    def __post_init__(self):
        if self.engine_cap is not None and not self.engine_cap > 0:
            raise ConfigError(
                f"engine_cap={self.engine_cap} must be positive. Use None for no correction."
            )
        if not 0 < self.max_log_ratio <= 80:
            raise ConfigError(
                f"max_log_ratio={self.max_log_ratio} is not in (0, 80]: exp would overflow "
                "float32. Use 20."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripletClip:
    """Eq. 4. `eps_neg_low` and `eps_pos_high` are distances from 1, `eps_neg_high` is a ratio."""

    eps_neg_low: float = 0.2
    eps_neg_high: float = 3.0
    eps_pos_high: float = 0.28

    def __post_init__(self):
        if not 0 <= self.eps_neg_low <= 1 or self.eps_pos_high < 0:
            raise ConfigError(
                f"eps_neg_low={self.eps_neg_low} must lie in [0, 1] and "
                f"eps_pos_high={self.eps_pos_high} be >= 0: they are distances from a ratio of 1. "
                "Correct the recipe."
            )
        if self.eps_neg_high < 1:
            raise ConfigError(
                f"eps_neg_high={self.eps_neg_high} is below 1: it is a cap on the ratio of "
                "negative advantages, not a distance, and below 1 it would stop on-policy "
                "tokens. Use a value such as 3."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SymmetricClip:
    """Eq. 3: the ratio is clipped to [1 - eps, 1 + eps] where that makes the objective smaller."""

    eps: float = 0.2

    def __post_init__(self):
        if not 0 <= self.eps <= 1:
            raise ConfigError(f"eps={self.eps} is not in [0, 1]. Use a value such as 0.2.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class K3KL:
    """beta * (exp(d) - d - 1) with d = reference - policy log-probability, for each token."""

    beta: float

    def __post_init__(self):
        if self.beta < 0:
            raise ConfigError(f"beta={self.beta} must be >= 0. Use kl=None for no penalty.")


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


Clip = TripletClip | SymmetricClip
Reduction = TokenSumOverConstant | MeanOfSequenceMeans


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    signal: advantages.AdvantageEstimator
    ratio: TokenRatio
    clip: Clip
    reduction: Reduction
    kl: K3KL | None = None


def longcat_objective(
    *,
    group_size: int,
    max_response_tokens: int,
    signal: advantages.AdvantageEstimator | None = None,
    ratio: TokenRatio | None = None,
    clip: TripletClip | None = None,
) -> Objective:
    """Eq. 4. The report gives no values; the defaults of the parts are those its relatives use."""
    return Objective(
        signal=signal or advantages.GroupNormalised(),
        ratio=ratio or TokenRatio(),
        clip=clip or TripletClip(),
        reduction=TokenSumOverConstant(
            group_size=group_size, max_response_tokens=max_response_tokens
        ),
    )


def grpo_objective(*, group_size: int, eps: float = 0.2, beta: float = 0.01) -> Objective:
    """Eq. 3: GRPO with the k3 KL to a reference. The engine gap is not corrected."""
    return Objective(
        signal=advantages.GroupNormalised(),
        ratio=TokenRatio(engine_cap=None),
        clip=SymmetricClip(eps=eps),
        reduction=MeanOfSequenceMeans(group_size=group_size),
        kl=K3KL(beta=beta) if beta else None,
    )


class LossSums(NamedTuple):
    """What a micro-batch adds to the metrics of a step; `add` combines two, `summarise` reads them.

    Lag is the trainer's version minus the token's; the last of the H entries also holds everything
    above it.
    """

    num_tokens_H: Float[Array, "H"]
    ratio_H: Float[Array, "H"]
    num_clipped_H: Float[Array, "H"]
    engine_ratio: Float[Array, ""]  # before the cap
    engine_ratio_max: Float[Array, ""]
    num_dropped: Float[Array, ""]  # tokens whose ratios were not finite
    kl: Float[Array, ""]

    def add(self, other: "LossSums") -> "LossSums":
        added = jax.tree.map(jnp.add, self, other)
        return added._replace(
            engine_ratio_max=jnp.maximum(self.engine_ratio_max, other.engine_ratio_max)
        )


def empty_sums(num_lags: int) -> LossSums:
    by_lag, one = jnp.zeros((num_lags,)), jnp.zeros(())
    return LossSums(by_lag, by_lag, by_lag, one, one, one, one)


def clipped_gain(
    ratio: Float[Array, "*S"], advantage: Float[Array, "*S"], clip: Clip
) -> tuple[Float[Array, "*S"], Bool[Array, "*S"]]:
    """Per-token objective (to be maximised), and where the clip stops its gradient."""
    low, high = (
        (1 - clip.eps_neg_low, 1 + clip.eps_pos_high)
        if isinstance(clip, TripletClip)
        else (1 - clip.eps, 1 + clip.eps)
    )
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
    is_clipped = jnp.where(advantage > 0, ratio > high, (advantage < 0) & (ratio < low))
    if isinstance(clip, TripletClip):
        gain = jnp.where(advantage < 0, jnp.maximum(gain, clip.eps_neg_high * advantage), gain)
        is_clipped |= (advantage < 0) & (ratio > clip.eps_neg_high)
    return gain, is_clipped


def _safe_log_ratio(
    upper: Float[Array, "*S"], lower: Float[Array, "*S"], mask: Bool[Array, "*S"], bound: float
) -> tuple[Float[Array, "*S"], Bool[Array, "*S"]]:
    """Clipped log(upper / lower) and where it is finite; elsewhere 0, and no gradient passes."""
    is_finite = mask & jnp.isfinite(upper) & jnp.isfinite(lower)
    log_ratio = jnp.where(is_finite, upper, 0.0) - jnp.where(is_finite, lower, 0.0)
    return jnp.clip(log_ratio, -bound, bound), is_finite


def _response_length(
    mask_BT: Bool[Array, "B T"], segment_ids_BT: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """For each token, how many tokens of its own segment train; at least 1."""
    num_segments = mask_BT.shape[1] + 1

    def of_row(mask_T, segment_T):
        count = jax.ops.segment_sum(mask_T.astype(jnp.float32), segment_T, num_segments)
        return count[segment_T]

    return jnp.maximum(jax.vmap(of_row)(mask_BT, segment_ids_BT), 1.0)


def policy_loss(
    objective: Objective,
    *,
    policy_logprob: Float[Array, "B T"],
    behavior_logprob: Float[Array, "B T"],
    engine_logprob: Float[Array, "B T"],
    advantage: Float[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    num_groups: Int[Array, ""] | int,
    reference_logprob: Float[Array, "B T"] | None = None,
    version_lag: Int[Array, "B T"] | None = None,
    num_lags: int = 1,
) -> tuple[Float[Array, ""], LossSums]:
    """Loss to be minimised, and the sums from which the metrics are made.

    Arrays are packed rows, entry t about token t; a segment lies within one row. `num_groups` is P
    of the whole step, so losses and gradients of its micro-batches add up to those of the step.
    Only `policy_logprob` carries a gradient. A token whose ratio is NaN or infinite has weight 0
    and is counted; a batch without tokens has loss 0.
    """
    stop = jax.lax.stop_gradient
    behavior_logprob, engine_logprob, advantage = map(
        stop, (behavior_logprob, engine_logprob, advantage)
    )
    bound = objective.ratio.max_log_ratio
    log_ratio, is_ratio = _safe_log_ratio(policy_logprob, behavior_logprob, loss_mask, bound)
    log_engine, is_engine = _safe_log_ratio(behavior_logprob, engine_logprob, loss_mask, bound)
    is_used = is_ratio & jnp.isfinite(advantage)
    if objective.ratio.engine_cap is None:
        engine_weight = 1.0
    else:
        is_used &= is_engine
        engine_weight = jnp.minimum(jnp.exp(log_engine), objective.ratio.engine_cap)

    ratio = jnp.exp(log_ratio)
    gain, is_clipped = clipped_gain(ratio, jnp.where(is_used, advantage, 0.0), objective.clip)
    per_token = engine_weight * gain
    kl = jnp.zeros(())
    if objective.kl is not None:
        if reference_logprob is None:
            raise ValueError(
                f"objective.kl={objective.kl} needs reference_logprob. Pass the log-probabilities "
                "of the reference, or use kl=None."
            )
        distance, is_known = _safe_log_ratio(
            stop(reference_logprob), policy_logprob, loss_mask, bound
        )
        is_used &= is_known
        k3 = jnp.exp(distance) - distance - 1.0
        per_token = per_token - objective.kl.beta * k3
        kl = jnp.sum(jnp.where(is_used, k3, 0.0))
    per_token = jnp.where(is_used, per_token, 0.0)

    reduction = objective.reduction
    if isinstance(reduction, MeanOfSequenceMeans):
        total = jnp.sum(per_token / _response_length(loss_mask, segment_ids))
        denominator = num_groups * reduction.group_size
    else:
        total = jnp.sum(per_token)
        denominator = num_groups * reduction.group_size * reduction.max_response_tokens
    loss = -total / denominator

    lag = jnp.zeros_like(segment_ids) if version_lag is None else version_lag
    is_lag = jax.nn.one_hot(jnp.clip(lag, 0, num_lags - 1), num_lags, dtype=jnp.float32)
    is_lag = is_lag * is_used[..., None]
    engine_ratio = jnp.where(is_used & is_engine, jnp.exp(log_engine), 0.0)
    sums = LossSums(
        num_tokens_H=jnp.sum(is_lag, axis=(0, 1)),
        ratio_H=jnp.einsum("BTH,BT->H", is_lag, stop(ratio)),
        num_clipped_H=jnp.einsum("BTH,BT->H", is_lag, is_clipped.astype(jnp.float32)),
        engine_ratio=jnp.sum(engine_ratio),
        engine_ratio_max=jnp.max(engine_ratio, initial=0.0),
        num_dropped=jnp.sum((loss_mask & ~is_used).astype(jnp.float32)),
        kl=stop(kl),
    )
    return loss, sums


def summarise(sums: LossSums) -> dict[str, float | dict[str, float]]:
    """Metrics of a step, named as in metrics.jsonl; lags that no token has are left out."""
    num_tokens = [float(n) for n in sums.num_tokens_H]
    present = [lag for lag, n in enumerate(num_tokens) if n]
    total = max(sum(num_tokens), 1.0)
    return {
        "ratio/mean_by_lag": {str(h): float(sums.ratio_H[h]) / num_tokens[h] for h in present},
        "clip/fraction_by_lag": {
            str(h): float(sums.num_clipped_H[h]) / num_tokens[h] for h in present
        },
        "tokens_by_lag": {str(h): num_tokens[h] for h in present},
        "engine_ratio/mean": float(sums.engine_ratio) / total,
        "engine_ratio/max": float(sums.engine_ratio_max),
        "tokens_dropped": float(sums.num_dropped),
        "kl/mean": float(sums.kl) / total,
    }
