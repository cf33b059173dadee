"""The one loss: reads an `Objective` and works through its parts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.rl.objectives import clips, engine_trust, ratios, reductions
from loong_jax.rl.objectives.objective import K2KL, Objective
from loong_jax.rl.objectives.sums import LossSums


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
        weight, is_refused = engine_trust.engine_weight(
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
    loss = -reductions.reduced(
        objective.reduction, per_token, loss_mask, segment_ids, num_groups, num_tokens
    )

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
