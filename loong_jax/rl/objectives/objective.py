"""An objective: its four parts, and what may be added to them."""

import dataclasses
from typing import get_args

from loong_jax import own
from loong_jax.errors import ConfigError
from loong_jax.rl import advantages
from loong_jax.rl.objectives.clips import Clip
from loong_jax.rl.objectives.engine_trust import EngineTrust
from loong_jax.rl.objectives.ratios import DecoupledRatio, Ratio
from loong_jax.rl.objectives.reductions import Reduction


@dataclasses.dataclass(frozen=True, kw_only=True)
class K3KL:
    """beta * (exp(d) - d - 1) with d = reference - policy log-probability, for each token."""

    beta: float

    def __post_init__(self):
        _check_beta(self.beta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class K2KL:
    """beta * d^2 / 2 with d = reference - policy log-probability, for each token.

    On the policy's own samples its gradient is that of the reverse KL, and it grows with d where
    that of k3 grows with exp(d): the one to follow a distant reference, such as a teacher, by.
    """

    beta: float

    def __post_init__(self):
        _check_beta(self.beta)


def _check_beta(beta: float) -> None:
    if not 0 <= beta < float("inf"):
        raise ConfigError(f"beta={beta} must be finite and >= 0. Use kl=None for no penalty.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What a rollout teaches (signal), how far the policy has moved (ratio), where that stops
    (clip), how tokens become one number (reduction); besides, a penalty and trust in the engine.
    """

    signal: advantages.AdvantageEstimator
    ratio: Ratio
    clip: Clip
    reduction: Reduction
    kl: K3KL | K2KL | None = None
    engine: EngineTrust = EngineTrust()

    def __post_init__(self):
        for name, kinds, method in (
            ("signal", advantages.AdvantageEstimator, "advantages"),
            ("clip", Clip, "gain"),
        ):
            if not isinstance(part := getattr(self, name), kinds):
                contract = own.Contract([method], "docs/tutorials/own_objective.md")
                object.__setattr__(self, name, own.as_own(part, name, contract))
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
