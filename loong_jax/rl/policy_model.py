"""What the trainer needs to know of a model, as three functions over its weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Weights = dict[Any, Any]  # nested dicts of arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyModel:
    """A policy as functions; `weights` are nested dicts of arrays.

    forward(weights, tokens_BT, positions_BT, segment_ids_BT) -> (logits [B, T, V] float32, load [L, A] float32);
    is_controller(path): true for weights that a controller owns, not the optimizer;
    update_controllers(weights, load) -> weights with the controllers' step taken;
    load_metrics(load) -> numbers for metrics.jsonl.
    """

    forward: Callable[..., tuple[Array, Array]]
    is_controller: Callable[[tuple[Any, ...]], bool]
    update_controllers: Callable[[Weights, Array], Weights]
    load_metrics: Callable[[Array], dict[str, float]]


def token_logprobs(
    model: PolicyModel,
    weights: Weights,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Float[Array, "L A"]]:
    """Log-probability of each token given those before it in its segment, entropy there, and the load.

    In nats, under `temperature`. The first token of a segment and padding have 0 for both; entropy carries no gradient.
    """
    logits_BTV, load = model.forward(weights, tokens, positions, segment_ids)
    log_probability = jax.nn.log_softmax(logits_BTV[:, :-1].astype(jnp.float32) / temperature)
    is_predicted = has_predecessor(segment_ids)[:, 1:]
    chosen = jnp.take_along_axis(log_probability, tokens[:, 1:, None], axis=-1)[..., 0]
    logprob = jnp.where(is_predicted, chosen, 0.0)
    fixed = jax.lax.stop_gradient(log_probability)
    entropy = jnp.where(is_predicted, -jnp.sum(jnp.exp(fixed) * fixed, axis=-1), 0.0)
    before = ((0, 0), (1, 0))
    return jnp.pad(logprob, before), jnp.pad(entropy, before), load


def has_predecessor(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """True where a token follows another one of its own segment."""
    same = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0)
    return jnp.pad(same, ((0, 0), (1, 0)))
