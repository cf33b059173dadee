"""The trainer's view of a model, as functions over its weights."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.models import families, parameters
from loong_jax.models.decoder import LogitsOf
from loong_jax.models.dense import DenseConfig
from loong_jax.models.families import ModelConfig
from loong_jax.models.moe import core_attention, router, scaling
from loong_jax.models.moe.balance import BiasController, ControllerMemory
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.model import LongcatFlash, ModelOutput
from loong_jax.models.parameters import Weights
from loong_jax.rl import auxiliary, batching, logprobs
from loong_jax.rl.auxiliary import AuxiliaryLosses, Batch, Metrics
from loong_jax.rl.batching import ReplayCounts
from loong_jax.sharding import NO_MESH, ShardingRules


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyModel:
    """A policy as functions; `weights` are nested dicts of arrays.

    states(weights, batch) -> the states hidden_BTD that predict the next token, load_LA int32, and
    what came of the replay. A batch has `tokens`, `segment_ids` and `positions` [B, T] and perhaps
    `parent_ids`, where `sees_parents` says that tokens see the segment it names beside their own,
    and `routing` [B, T, L, K] to be replayed (`batching.count_replayed`);
    logits(weights, num_tokens) -> a function that makes logits_FNV float32 of states hidden_FND,
    some at a time of so many in all; see `models.decoder.logits_for` for where they lie;
    lists: batches name what is predicted and are no larger than that needs, each size a program of
    its own; else every token is predicted, and there is one size;
    is_controller(path) -> true for weights that a controller owns, not the optimizer;
    matrix_axes(path) -> input and output axes of a matrix of the layers, other axes are stacks of
    matrices; None for anything else (see `optimizers.Muon`);
    initial_memory() -> what the controllers remember before the first step;
    update_controllers(weights, memory, load_LA) -> weights with the controllers' step taken, and
    their memory after it;
    load_metrics(load_LA) -> numbers for metrics.jsonl;
    join(weights, frozen) -> the whole weights, which all other functions take, from those that are
    trained and those that are not (see `lora`);
    published(weights) -> the weights in the dtypes that engines sample with: a matrix in that of
    the model's activations, which is what it is rounded to in training before it multiplies;
    load_shape: L and A, 0 without routers;
    rules: where weights and rows of a batch lie.

    In supervised training, where there are such things:
    forward_with_losses(weights, batch) -> the model's output (hidden, load), a loss to add
    to the model's own, metrics of its terms;
    routing_metrics(weights, batch, loss) -> metrics of the routers under
    `loss(weights, output, batch)`;
    rate_multiplier(path) -> what the learning rate of a weight is multiplied by.
    """

    states: Callable[..., tuple[Array, Array, ReplayCounts | None]]
    logits: Callable[[Weights, int], LogitsOf]
    is_controller: Callable[[tuple[Any, ...]], bool]
    matrix_axes: Callable[[tuple[Any, ...]], tuple[tuple[int, ...], tuple[int, ...]] | None]
    update_controllers: Callable[[Weights, Any, Array], tuple[Weights, Any]]
    load_metrics: Callable[[Array], dict[str, float]]
    load_shape: tuple[int, int] = (0, 0)
    rules: ShardingRules = NO_MESH
    lists: bool = False
    sees_parents: bool = False
    join: Callable[[Weights, Any], Weights] = lambda weights, frozen: weights
    published: Callable[[Weights], Weights] = lambda weights: weights
    initial_memory: Callable[[], Any] = lambda: ()
    forward_with_losses: Callable[..., tuple[Any, Array, dict[str, Array]]] | None = None
    routing_metrics: Callable[..., dict[str, Array]] | None = None
    rate_multiplier: Callable[[tuple[Any, ...]], float] | None = None


# Fields of a batch that `replayed_logprobs` looks at; all but the first three may be None.
FIELDS = ("tokens", "segment_ids", "positions", "routing", "parent_ids", "predicted")


def replayed_logprobs(
    model: PolicyModel, weights: Weights, batch: Batch, temperature: Float[Array, ""] | float
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Int[Array, "L A"], ReplayCounts | None]:
    """Log-probability of each token given those before it in its segment, entropy, and load, with
    the experts that `routing` names, and what came of that: None without routing.

    With a list of what is `predicted` all other tokens have 0, and no logits are made for them.
    """
    hidden, load, counts = model.states(weights, batch)
    logits = functools.partial(model.logits, weights)
    which = batch["tokens"], batch["segment_ids"], batch.get("predicted")
    found = logprobs.listed_logprobs(logits, hidden, *which, temperature)
    return *found, load, counts


def in_dtypes_of(weights: Weights, like: Weights) -> Weights:
    """`weights`, each rounded or widened to the dtype of its fellow in `like`."""
    return jax.tree.map(lambda weight, other: weight.astype(other.dtype), weights, like)


def published(weights: Weights, config: ModelConfig) -> Weights:
    """The weights in the dtypes they would have if they came in the dtype of activations."""
    sampled = dataclasses.replace(config, param_dtype=config.dtype)
    return in_dtypes_of(weights, families.family_of(config).abstract_weights(sampled)[1])


# With no more words than this a LongCat's logits cost less than programs of several sizes.
_FEW_WORDS = 1024
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


def policy_of(
    graphdef: nnx.GraphDef,
    config: ModelConfig,
    bias: BiasController | float = 0.0,
    losses: AuxiliaryLosses = auxiliary.NONE,
    rates_of: MoEConfig | None = None,
    *,
    rules: ShardingRules = NO_MESH,
    watches_exchange: bool = False,
) -> PolicyModel:
    """A model of any family as a policy; the same object for the same arguments.

    `rules` are those that `graphdef` was made under. What concerns routers is for models that have
    them; see `longcat_policy`. Raises ConfigError where losses or `rates_of` do not fit the model.
    """
    if isinstance(config, MoEConfig):
        return longcat_policy(
            graphdef, config, bias, losses, rates_of, rules=rules, watches_exchange=watches_exchange
        )
    if losses.are_any or rates_of is not None:
        raise ConfigError(
            f"losses={losses} and rates_of={rates_of} for a {type(config).__name__}: auxiliary "
            "losses and the transfer over widths are LongCat-Flash's. Leave both out."
        )
    return dense_policy(graphdef, config, rules)


# As `MATRIX_AXES`, of a dense decoder.
DENSE_MATRIX_AXES = {
    "query": ((1,), (2, 3, 4)),
    "key": ((1,), (2, 3)),
    "value": ((1,), (2, 3)),
    "out": ((1, 2, 3), (4,)),
    "gate": ((1,), (2,)),
    "up": ((1,), (2,)),
    "down": ((1,), (2,)),
}


_CALL = ("positions", "segment_ids", "parent_ids")  # of a batch, beside its tokens


@functools.lru_cache(maxsize=16)
def dense_policy(
    graphdef: nnx.GraphDef, config: DenseConfig, rules: ShardingRules = NO_MESH
) -> PolicyModel:
    """A dense decoder as a policy: no routers, no controllers, an empty load."""

    def states(weights: Weights, batch: Batch) -> tuple[Array, Array, None]:
        model = nnx.merge(graphdef, nnx.State(weights))
        output = model(batch["tokens"], **{name: batch.get(name) for name in _CALL})
        return output.hidden, jnp.zeros((0, 0), jnp.int32), None

    return PolicyModel(
        rules=rules,
        states=states,
        logits=lambda weights, num: nnx.merge(graphdef, nnx.State(weights)).logits_for(num),
        lists=True,
        sees_parents=True,
        published=lambda weights: published(weights, config),
        is_controller=lambda path: False,
        matrix_axes=lambda path: DENSE_MATRIX_AXES.get(path[-1]),
        update_controllers=lambda weights, memory, load: (weights, memory),
        load_metrics=lambda load: {},
    )


@functools.lru_cache(maxsize=16)
def longcat_policy(
    graphdef: nnx.GraphDef,
    config: MoEConfig,
    bias: BiasController | float,
    losses: AuxiliaryLosses = auxiliary.NONE,
    rates_of: MoEConfig | None = None,
    *,
    rules: ShardingRules = NO_MESH,
    watches_exchange: bool = False,
) -> PolicyModel:
    """LongCat-Flash as a policy.

    `bias` controls the router biases; a number is the rate of the published law, 0 to hold them.
    `rates_of` is the config, narrower say, for which the learning rate was chosen: see
    `scaling`. `watches_exchange` says in supervised training which share of the choices of
    experts found the buffers of the exchange full and waited for a later round. Raises ConfigError
    where losses or `rates_of` do not fit the model.
    """
    losses.refuse_misfit(config)
    controller = bias if isinstance(bias, BiasController) else BiasController(rate=bias)

    def run(
        weights: Weights,
        batch: Batch,
        score_shift: Float[Array, "L A"] | None = None,
        forced_target: Int[Array, "L B T K"] | None = None,
    ) -> tuple[LongcatFlash, ModelOutput]:
        model = nnx.merge(graphdef, nnx.State(weights))
        call = {name: batch.get(name) for name in _CALL}
        routers = dict(score_shift=score_shift, forced_target=forced_target)
        return model, model(batch["tokens"], **call, **routers)

    def states(weights: Weights, batch: Batch) -> tuple[Array, Array, ReplayCounts | None]:
        if (routing := batch.get("routing")) is None:
            _, output = run(weights, batch)
            return output.hidden, output.load, None
        recorded = jnp.moveaxis(routing.astype(jnp.int32), 2, 0)
        _, output = run(weights, batch, forced_target=recorded)
        assert output.own_target is not None  # as choices are forced
        mask = batch["segment_ids"] > 0
        counts = batching.count_replayed(recorded, output.own_target, output.target, mask)
        return output.hidden, output.load, counts

    def forward_with_losses(
        weights: Weights, batch: Batch
    ) -> tuple[ModelOutput, Float[Array, ""], Metrics]:
        model, output = run(weights, batch)
        added, metrics = auxiliary.terms(model, output, batch, losses)
        if watches_exchange:
            choices = jnp.sum(output.load[:, : config.num_experts])
            waited = jnp.sum(output.num_overflowed) / jnp.maximum(choices, 1)
            metrics["exchange/overflowed_share"] = waited
        return output, added, metrics

    def routing_metrics(
        weights: Weights,
        batch: Batch,
        loss: Callable[[Weights, ModelOutput, Batch], Float[Array, ""]],
    ) -> Metrics:
        kernel = weights["layers"]["router"]["kernel"]
        return auxiliary.routing_metrics(
            lambda shift: run(weights, batch, shift)[1],
            kernel,
            batch,
            lambda output: loss(weights, output, batch),
            config,
            losses,
        )

    def update_controllers(
        weights: Weights, memory: Any, load: Int[Array, "L A"]
    ) -> tuple[Weights, Any]:
        def leaf(path: tuple[Any, ...], weight: Float[Array, "..."]) -> Float[Array, "..."]:
            if not parameters.is_controller_state(path):
                return weight
            if not controller.remembers:
                return router.update_bias(weight, load, config, controller.rate)
            nonlocal memory
            weight, memory = controller.update(weight, load, memory, config)
            return weight

        weights = jax.tree_util.tree_map_with_path(leaf, weights)
        return weights, memory

    def load_metrics(load: Int[Array, "L A"]) -> dict[str, float]:
        chosen = np.asarray(load, np.float64)
        ffn = chosen[:, : config.num_experts]
        choices = np.maximum(chosen.sum(axis=1), 1.0)
        balance = ffn.max(axis=1) / np.maximum(ffn.mean(axis=1), 1e-9)
        return {
            "load/ffn_experts_per_token": float(
                np.mean(config.num_chosen * ffn.sum(axis=1) / choices)
            ),
            "load/max_over_mean": float(balance.mean()),
        }

    return PolicyModel(
        is_controller=parameters.is_controller_state,
        matrix_axes=lambda path: (
            MATRIX_AXES.get(tuple(path[-2:])) or MATRIX_AXES.get(tuple(path[-1:]))
        ),
        update_controllers=update_controllers,
        load_metrics=load_metrics,
        states=states,
        logits=lambda weights, num: nnx.merge(graphdef, nnx.State(weights)).logits_for(num),
        lists=config.vocab_size > _FEW_WORDS,
        sees_parents=config.ngram is None
        and core_attention.takes_parents(config.attention, rules.platform),
        load_shape=(config.num_layers, config.num_targets),
        rules=rules,
        published=lambda weights: published(weights, config),
        initial_memory=lambda: ControllerMemory.zeros(config) if controller.remembers else (),
        forward_with_losses=forward_with_losses if losses.are_any or watches_exchange else None,
        routing_metrics=routing_metrics,
        rate_multiplier=None if rates_of is None else scaling.multiplier(config, rates_of),
    )
