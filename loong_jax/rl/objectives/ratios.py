"""Ratios: how far today's policy is from the anchor, and the trainer's program from the engine's.

The anchor is `behavior_logprob`, or for `DecoupledRatio` the proximal policy. The engine ratio
rho = exp(anchor - engine_logprob), detached, compares the trainer's program with what the engine
sampled from. `engine_cap`, C of arXiv:2509.18883 (eq. 4), truncates it for each token (TIS): inf
weighs without a cap, and None does not weigh. `EngineTrust` weighs a whole response, or refuses
tokens and responses (MIS); a refused token leaves the loss and stays in its denominator, so that
refusing some does not make the others weigh more.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError, refuse_outside
from loong_jax.sharding import by_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Ratio:
    engine_cap: float | None = None
    max_log_ratio: float = 20.0

    def __post_init__(self):
        refuse_outside(self, "(0, inf]", "engine_cap", why="None for no correction")
        refuse_outside(self, "(0, 80]", "max_log_ratio", why="exp would overflow float32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRatio(_Ratio):
    """r_t = exp(policy - behavior_logprob), for each token."""

    engine_cap: float | None = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceRatio(_Ratio):
    """s = exp(mean over the response of policy - behavior_logprob) (GSPO, arXiv:2507.18071, eq. 7).

    All tokens of a response share it, in value and in gradient.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTokenRatio(_Ratio):
    """sg(s) * pi_t / sg(pi_t): the value of `SequenceRatio` with the gradient of the token alone.

    GSPO-token (arXiv:2507.18071, eq. 14); equal to GSPO where all tokens of a response have the
    same advantage.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoupledRatio(_Ratio):
    """u_t = exp(policy - proximal_logprob), for each token (AReaL, arXiv:2505.24298, 5.2).

    The weight exp(proximal - engine_logprob), at most `engine_cap`, makes up for staleness and the
    engine's numerics together, so the clip has only to bound what this step changes.
    """

    engine_cap: float | None = float("inf")


Ratio = TokenRatio | SequenceRatio | SequenceTokenRatio | DecoupledRatio


def safe_log_ratio(
    upper: Float[Array, "*S"], lower: Float[Array, "*S"], mask: Bool[Array, "*S"], bound: float
) -> tuple[Float[Array, "*S"], Bool[Array, "*S"]]:
    """Clipped log(upper / lower) and where it is finite; elsewhere 0, and no gradient passes."""
    is_finite = mask & jnp.isfinite(upper) & jnp.isfinite(lower)
    log_ratio = jnp.where(is_finite, upper, 0.0) - jnp.where(is_finite, lower, 0.0)
    return jnp.clip(log_ratio, -bound, bound), is_finite


def policy_ratio(
    kind: Ratio,
    policy_logprob: Float[Array, "B T"],
    anchor_logprob: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """The ratio of each token, and where its log-probabilities are finite.

    A token that is not finite is in no mean of its response.
    """
    log_ratio, is_finite = safe_log_ratio(policy_logprob, anchor_logprob, mask, kind.max_log_ratio)
    if isinstance(kind, SequenceRatio | SequenceTokenRatio):
        mean = segment_mean(log_ratio, is_finite, segment_ids)
        if isinstance(kind, SequenceTokenRatio):
            stop = jax.lax.stop_gradient
            mean = stop(mean) + (log_ratio - stop(log_ratio))
        log_ratio = mean
    return jnp.exp(log_ratio), is_finite


@dataclasses.dataclass(frozen=True, kw_only=True)
class Band:
    """Trusted from `low` to `high`, both included; the default trusts everything."""

    low: float = 0.0
    high: float = float("inf")

    def __post_init__(self):
        if not 0 <= self.low <= self.high or not self.high > 0:
            raise ConfigError(
                f"low={self.low} and high={self.high} are no band: 0 <= low <= high, and high > 0. "
                "Correct the recipe."
            )

    @property
    def is_open(self) -> bool:
        return self.low == 0 and self.high == float("inf")

    def holds(self, value: Float[Array, "*S"]) -> Bool[Array, "*S"]:
        return (value >= self.low) & (value <= self.high)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineTrust:
    """Trust in the engine, by bands that must all hold; the default trusts every token.

    `token` is about rho_t (IcePop, MIS); `sequence` about the product of rho over the response;
    `geometric` about the mean of log rho over the response, as a ratio. One token with rho below
    `veto_below` refuses its response. With `sequence_cap` each token is weighed by min(product of
    rho over its response, sequence_cap), which takes the place of `ratio.engine_cap`.
    """

    token: Band = Band()
    sequence: Band = Band()
    geometric: Band = Band()
    veto_below: float = 0.0
    sequence_cap: float | None = None

    def __post_init__(self):
        agree = "a token on which engine and trainer agree has ratio 1, and 0 is for no veto"
        refuse_outside(self, "[0, 1)", "veto_below", why=agree)
        refuse_outside(self, "(0, inf]", "sequence_cap", why="None for no correction")

    @property
    def is_blind(self) -> bool:
        """True where the engine ratio changes nothing here."""
        are_open = all(band.is_open for band in (self.token, self.sequence, self.geometric))
        return are_open and not self.veto_below and self.sequence_cap is None


def engine_weight(
    trust: EngineTrust,
    cap: float | None,
    log_ratio: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    bound: float,
) -> tuple[Float[Array, "B T"] | float, Bool[Array, "B T"] | None]:
    """The factor of each token's objective, and the refused tokens; None where none can be.

    `log_ratio` is log rho, `mask` is where it is known, `cap` that of the token, `bound` in nats.
    """
    ratio = jnp.exp(log_ratio)
    weight = 1.0 if cap is None else jnp.minimum(ratio, cap)
    if trust.is_blind:
        return weight, None
    is_refused = jnp.zeros_like(mask)
    if not trust.token.is_open:
        is_refused |= ~trust.token.holds(ratio)
    if not trust.geometric.is_open:
        mean = segment_mean(log_ratio, mask, segment_ids)
        is_refused |= ~trust.geometric.holds(jnp.exp(mean))
    if trust.veto_below:
        is_vetoed = (ratio < trust.veto_below).astype(jnp.float32)
        is_refused |= segment_sum(is_vetoed, mask, segment_ids) > 0
    if not trust.sequence.is_open or trust.sequence_cap is not None:
        total = segment_sum(log_ratio, mask, segment_ids)
        product = jnp.exp(jnp.clip(total, -bound, bound))
        is_refused |= ~trust.sequence.holds(product)
        if trust.sequence_cap is not None:
            weight = jnp.minimum(product, trust.sequence_cap)
    return weight, is_refused & mask


# ---- sums over the segments of packed rows; a segment lies within one row ----


def segment_sum(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """The sum of `values` over the masked tokens of each token's own segment."""
    num_segments = mask.shape[1] + 1

    def of_row(values_T: Float[Array, "T"], segment_T: Int[Array, "T"]) -> Float[Array, "T"]:
        return jax.ops.segment_sum(values_T, segment_T, num_segments)[segment_T]

    return by_rows(jax.vmap(of_row), jnp.where(mask, values, 0.0), segment_ids)


def segment_length(mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """The number of masked tokens in each token's own segment; at least 1."""
    ones = jnp.ones(mask.shape, jnp.float32)
    return jnp.maximum(segment_sum(ones, mask, segment_ids), 1.0)


def segment_mean(
    values: Float[Array, "B T"], mask: Bool[Array, "B T"], segment_ids: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    """The mean of `values` over the masked tokens of each token's segment; 0 for none."""
    return segment_sum(values, mask, segment_ids) / segment_length(mask, segment_ids)
