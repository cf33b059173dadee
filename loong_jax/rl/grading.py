"""What a judged group is good for: it trains, teaches nothing, or cannot be graded."""

from typing import Literal

from loong_jax.rl import advantages, rewards
from loong_jax.rl.rewards import RewardSource
from loong_jax.rollout.records import Group

Disposition = Literal["keep", "filtered", "ungradable", "failed"]


def grade(group: Group, source: RewardSource) -> tuple[Group, Disposition]:
    """The group with its rewards, and whether a step may use it (arXiv:2509.18883, 3.2.2).

    `filtered`: all valid rewards are equal; `ungradable`: fewer than two are valid; `failed`: no
    attempt came to an end at all.
    """
    rewarded = rewards.reward_group(group, source)
    if all(r.finish_reason in ("failed", "cancelled") for r in rewarded.rollouts):
        return rewarded, "failed"
    signal = advantages.group_signal([rollout.reward for rollout in rewarded.rollouts])
    return rewarded, "keep" if signal == "trains" else signal
