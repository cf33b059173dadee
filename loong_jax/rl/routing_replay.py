"""Routing replay: the trainer sends a token to the experts that the engine had sent it to.

Engine and trainer compute the same numbers in different orders, so near-ties between targets fall
differently now and then, and such a token meets other weights in training than when it was sampled.
With replay the choice is the engine's, zero-computation experts included, and the gates are the
trainer's own, so gradients reach the router as usual. Prompts are routed freely, as is whatever the
engine has no choice for. The source of the idea is arXiv:2510.11370.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from loong_jax.rollout.records import Rollout

FREE = -1  # in place of a target: the router decides


class ReplayCounts(NamedTuple):
    """Sums over tokens, layers and the K choices of each."""

    replayed: Float[Array, ""]  # choices that the engine's record decided
    own_differed: Float[Array, ""]  # those of them that are not among the trainer's own
    used_differed: Float[Array, ""]  # and those that were not carried out, 0 unless we err


def no_counts() -> ReplayCounts:
    return ReplayCounts(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def count(
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


def metrics(counts: ReplayCounts) -> dict[str, float]:
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
