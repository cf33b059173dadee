"""Rewards and advantages: from the verdicts of a group to what the loss multiplies.

Here alone a verdict becomes a number, as data in the recipe. Incomplete signals are
masked (arXiv:2509.18883, 3.2.2): a rollout whose verifier failed, and one cut off at the length
limit unless it repeats itself or the rule has a value for it, has the reward None. It is in no mean
and no standard deviation, and its advantage is 0. With fewer than two rewards there is nothing to
compare, so the group is ungradable; where all rewards are equal it teaches nothing and is filtered.
"""

import dataclasses
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from loong_jax.errors import ConfigError, refuse_outside, shown
from loong_jax.own import OwnPart, name_of
from loong_jax.rollout.records import Group, Rollout


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepetitionDetector:
    """Text repeats itself where its tail shrinks by more than `threshold` under DEFLATE.

    The ratio grows with the length of the text; 10 suits 10,000 characters, 2 to 3 suits a hundred.
    """

    threshold: float = 10.0
    window: int = 10_000  # characters, from the end
    min_length: int = 32  # shorter texts are never called repetitive

    def __post_init__(self):
        if not self.threshold > 1 or not 0 < self.min_length <= self.window:
            raise ConfigError(
                f"threshold={self.threshold} must exceed 1 and min_length={self.min_length} lie "
                f"in 1..window={self.window}. Correct the recipe."
            )

    def is_repetitive(self, text: str) -> bool:
        tail = text[-self.window :]
        return len(tail) >= self.min_length and compression_ratio(tail) > self.threshold


def compression_ratio(text: str) -> float:
    """Bytes of the text over bytes of its DEFLATE form (no header); 1.0 for the empty text."""
    raw = text.encode()
    if not raw:
        return 1.0
    compressor = zlib.compressobj(level=9, wbits=-15)
    return len(raw) / len(compressor.compress(raw) + compressor.flush())


_WORTH_LESS = ("wrong", "malformed", "repetitive", "truncated")  # than a right answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardRule:
    """The reward of a verdict."""

    correct: float = 1.0
    wrong: float = 0.0
    malformed: float = 0.0  # wrong because the form is broken: the verdict's reason is "format"
    repetitive: float = 0.0  # cut off at the length limit while repeating itself
    truncated: float | None = None  # cut off at the length limit otherwise; None masks it
    judges_truncated: bool = False  # a cut-off rollout gets its verdict's reward instead of these
    repetition: RepetitionDetector = RepetitionDetector()

    def __post_init__(self):
        refuse_outside(self, "(-inf, inf)", "correct", *_WORTH_LESS)
        others = {name: value for name in _WORTH_LESS if (value := getattr(self, name)) is not None}
        if self.correct <= max(others.values()):
            named = ", ".join(f"{name}={value}" for name, value in others.items())
            raise ConfigError(f"correct={self.correct} must exceed {named}. Correct the recipe.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseReward:
    """Negative control: each group's rewards, dealt out at random among its valid rollouts.

    Mean and variance of every group stay exactly what `rule` gives, so the same groups are filtered
    and the advantages are as large, but what a rollout receives no longer depends on what it says.
    The order is a pure function of (seed, ticket).
    """

    seed: int = 0
    rule: RewardRule = RewardRule()


RewardSource = RewardRule | NoiseReward


def rollout_reward(rollout: Rollout, rule: RewardRule) -> float | None:
    """Reward of one rollout, or None where it must be masked."""
    if rollout.failure or rollout.finish_reason in ("cancelled", "failed"):
        return None
    if rollout.finish_reason == "length" and not rule.judges_truncated:
        repeats = rule.repetition.is_repetitive(rollout.text)
        return rule.repetitive if repeats else rule.truncated
    verdict = rollout.verdict
    if verdict is None or not verdict.is_graded:
        return None
    if verdict.is_correct:
        return float(rule.correct)
    return float(rule.malformed if verdict.reason == "format" else rule.wrong)


def reward_group(group: Group, source: RewardSource) -> Group:
    """The group with its rewards; verdicts must be in."""
    rule = source.rule if isinstance(source, NoiseReward) else source
    rewards = [rollout_reward(rollout, rule) for rollout in group.rollouts]
    if isinstance(source, NoiseReward):
        rewards = _deal_again(rewards, f"{source.seed}/{group.ticket.key}")
    return group.replace_rollouts(
        tuple(
            dataclasses.replace(rollout, reward=reward)
            for rollout, reward in zip(group.rollouts, rewards, strict=True)
        )
    )


def _deal_again(rewards: list[float | None], key: str) -> list[float | None]:
    valid = [index for index, reward in enumerate(rewards) if reward is not None]
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(valid))
    dealt = list(rewards)
    for place, source in zip(valid, order, strict=True):
        dealt[place] = rewards[valid[int(source)]]
    return dealt


# ---- what a group is good for ----

Disposition = Literal["keep", "filtered", "ungradable", "failed"]


def grade(group: Group, source: RewardSource) -> tuple[Group, Disposition]:
    """The group with its rewards, and whether a step may use it (arXiv:2509.18883, 3.2.2).

    `filtered`: all valid rewards are equal; `ungradable`: fewer than two are valid; `failed`: no
    attempt came to an end at all.
    """
    rewarded = reward_group(group, source)
    if all(r.finish_reason in ("failed", "cancelled") for r in rewarded.rollouts):
        return rewarded, "failed"
    return rewarded, group_signal([rollout.reward for rollout in rewarded.rollouts])


def group_signal(rewards: Sequence[float | None]) -> Disposition:
    """`ungradable` with fewer than two valid rewards, `filtered` where all are equal, or `keep`."""
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < 2:
        return "ungradable"
    return "filtered" if min(valid) == max(valid) else "keep"


# ---- advantages ----


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupNormalised:
    """(R - mean) / (standard deviation + eps), both over the group's valid rollouts (GRPO).

    The deviation is that of the population (divisor n), so +1 and -1 are the advantages of a group
    that is half right.
    """

    eps: float = 1e-4

    def __post_init__(self):
        refuse_outside(self, "(0, inf]", "eps")

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        """The advantages from the valid rewards of one group: at least two, not all equal."""
        return (rewards - rewards.mean()) / (rewards.std() + self.eps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanOnly:
    """R - mean, without division: hard and easy problems keep their weight (Dr. GRPO,
    arXiv:2503.20783).
    """

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        return rewards - rewards.mean()


AdvantageEstimator = GroupNormalised | MeanOnly | OwnPart


def group_advantages(rewards: Sequence[float | None], estimator: AdvantageEstimator) -> np.ndarray:
    """Advantages of one group, float32 [G]; 0 for masked rollouts and a group without signal."""
    advantage = np.zeros(len(rewards), np.float32)
    if group_signal(rewards) != "keep":
        return advantage
    is_valid = np.array([reward is not None for reward in rewards])
    valid = np.array([reward for reward in rewards if reward is not None], np.float64)
    given: Any = estimator.advantages(valid)
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):  # no numbers
        found = np.empty(0)
    if found.shape != valid.shape or not np.all(np.isfinite(found)):
        what = "" if given is None else f", {found.size} numbers of shape {found.shape}"
        raise ConfigError(
            f"{name_of(estimator)}: `advantages` gave {shown(given)}{what}, for {len(valid)} "
            f"rewards. Return one finite number for each, in the shape {valid.shape}."
        )
    advantage[is_valid] = found
    return advantage
