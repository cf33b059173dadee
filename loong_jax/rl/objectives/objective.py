"""Objectives as data: what one is made of, the published ones, and corrections of any.

An `Objective` has signal (`rl.rewards`), ratio (`ratios`), clip (`clips`) and reduction; besides, a
penalty and trust in the engine. The published ones have the defaults they were published with; what
else belongs to their recipes is not a matter of the loss: filtering groups without signal and
penalties for overlong answers are `rl.rewards`. Corrections of the gap between engine and trainer,
published under several names, are settings of `ratio.engine_cap` and `Objective.engine`. Of one
objective, truncation (TIS) and masks (MIS) may be combined: the last call wins where two set the
same field. Equations without a paper are of arXiv:2509.18883.
"""

import dataclasses
from collections.abc import Callable
from typing import get_args

from loong_jax import own
from loong_jax.errors import ConfigError, refuse_below, refuse_outside
from loong_jax.rl import rewards
from loong_jax.rl.objectives.clips import (
    AsymmetricClip,
    Clip,
    DetachedClip,
    SymmetricClip,
    TripletClip,
)
from loong_jax.rl.objectives.ratios import (
    Band,
    DecoupledRatio,
    EngineTrust,
    Ratio,
    SequenceRatio,
    SequenceTokenRatio,
    TokenRatio,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSumOverConstant:
    """Sum over tokens, over num_groups * group_size * max_response_tokens (eq. 4: G * T_max).

    Constant: neither masked rollouts nor micro-batches nor packing change it.
    """

    group_size: int  # G, masked rollouts included
    max_response_tokens: int  # T_max

    def __post_init__(self):
        refuse_below(self, 1, "group_size", "max_response_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanOfSequenceMeans:
    """Mean over a response's tokens, then over num_groups * group_size responses (eq. 3)."""

    group_size: int  # G, masked rollouts included

    def __post_init__(self):
        refuse_below(self, 1, "group_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMean:
    """Sum over tokens, over the number of tokens of the whole step that have a loss mask.

    arXiv:2503.14476 (eq. 8) and 2506.13585 (eq. 4) divide within each group and then average over
    groups; their released code and this divide by all tokens at once.
    """


Reduction = TokenSumOverConstant | MeanOfSequenceMeans | TokenMean


@dataclasses.dataclass(frozen=True, kw_only=True)
class K3KL:
    """beta * (exp(d) - d - 1) with d = reference - policy log-probability, for each token."""

    beta: float

    def __post_init__(self):
        refuse_outside(self, "[0, inf)", "beta", why="kl=None for no penalty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class K2KL:
    """beta * d^2 / 2 with d = reference - policy log-probability, for each token.

    On the policy's own samples its gradient is that of the reverse KL, and it grows with d where
    that of k3 grows with exp(d): the one to follow a distant reference, such as a teacher, by.
    """

    beta: float

    def __post_init__(self):
        refuse_outside(self, "[0, inf)", "beta", why="kl=None for no penalty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """An objective of RL: the signal of a rollout, the ratio of policies, its clip, the reduction
    of tokens to one number, a KL penalty, and trust in the engine.
    """

    signal: rewards.AdvantageEstimator
    ratio: Ratio
    clip: Clip
    reduction: Reduction
    kl: K3KL | K2KL | None = None
    engine: EngineTrust = EngineTrust()

    def __post_init__(self):
        for name, kinds, method in (
            ("signal", rewards.AdvantageEstimator, "advantages"),
            ("clip", Clip, "gain"),
        ):
            contract = own.Contract(kinds, [method], "docs/tutorials/own_objective.md")
            object.__setattr__(self, name, own.as_own(getattr(self, name), name, contract))
        for name, kinds in (("ratio", Ratio), ("reduction", Reduction)):
            if not isinstance(part := getattr(self, name), kinds):
                known = ", ".join(kind.__name__ for kind in get_args(kinds))
                raise ConfigError(
                    f"{name}={part!r:.80} is not one that the loss reads. Choose one of {known}; "
                    "of your own may be signal and clip."
                )
        if self.engine.sequence_cap is not None and self.ratio.engine_cap is not None:
            raise ConfigError(
                f"engine.sequence_cap={self.engine.sequence_cap} and ratio.engine_cap="
                f"{self.ratio.engine_cap} would both correct the engine's gap. Set one to None."
            )

    @property
    def needs_proximal(self) -> bool:
        """True where `proximal_logprob` enters the loss."""
        return isinstance(self.ratio, DecoupledRatio)


# ---- published objectives ----


def longcat_objective(
    *,
    group_size: int,
    max_response_tokens: int,
    signal: rewards.AdvantageEstimator | None = None,
    ratio: TokenRatio | None = None,
    clip: TripletClip | None = None,
) -> Objective:
    """Eq. 4 of arXiv:2509.18883: min(rho, C) * triplet clip, over G * T_max.

    The report gives no values; the defaults of the parts are those its relatives use.
    """
    return Objective(
        signal=signal or rewards.GroupNormalised(),
        ratio=ratio or TokenRatio(),
        clip=clip or TripletClip(),
        reduction=TokenSumOverConstant(
            group_size=group_size, max_response_tokens=max_response_tokens
        ),
    )


def grpo_objective(*, group_size: int, eps: float = 0.2, beta: float = 0.01) -> Objective:
    """Eq. 3 of arXiv:2509.18883: GRPO with the k3 KL to a reference. No engine correction."""
    return Objective(
        signal=rewards.GroupNormalised(),
        ratio=TokenRatio(engine_cap=None),
        clip=SymmetricClip(eps=eps),
        reduction=MeanOfSequenceMeans(group_size=group_size),
        kl=K3KL(beta=beta) if beta else None,
    )


def dr_grpo_objective(*, group_size: int, max_response_tokens: int, eps: float = 0.2) -> Objective:
    """Dr. GRPO (arXiv:2503.20783, 3.2): A = R - mean, and no division by a response's length.

    Its equation sums over tokens; its code, like this, divides by the generation budget too.
    """
    return Objective(
        signal=rewards.MeanOnly(),
        ratio=TokenRatio(engine_cap=None),
        clip=SymmetricClip(eps=eps),
        reduction=TokenSumOverConstant(
            group_size=group_size, max_response_tokens=max_response_tokens
        ),
    )


def dapo_objective(*, eps_low: float = 0.2, eps_high: float = 0.28) -> Objective:
    """DAPO (arXiv:2503.14476, eq. 8): clip-higher and a mean over tokens, no KL.

    Its dynamic sampling is the filter of groups without signal, its soft overlong punishment a
    matter of rewards: this is its loss alone.
    """
    return Objective(
        signal=rewards.GroupNormalised(),
        ratio=TokenRatio(engine_cap=None),
        clip=AsymmetricClip(eps_low=eps_low, eps_high=eps_high),
        reduction=TokenMean(),
    )


def gspo_objective(*, group_size: int, eps_low: float = 3e-4, eps_high: float = 4e-4) -> Objective:
    """GSPO (arXiv:2507.18071, eq. 5 and 7): the ratio of a response, clipped as one."""
    return Objective(
        signal=rewards.GroupNormalised(),
        ratio=SequenceRatio(),
        clip=AsymmetricClip(eps_low=eps_low, eps_high=eps_high),
        reduction=MeanOfSequenceMeans(group_size=group_size),
    )


def gspo_token_objective(
    *, group_size: int, eps_low: float = 3e-4, eps_high: float = 4e-4
) -> Objective:
    """GSPO-token (arXiv:2507.18071, eq. 13 and 14), for advantages that differ within a response.

    With one advantage for each response, as here, loss and gradient are those of GSPO.
    """
    return Objective(
        signal=rewards.GroupNormalised(),
        ratio=SequenceTokenRatio(),
        clip=AsymmetricClip(eps_low=eps_low, eps_high=eps_high),
        reduction=MeanOfSequenceMeans(group_size=group_size),
    )


def cispo_objective(*, low: float = 0.0, high: float = 5.0) -> Objective:
    """CISPO (arXiv:2506.13585, eq. 4 and 5): sg(clip(r)) * A * log pi, a mean over tokens, no KL.

    The paper bounds only above and gives no value; 5 is what TRL's paper index gives.
    """
    return Objective(
        signal=rewards.GroupNormalised(),
        ratio=TokenRatio(engine_cap=None),
        clip=DetachedClip(low=low, high=high),
        reduction=TokenMean(),
    )


def dual_clip_objective(*, group_size: int, eps: float = 0.2, cap: float = 3.0) -> Objective:
    """GRPO's means under dual-clip PPO (arXiv:1912.09729): for A < 0 no gain is below cap * A.

    No KL. The paper uses cap = 3.
    """
    return Objective(
        signal=rewards.GroupNormalised(),
        ratio=TokenRatio(engine_cap=None),
        clip=TripletClip(eps_neg_low=eps, eps_neg_high=cap, eps_pos_high=eps),
        reduction=MeanOfSequenceMeans(group_size=group_size),
    )


def decoupled_ppo_objective(*, eps: float = 0.2, max_weight: float = 5.0) -> Objective:
    """Decoupled PPO (AReaL, arXiv:2505.24298, 5.2): the clip is about the proximal policy, and
    exp(proximal - engine_logprob) makes up for how stale a token is.

    Tokens of a weight above `max_weight` are refused, as its released code does (the paper has no
    bound); a mean over tokens, no KL.
    """
    return Objective(
        signal=rewards.GroupNormalised(),
        ratio=DecoupledRatio(engine_cap=max_weight),
        clip=SymmetricClip(eps=eps),
        reduction=TokenMean(),
        engine=EngineTrust(token=Band(high=max_weight)),
    )


# By name, as a recipe says them; each is called with (group_size, max_response_tokens).
OBJECTIVES: dict[str, Callable[[int, int], Objective]] = {
    "longcat": lambda size, length: longcat_objective(group_size=size, max_response_tokens=length),
    "grpo": lambda size, length: grpo_objective(group_size=size, beta=0.0),
    "grpo-kl": lambda size, length: grpo_objective(group_size=size),
    "dr-grpo": lambda size, length: dr_grpo_objective(group_size=size, max_response_tokens=length),
    "dapo": lambda size, length: dapo_objective(),
    "gspo": lambda size, length: gspo_objective(group_size=size),
    "gspo-token": lambda size, length: gspo_token_objective(group_size=size),
    "cispo": lambda size, length: cispo_objective(),
    "dual-clip": lambda size, length: dual_clip_objective(group_size=size),
    "decoupled-ppo": lambda size, length: decoupled_ppo_objective(),
}


def objective_of(name: str, *, group_size: int, max_response_tokens: int) -> Objective:
    """The objective of that name in `OBJECTIVES`; ConfigError where there is none."""
    if name not in OBJECTIVES:
        raise ConfigError(f"no objective is called {name!r}. Choose among {', '.join(OBJECTIVES)}.")
    return OBJECTIVES[name](group_size, max_response_tokens)


# ---- corrections ----


def token_tis(objective: Objective, *, cap: float = 2.0) -> Objective:
    """Weighs a token by min(rho_t, cap): truncated importance sampling.

    The C of eq. 4 in arXiv:2509.18883, section 3.2.1, after Ionides (2008); 2 is what verl, slime
    and tunix use.
    """
    return _corrected(objective, cap, sequence_cap=None)


def sequence_tis(objective: Objective, *, cap: float = 2.0) -> Objective:
    """Weighs all tokens of a response by min(product of rho, cap): less bias, more variance."""
    return _corrected(objective, None, sequence_cap=cap)


def token_mis(objective: Objective, *, low: float = 0.5, high: float = 5.0) -> Objective:
    """Weighs a token by rho_t, and refuses it outside [low, high]: masked importance sampling.

    IcePop's bounds (as NeMo-RL documents them).
    """
    return _corrected(objective, high, sequence_cap=None, token=Band(low=low, high=high))


def sequence_mis(objective: Objective, *, low: float = 0.0, high: float = 3.0) -> Objective:
    """Weighs a response by the product of rho, and refuses it outside [low, high].

    3 is TRL's default.
    """
    return _corrected(objective, None, sequence_cap=high, sequence=Band(low=low, high=high))


def geometric_mask(objective: Objective, *, low: float = 0.999, high: float = 1.001) -> Objective:
    """Refuses a response whose geometric mean of rho is outside [low, high]; weights stay.

    The mean does not grow with the length, so the bounds are narrow. verl proposes these.
    """
    return _trusting(objective, geometric=Band(low=low, high=high))


def veto(objective: Objective, *, below: float = 1e-4) -> Objective:
    """Refuses a response with a token that the trainer finds far less likely than the engine did.

    rho_t < below says that the two do not run the same model on that token.
    """
    return _trusting(objective, veto_below=below)


def _corrected(objective: Objective, engine_cap: float | None, **trust) -> Objective:
    ratio = dataclasses.replace(objective.ratio, engine_cap=engine_cap)
    engine = dataclasses.replace(objective.engine, **trust)
    return dataclasses.replace(objective, ratio=ratio, engine=engine)


def _trusting(objective: Objective, **trust) -> Objective:
    engine = dataclasses.replace(objective.engine, **trust)
    return dataclasses.replace(objective, engine=engine)
