"""Rollouts for people: figures of many in the field's usual metric names, and one line of each."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from loong_jax.data.response import FORMS, ResponseForm, read
from loong_jax.environments.environment import Problem
from loong_jax.rollout.records import Group, Rollout


def rollouts_of(groups: Iterable[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def completion_metrics(
    rollouts: Sequence[Rollout], form: ResponseForm = FORMS["tagged"]
) -> dict[str, float]:
    """Lengths in tokens, shares in [0, 1]; empty for no rollouts.

    `rewards/mean` leaves masked rollouts out; `rewards/masked` is their share.
    """
    if not rollouts:
        return {}
    lengths = np.array([len(rollout.tokens) for rollout in rollouts])
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    metrics = {
        "completions/mean_length": float(lengths.mean()),
        "completions/max_length": float(lengths.max()),
        "completions/cut_off": _share(r.finish_reason == "length" for r in rollouts),
        "completions/well_formed": _share(read(r.text, form).is_well_formed for r in rollouts),
        "rewards/masked": 1 - len(rewards) / len(rollouts),
    }
    if rewards:
        metrics["rewards/mean"] = float(np.mean(rewards))
    return metrics


def staleness_histogram(groups: Iterable[Group], trainer_version: int) -> dict[str, int]:
    """How many rollouts were trained on at each staleness, in steps."""
    counts = Counter(
        trainer_version - rollout.version for group in groups for rollout in group.rollouts
    )
    return {str(staleness): counts[staleness] for staleness in sorted(counts)}


def _share(flags: Iterable[bool]) -> float:
    return float(np.mean([bool(flag) for flag in flags]))


def readable(
    problem: Problem, rollout: Rollout, form: ResponseForm = FORMS["tagged"]
) -> dict[str, Any]:
    """A line of a `rollouts/*.jsonl` file as JSON values.

    `thinking` and `answer` are null where the form of the response is broken.
    """
    found, verdict = read(rollout.text, form), rollout.verdict
    return {
        "uid": problem.uid,
        "domain": problem.domain,
        "level": problem.level,
        "prompt": problem.prompt,
        "text": rollout.text,
        "thinking": found.thinking if found.is_well_formed else None,
        "answer": found.answer if found.is_well_formed else None,
        "outcome": verdict.outcome if verdict else None,
        "reason": verdict.reason if verdict else "",
        "evidence": verdict.evidence if verdict else "",
        "isolation": verdict.isolation if verdict else "none",
        "version": rollout.version,
        "reward": rollout.reward,
        "num_tokens": len(rollout.tokens),
        "finish_reason": rollout.finish_reason,
    }
