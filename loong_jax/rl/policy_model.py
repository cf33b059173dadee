"""What the trainer needs to know of a model, as three functions over its weights."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe import parameters, router
from loong_jax.models.moe.config import MoEConfig
from loong_jax.sharding import place_like

Weights = dict[Any, Any]  # nested dicts of arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyModel:
    """A policy as functions; `weights` are nested dicts of arrays.

    forward(weights, tokens_BT, positions_BT, segment_ids_BT) -> logits_BTV float32, load_LA int32;
    is_controller(path) -> true for weights that a controller owns, not the optimizer;
    matrix_axes(path) -> input and output axes of a matrix of the layers, other axes are stacks of
    matrices; None for anything else (see `optimizers.Muon`);
    update_controllers(weights, load_LA) -> weights with the controllers' step taken;
    load_metrics(load_LA) -> numbers for metrics.jsonl.
    """

    forward: Callable[..., tuple[Array, Array]]
    is_controller: Callable[[tuple[Any, ...]], bool]
    matrix_axes: Callable[[tuple[Any, ...]], tuple[tuple[int, ...], tuple[int, ...]] | None]
    update_controllers: Callable[[Weights, Array], Weights]
    load_metrics: Callable[[Array], dict[str, float]]


def token_logprobs(
    model: PolicyModel,
    weights: Weights,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Int[Array, "L A"]]:
    """Log-probability of each token given those before it in its segment, entropy, and load.

    In nats, under `temperature`. The first token of a segment and padding have 0 for both; entropy
    carries no gradient. On a mesh every device must hold whole rows of the integer arrays, since
    what stands at position t is moved to t + 1; logits may be cut along T as the model likes.
    """
    logits_BTV, load = model.forward(weights, tokens, positions, segment_ids)
    log_probability = jax.nn.log_softmax(logits_BTV.astype(jnp.float32) / temperature)
    following = place_like(jnp.roll(tokens, -1, axis=1), logits_BTV[..., 0])
    chosen = jnp.take_along_axis(log_probability, following[..., None], axis=-1)[..., 0]
    fixed = jax.lax.stop_gradient(log_probability)
    entropy = -jnp.sum(jnp.exp(fixed) * fixed, axis=-1)
    is_predicted = has_predecessor(segment_ids)
    logprob, entropy = (
        jnp.where(is_predicted, jnp.roll(place_like(found, tokens), 1, axis=1), 0.0)
        for found in (chosen, entropy)
    )
    return logprob, entropy, load


def has_predecessor(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """True where a token follows another one of its own segment."""
    same = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0)
    return jnp.pad(same, ((0, 0), (1, 0)))


# Input and output axes of LongCat-Flash's matrices by the end of their path; axis 0 is the layer.
MATRIX_AXES = {
    ("query_down",): ((1,), (2,)),
    ("query_up",): ((1,), (2, 3)),
    ("latent_down",): ((1,), (2,)),
    ("latent_up",): ((1,), (2, 3)),
    ("out",): ((1, 2), (3,)),
    ("gate",): ((1,), (2,)),
    ("up",): ((1,), (2,)),
    ("down",): ((1,), (2,)),
    ("experts", "gate_up"): ((2,), (4,)),
    ("experts", "down"): ((2,), (3,)),
}


@functools.lru_cache(maxsize=16)
def longcat_policy(graphdef: nnx.GraphDef, config: MoEConfig, bias_rate: float) -> PolicyModel:
    """LongCat-Flash as a policy; `bias_rate` is the step of the bias controller, 0 to hold it."""

    def forward(weights, tokens, positions, segment_ids):
        model = nnx.merge(graphdef, nnx.State(weights))
        output = model(tokens, positions=positions, segment_ids=segment_ids)
        return output.logits, output.load

    def update_controllers(weights, load):
        def leaf(path, weight):
            if not parameters.is_controller_state(path):
                return weight
            return router.update_bias(weight, load, config, bias_rate)

        return jax.tree_util.tree_map_with_path(leaf, weights)

    def load_metrics(load):
        load = np.asarray(load, np.float64)
        ffn = load[:, : config.num_experts]
        choices = np.maximum(load.sum(axis=1), 1.0)
        balance = ffn.max(axis=1) / np.maximum(ffn.mean(axis=1), 1e-9)
        return {
            "load/ffn_experts_per_token": float(
                np.mean(config.num_chosen * ffn.sum(axis=1) / choices)
            ),
            "load/max_over_mean": float(balance.mean()),
        }

    return PolicyModel(
        forward=forward,
        is_controller=parameters.is_controller_state,
        matrix_axes=lambda path: (
            MATRIX_AXES.get(tuple(path[-2:])) or MATRIX_AXES.get(tuple(path[-1:]))
        ),
        update_controllers=update_controllers,
        load_metrics=load_metrics,
    )
