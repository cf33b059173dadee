"""Scoring where the trainer's program gives what the engine gives: no array is touched."""

import dataclasses
from collections.abc import Sequence

from loong_jax.rollout.records import Group


def scored_as_sampled(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups with their engine log-probabilities for behaviour ones."""
    return tuple(
        group.replace_rollouts(
            tuple(
                dataclasses.replace(rollout, behavior_logprob=rollout.engine_logprob)
                for rollout in group.rollouts
            )
        )
        for group in groups
    )
