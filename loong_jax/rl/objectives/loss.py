"""The one loss: reads an `Objective` and works through its parts.

Every denominator is known before a step's first micro-batch, so the losses and gradients of its
micro-batches add up to those of the step, however rollouts are packed into them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.rl.objectives import clips, ratios
from loong_jax.rl.objectives.objective import (
    K2KL,
    MeanOfSequenceMeans,
    Objective,
    Reduction,
    TokenMean,
    TokenSumOverConstant,
)


class LossSums(NamedTuple):
    """Sums of a micro-batch for the metrics of a step; `add` combines two, `summarise` reads them.

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
    num_refused: Float[Array, ""]  # tokens that the engine ratio kept out of the loss

    def add(self, other: "LossSums") -> "LossSums":
        added = jax.tree.map(jnp.add, self, other)
        return added._replace(
            engine_ratio_max=jnp.maximum(self.engine_ratio_max, other.engine_ratio_max)
        )


def empty_sums(num_lags: int) -> LossSums:
    by_lag, one = jnp.zeros((num_lags,)), jnp.zeros(())
    return LossSums(by_lag, by_lag, by_lag, one, one, one, one, one)


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
    num_tokens: Float[Array, ""] | Int[Array, ""] | int | None = None,
    step: Int[Array, ""] | int | None = None,
    proximal_logprob: Float[Array, "B T"] | None = None,
    reference_logprob: Float[Array, "B T"] | None = None,
    version_lag: Int[Array, "B T"] | None = None,
    num_lags: int = 1,
) -> tuple[Float[Array, ""], LossSums]:
    """Loss to be minimised, and the sums from which the metrics are made.

    Arrays are packed rows, entry t about token t; a segment lies within one row, and
    `segment_ids` are from 0 to T, so that no row needs more. `num_groups` is P
    of the whole step, so losses and gradients of its micro-batches add up to those of the step.
    Only `policy_logprob` carries a gradient. A token whose ratio is NaN or infinite has weight 0
    and is counted; a batch without tokens has loss 0.

    Some objectives need more: `TokenMean` the `num_tokens` of the whole step, a schedule the `step`
    (updates so far), `DecoupledRatio` the `proximal_logprob`, a penalty the `reference_logprob`.
    Raises ValueError where it is missing.
    """
    stop, kind = jax.lax.stop_gradient, objective.ratio
    behavior_logprob, engine_logprob, advantage = map(
        stop, (behavior_logprob, engine_logprob, advantage)
    )
    anchor_logprob = behavior_logprob
    if objective.needs_proximal:
        if proximal_logprob is None:
            raise ValueError(
                f"objective.ratio={kind} needs proximal_logprob. Pass the log-probabilities under "
                "the weights that this step began with, or use TokenRatio."
            )
        anchor_logprob = stop(proximal_logprob)
    ratio, is_used = ratios.policy_ratio(
        kind, policy_logprob, anchor_logprob, loss_mask, segment_ids
    )
    is_used &= jnp.isfinite(advantage)
    bound = kind.max_log_ratio
    log_engine, is_engine = ratios.safe_log_ratio(
        behavior_logprob, engine_logprob, loss_mask, bound
    )
    weight, is_refused = 1.0, None
    if kind.engine_cap is not None or not objective.engine.is_blind:
        log_weight, is_weighed = log_engine, is_engine
        if objective.needs_proximal:
            log_weight, is_weighed = ratios.safe_log_ratio(
                anchor_logprob, engine_logprob, loss_mask, bound
            )
        is_used &= is_weighed
        weight, is_refused = ratios.engine_weight(
            objective.engine, kind.engine_cap, log_weight, is_weighed, segment_ids, bound
        )

    gain, is_clipped = clips.clipped_gain(
        ratio,
        jnp.where(is_used, advantage, 0.0),
        objective.clip,
        logprob=jnp.where(is_used, policy_logprob, 0.0),
        step=step,
    )
    per_token = weight * gain
    kl = jnp.zeros(())
    if objective.kl is not None:
        if reference_logprob is None:
            raise ValueError(
                f"objective.kl={objective.kl} needs reference_logprob. Pass the log-probabilities "
                "of the reference, or use kl=None."
            )
        distance, is_known = ratios.safe_log_ratio(
            stop(reference_logprob), policy_logprob, loss_mask, bound
        )
        is_used &= is_known
        is_k2 = isinstance(objective.kl, K2KL)
        penalty = distance**2 / 2 if is_k2 else jnp.exp(distance) - distance - 1.0
        per_token = per_token - objective.kl.beta * penalty
        kl = jnp.sum(jnp.where(is_used, penalty, 0.0))
    is_trained = is_used if is_refused is None else is_used & ~is_refused
    per_token = jnp.where(is_trained, per_token, 0.0)
    loss = -reduced(objective.reduction, per_token, loss_mask, segment_ids, num_groups, num_tokens)

    lag = jnp.zeros_like(segment_ids) if version_lag is None else version_lag
    is_lag = jax.nn.one_hot(jnp.clip(lag, 0, num_lags - 1), num_lags, dtype=jnp.float32)
    is_lag = is_lag * is_used[..., None]
    engine_ratio = jnp.where(is_used & is_engine, jnp.exp(log_engine), 0.0)
    sums = LossSums(
        num_tokens_H=jnp.sum(is_lag, axis=(0, 1)),
        ratio_H=jnp.sum(is_lag * stop(ratio)[..., None], axis=(0, 1)),
        num_clipped_H=jnp.sum(is_lag * is_clipped[..., None], axis=(0, 1)),
        engine_ratio=jnp.sum(engine_ratio),
        engine_ratio_max=jnp.max(engine_ratio, initial=0.0),
        num_dropped=jnp.sum((loss_mask & ~is_used).astype(jnp.float32)),
        kl=stop(kl),
        num_refused=(
            jnp.zeros(())
            if is_refused is None
            else jnp.sum((is_used & is_refused).astype(jnp.float32))
        ),
    )
    return loss, sums


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
            total = jnp.sum(per_token / ratios.segment_length(loss_mask, segment_ids))
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
        "engine_ratio/refused": float(sums.num_refused) / total,
        "tokens_dropped": float(sums.num_dropped),
        "kl/mean": float(sums.kl) / total,
    }
