"""From groups of rollouts to the arrays a step trains on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from loong_jax.data import packing
from loong_jax.data.packing import Predicted
from loong_jax.errors import ConfigError
from loong_jax.rl import rewards
from loong_jax.rl.rewards import AdvantageEstimator
from loong_jax.rollout.records import Group, Rollout
from loong_jax.sharding import ShardingRules


class Layout(NamedTuple):
    """The packing of rollouts into rows."""

    lists: bool = False  # rows come with the list of what is predicted, and are no more than needed
    shares_prompts: bool = False  # responses lie behind one copy of their prompt, all tokens listed
    parts: int = 1  # of the rows, each on devices of its own


FLAT = Layout()


class TrajectoryBatch(NamedTuple):
    """Packed rows; entry t is about token t, given the tokens before it in its segment.

    Made of NumPy arrays; a program sees them as its own.
    """

    tokens: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]  # from 1 in each row; 0 is padding
    positions: Int[Array, "B T"]
    loss_mask: Bool[Array, "B T"]  # the policy wrote the token and it trains
    engine_logprob: Float[Array, "B T"]
    advantage: Float[Array, "B T"]
    version_lag: Int[Array, "B T"]  # trainer's version minus the token's
    behavior_logprob: Float[Array, "B T"] | None = None  # None: that of the step's own weights
    reference_logprob: Float[Array, "B T"] | None = None
    proximal_logprob: Float[Array, "B T"] | None = None
    routing: Int[Array, "B T L K"] | None = None  # choices to replay, see `count_replayed`
    parent_ids: Int[Array, "B T"] | None = None  # the segment of the prompt, see `packing.sharing`
    predicted: Predicted | None = None  # tokens that train; None: every token is predicted


def shapes(
    layout: Layout,
    rules: ShardingRules,
    rows: int,
    row_length: int,
    *,
    has_behavior: bool = True,
    has_reference: bool = False,
    num_choices: tuple[int, int] | None = None,
) -> TrajectoryBatch:
    """Shapes of a micro-batch on the mesh, whose every token is predicted.

    `num_choices` are L and K where routing is replayed.
    """

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=rules.spec("act_batch"))

    integers, numbers = (array(dtype, rows, row_length) for dtype in (jnp.int32, jnp.float32))
    places = array(jnp.int32, layout.parts, rows * row_length // layout.parts)
    return TrajectoryBatch(
        tokens=integers,
        segment_ids=integers,
        positions=integers,
        loss_mask=array(bool, rows, row_length),
        engine_logprob=numbers,
        advantage=numbers,
        version_lag=integers,
        behavior_logprob=numbers if has_behavior else None,
        reference_logprob=numbers if has_reference else None,
        routing=array(jnp.int32, rows, row_length, *num_choices) if num_choices else None,
        parent_ids=integers if layout.shares_prompts else None,
        predicted=Predicted(places, places) if layout.lists or layout.shares_prompts else None,
    )


def tokens_of(rollout: Rollout) -> np.ndarray:
    """Those of prompt and response, int32."""
    return np.concatenate([rollout.prompt, rollout.tokens]).astype(np.int32)


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
    scores_in_step: bool = False,
    layout: Layout = FLAT,
) -> list[TrajectoryBatch]:
    """Micro-batches [rows, row_length] of one step, in the order of (ticket, attempt) however
    groups arrived.

    Masked rollouts (reward None) take part in no baseline and take no room. `reference_logprob` is
    keyed by (ticket, attempt), aligned with the response. `scores_in_step` as in `TrainerSettings`.
    Raises ConfigError for a rollout that is longer than a row.
    """
    common_temperature(groups)
    sequences: list[dict[str, np.ndarray]] = []
    prompts: list[np.ndarray] = []
    for group in sorted(groups, key=lambda g: g.ticket.number):
        rollouts = sorted(group.rollouts, key=lambda r: r.attempt)
        advantage = rewards.group_advantages([r.reward for r in rollouts], estimator)
        for rollout, value in zip(rollouts, advantage.tolist(), strict=True):
            if rollout.reward is None or not np.any(rollout.loss_mask):
                continue
            refuse_longer(rollout, row_length)
            sequences.append(_fields(rollout, value, trainer_version, scores_in_step))
            prompts.append(rollout.prompt)
            if reference_logprob is not None:
                known = reference_logprob[rollout.ticket, rollout.attempt]
                sequences[-1]["reference_logprob"] = whole(rollout, known, np.float32)
            if replays_routing:
                sequences[-1]["routing"] = choices(rollout)
    return [
        TrajectoryBatch(**{name: fields[name] for name in fields if name != "source"})
        for fields in rows_of(sequences, prompts, "loss_mask", row_length, rows, layout)
    ]


def rows_of(
    sequences: Sequence[dict[str, np.ndarray]],
    prompts: Sequence[np.ndarray],
    mask: str,
    row_length: int,
    rows: int,
    layout: Layout,
) -> list[dict[str, Any]]:
    """Packed rows of `sequences`, each of which begins with its prompt.

    Where the layout lists, what is predicted are the tokens under the field `mask`; where it shares
    prompts, neighbours of one prompt lie behind it, as many as a row holds.
    """
    if layout.shares_prompts:
        sequences = [
            packing.sharing([sequences[i] for i in part], len(prompts[part[0]]))
            for part in _of_one_prompt(sequences, prompts, row_length)
        ]
    padding = {"routing": FREE}
    packed: list[dict[str, Any]] = list(
        packing.pack(
            sequences, row_length, rows, padding, fits_rows=layout.lists, parts=layout.parts
        )
    )
    if layout.lists or layout.shares_prompts:
        for fields in packed:
            wanted = fields[mask] if layout.lists else np.ones_like(fields[mask])
            fields["predicted"] = packing.predicted(fields, wanted, layout.parts)
    return packed


def _of_one_prompt(
    sequences: Sequence[dict[str, np.ndarray]], prompts: Sequence[np.ndarray], row_length: int
) -> list[list[int]]:
    """Neighbours by what may lie in a row behind one prompt."""
    parts: list[list[int]] = []
    room = 0
    for i, (sequence, prompt) in enumerate(zip(sequences, prompts, strict=True)):
        length = len(sequence["tokens"]) - len(prompt)
        if not parts or length > room or not np.array_equal(prompt, prompts[parts[-1][0]]):
            parts.append([])
            room = row_length - len(prompt)
        parts[-1].append(i)
        room -= length
    return parts


def refuse_longer(rollout: Rollout, row_length: int) -> None:
    """ConfigError where prompt and response do not lie in a row together."""
    length = len(rollout.prompt) + len(rollout.tokens)
    if length > row_length:
        raise ConfigError(
            f"rollout {rollout.attempt} of ticket {rollout.ticket} has {length} tokens, "
            f"{len(rollout.prompt)} of them its prompt, and a row holds row_length={row_length}. "
            "Raise row_length, or leave out problems that long."
        )


def common_temperature(groups: Sequence[Group]) -> float:
    """The temperature all rollouts were drawn at. None was drawn greedily or from a truncated
    distribution, whose support is not stored.
    """
    settings = {r.sampling for group in groups for r in group.rollouts}
    assert not any(sampling.greedy or sampling.is_truncated for sampling in settings), settings
    (temperature,) = {sampling.temperature for sampling in settings}
    return temperature


def _fields(
    rollout: Rollout, advantage: float, trainer_version: int, scores_in_step: bool
) -> dict[str, np.ndarray]:
    name = f"rollout {rollout.attempt} of ticket {rollout.ticket}"
    assert scores_in_step or rollout.behavior_logprob is not None, f"{name} is not scored"
    lag = trainer_version - versions_of_tokens(rollout)
    assert lag.min() >= 0, f"{name} is of a version later than the trainer's {trainer_version}"
    assert not (scores_in_step and lag.any()), f"{name} is of other weights than the step scores by"
    mask = whole(rollout, rollout.loss_mask, bool)
    behavior = {"behavior_logprob": whole(rollout, rollout.behavior_logprob, np.float32)}
    return ({} if scores_in_step else behavior) | {
        "tokens": tokens_of(rollout),
        "loss_mask": mask,
        "engine_logprob": whole(rollout, rollout.engine_logprob, np.float32),
        "advantage": np.where(mask, advantage, 0).astype(np.float32),
        "version_lag": whole(rollout, lag, np.int32),
    }


# ---- routing replay ----

# Engine and trainer compute the same numbers in different orders, so near-ties between targets fall
# differently now and then, and such a token meets other weights in training than when it was
# sampled. With replay the choice is the engine's, zero-computation experts included, and the gates
# are the trainer's own, so gradients reach the router as usual. Prompts are routed freely, as is
# whatever the engine has no choice for. The source of the idea is arXiv:2510.11370.

FREE = -1  # in place of a target: the router decides


class ReplayCounts(NamedTuple):
    """Sums over tokens, layers and the K choices of each."""

    replayed: Float[Array, ""]  # choices that the engine's record decided
    own_differed: Float[Array, ""]  # those of them that are not among the trainer's own
    used_differed: Float[Array, ""]  # and those that were not carried out, 0 unless we err


def count_replayed(
    recorded: Int[Array, "L B T K"],
    own: Int[Array, "L B T K"],
    used: Int[Array, "L B T K"],
    mask: Bool[Array, "B T"],
) -> ReplayCounts:
    """Compares sets, since the order of the choices of a token means nothing."""
    is_replayed = jnp.all(recorded >= 0, axis=-1, keepdims=True) & mask[None, ..., None]

    def differing(found: Int[Array, "L B T K"]) -> Float[Array, ""]:
        is_found = jnp.any(recorded[..., :, None] == found[..., None, :], axis=-1)
        return jnp.sum(is_replayed & ~is_found, dtype=jnp.float32)

    replayed = jnp.sum(is_replayed, dtype=jnp.float32) * recorded.shape[-1]
    return ReplayCounts(replayed, differing(own), differing(used))


def replay_metrics(counts: ReplayCounts) -> dict[str, float]:
    """Shares of the replayed choices; their number is 0 where nothing was replayed."""
    replayed = float(counts.replayed)
    return {
        "routing/replayed_choices": replayed,
        "routing/mismatch_before": float(counts.own_differed) / max(replayed, 1.0),
        "routing/mismatch_after": float(counts.used_differed) / max(replayed, 1.0),
    }


def choices(rollout: Rollout) -> np.ndarray:
    """int16 [prompt and response, L, K]: what is replayed of it, FREE for the prompt."""
    assert rollout.routing is not None, "its engine recorded no routing"
    found: Any = np.array(rollout.routing, np.int16)
    found[: len(rollout.prompt)] = FREE
    return found
