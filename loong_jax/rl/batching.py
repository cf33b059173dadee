"""From groups of rollouts to the arrays a step trains on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from loong_jax.data import packing
from loong_jax.rl import advantages, routing_replay
from loong_jax.rl.advantages import AdvantageEstimator
from loong_jax.rollout.records import Group, Rollout


class TrajectoryBatch(NamedTuple):
    """Packed rows; entry t is about token t, given the tokens before it in its segment.

    Made of NumPy arrays; a program sees them as its own.
    """

    tokens: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]  # from 1 in each row; 0 is padding
    positions: Int[Array, "B T"]
    loss_mask: Bool[Array, "B T"]  # the policy wrote the token and it trains
    engine_logprob: Float[Array, "B T"]
    behavior_logprob: Float[Array, "B T"]
    advantage: Float[Array, "B T"]
    version_lag: Int[Array, "B T"]  # trainer's version minus the token's
    reference_logprob: Float[Array, "B T"] | None = None
    proximal_logprob: Float[Array, "B T"] | None = None
    routing: Int[Array, "B T L K"] | None = None  # choices to replay, see `routing_replay`


def whole(rollout: Rollout, values: np.ndarray | None, dtype: Any) -> np.ndarray:
    """Values about the response, preceded by zeros for the prompt; None gives zeros throughout."""
    head = np.zeros(len(rollout.prompt), dtype)
    tail = np.zeros(len(rollout.tokens), dtype) if values is None else np.asarray(values, dtype)
    return np.concatenate([head, tail])


def versions_of_tokens(rollout: Rollout) -> np.ndarray:
    """Policy version of each response token, int32."""
    version = np.zeros(len(rollout.tokens), np.int32)
    for first, number in rollout.versions:
        version[first:] = number
    return version


def make_batches(
    groups: Sequence[Group],
    estimator: AdvantageEstimator,
    *,
    trainer_version: int,
    rows: int,
    row_length: int,
    reference_logprob: dict[tuple[int, int], np.ndarray] | None = None,
    replays_routing: bool = False,
) -> list[TrajectoryBatch]:
    """Micro-batches [rows, row_length] of one step, in the order of (ticket, attempt) however
    groups arrived.

    Masked rollouts (reward None) take part in no baseline and take no room. `reference_logprob` is
    keyed by (ticket, attempt), aligned with the response. Raises ValueError for rollouts that may
    not train: from the future, greedy or with truncated support, without the trainer's own
    log-probabilities, of mixed temperature, without routing where it is replayed.
    """
    common_temperature(groups)
    sequences = []
    for group in sorted(groups, key=lambda g: g.ticket.number):
        rollouts = sorted(group.rollouts, key=lambda r: r.attempt)
        advantage = advantages.group_advantages([r.reward for r in rollouts], estimator)
        for rollout, value in zip(rollouts, advantage.tolist(), strict=True):
            if rollout.reward is None or not np.any(rollout.loss_mask):
                continue
            sequences.append(_fields(rollout, value, trainer_version))
            if reference_logprob is not None:
                known = reference_logprob[rollout.ticket, rollout.attempt]
                sequences[-1]["reference_logprob"] = whole(rollout, known, np.float32)
            if replays_routing:
                sequences[-1]["routing"] = routing_replay.choices(rollout)
    packed: list[dict[str, Any]] = list(
        packing.pack(sequences, row_length, rows, padding={"routing": routing_replay.FREE})
    )
    return [TrajectoryBatch(**fields) for fields in packed]


def common_temperature(groups: Sequence[Group]) -> float:
    """The temperature all rollouts were drawn at; ValueError where they differ or cannot train."""
    settings = {r.sampling for group in groups for r in group.rollouts}
    for sampling in settings:
        if sampling.greedy or sampling.is_truncated:
            raise ValueError(
                f"rollouts drawn with {sampling} cannot train: the support they were drawn from "
                "is not stored. Sample training data with greedy=False, top_p=1, top_k=0."
            )
    temperatures = {sampling.temperature for sampling in settings}
    if len(temperatures) != 1:
        raise ValueError(
            f"a batch needs exactly one temperature, found {sorted(temperatures)}. Keep it "
            "constant within a run."
        )
    return temperatures.pop()


def _fields(rollout: Rollout, advantage: float, trainer_version: int) -> dict[str, np.ndarray]:
    name = f"rollout {rollout.attempt} of ticket {rollout.ticket}"
    if rollout.behavior_logprob is None:
        raise ValueError(f"{name} has no behavior_logprob. Score its group before training on it.")
    lag = trainer_version - versions_of_tokens(rollout)
    if lag.min() < 0:
        raise ValueError(
            f"{name} has version {trainer_version - lag.min()}, later than the trainer's "
            f"{trainer_version}. Train on what published versions wrote."
        )
    mask = whole(rollout, rollout.loss_mask, bool)
    return {
        "tokens": np.concatenate([rollout.prompt, rollout.tokens]).astype(np.int32),
        "loss_mask": mask,
        "engine_logprob": whole(rollout, rollout.engine_logprob, np.float32),
        "behavior_logprob": whole(rollout, rollout.behavior_logprob, np.float32),
        "advantage": np.where(mask, advantage, 0).astype(np.float32),
        "version_lag": whole(rollout, lag, np.int32),
    }
