"""Advantages: a reward minus the baseline of its group.

A reward of None is a masked rollout (ungradable verdict, truncated without repetition). It is in no
mean and no standard deviation, and its advantage is 0. With fewer than two rewards there is nothing
to compare, so the group is ungradable; where all rewards are equal it teaches nothing and is
filtered.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.own import OwnPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupNormalised:
    """(R - mean) / (standard deviation + eps), both over the group's valid rollouts (GRPO).

    The deviation is that of the population (divisor n), so +1 and -1 are the advantages of a group
    that is half right.
    """

    eps: float = 1e-4

    def __post_init__(self):
        if not self.eps > 0:
            raise ConfigError(f"eps={self.eps} must be positive. Use a value such as 1e-4.")

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        """Of the valid rewards of one group: at least two, not all equal."""
        return (rewards - rewards.mean()) / (rewards.std() + self.eps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanOnly:
    """R - mean, without division: hard and easy problems keep their weight (Dr. GRPO,
    arXiv:2503.20783).
    """

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        return rewards - rewards.mean()


AdvantageEstimator = GroupNormalised | MeanOnly | OwnPart
GroupSignal = Literal["trains", "filtered", "ungradable"]


def group_advantages(rewards: Sequence[float | None], estimator: AdvantageEstimator) -> np.ndarray:
    """Advantages of one group, float32 [G]; 0 for masked rollouts and a group without signal."""
    advantage = np.zeros(len(rewards), np.float32)
    if group_signal(rewards) != "trains":
        return advantage
    is_valid = np.array([reward is not None for reward in rewards])
    valid = np.array([reward for reward in rewards if reward is not None], np.float64)
    found = np.asarray(estimator.advantages(valid))
    if found.shape != valid.shape or not np.all(np.isfinite(found)):
        raise ConfigError(
            f"{estimator} gave {found!r:.80} for the rewards {valid.tolist()!r:.80}. `advantages` "
            "returns one finite number for each."
        )
    advantage[is_valid] = found
    return advantage


def group_signal(rewards: Sequence[float | None]) -> GroupSignal:
    """`ungradable` with fewer than two valid rewards, `filtered` where all are equal, else
    `trains`.
    """
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < 2:
        return "ungradable"
    return "filtered" if min(valid) == max(valid) else "trains"
