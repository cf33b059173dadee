"""What the trainer needs to know of a model, as functions over its weights."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from loong_jax.data.packing import Predicted
from loong_jax.errors import ConfigError
from loong_jax.models import families, parameters
from loong_jax.models.dense import DenseConfig
from loong_jax.models.families import ModelConfig
from loong_jax.models.moe import router, width_transfer
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.controller import BiasController, ControllerMemory
from loong_jax.models.products import in_chunks
from loong_jax.rl import auxiliary, routing_replay
from loong_jax.rl.auxiliary import AuxiliaryLosses
from loong_jax.rl.routing_replay import ReplayCounts
from loong_jax.sharding import NO_MESH, ShardingRules, by_rows, place_like

Weights = dict[Any, Any]  # nested dicts of arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyModel:
    """A policy as functions; `weights` are nested dicts of arrays.

    forward(weights, tokens_BT, positions_BT, segment_ids_BT) -> logits_BTV float32, load_LA int32;
    is_controller(path) -> true for weights that a controller owns, not the optimizer;
    matrix_axes(path) -> input and output axes of a matrix of the layers, other axes are stacks of
    matrices; None for anything else (see `optimizers.Muon`);
    initial_memory() -> what the controllers remember before the first step;
    update_controllers(weights, memory, load_LA) -> weights with the controllers' step taken, and
    their memory after it;
    load_metrics(load_LA) -> numbers for metrics.jsonl;
    states(weights, tokens_BT, positions_BT, segment_ids_BT, parent_ids_BT, routing_BTLK) -> the
    states hidden_BTD that predict the next token, load_LA, and what came of the replay, None
    without routing; and logits(weights, hidden_BND) -> logits_BNV float32. With the two, logits are
    made where a token is asked for and nowhere else; without, everywhere. Tokens see the segment
    `parent_ids` names beside their own, where `sees_parents` says so; else it is None;
    join(weights, frozen) -> the whole weights, which all other functions take, from those that are
    trained and those that are not (see `lora`);
    published(weights) -> the weights in the dtypes that engines sample with: a matrix in that of
    the model's activations, which is what it is rounded to in training before it multiplies;
    forward_replaying(weights, tokens_BT, positions_BT, segment_ids_BT, routing_BTLK) -> as forward,
    and what came of the replay; None for a model without routers (see `routing_replay`);
    load_shape: L and A, 0 without routers;
    rules: where weights and rows of a batch lie.

    In supervised training, where there are such things:
    forward_with_losses(weights, batch) -> logits_BTV, load_LA, a loss to add to the model's own,
    metrics of its terms;
    routing_metrics(weights, batch, loss) -> metrics of the routers under `loss(logits, batch)`;
    rate_multiplier(path) -> what the learning rate of a weight is multiplied by.
    """

    forward: Callable[..., tuple[Array, Array]]
    is_controller: Callable[[tuple[Any, ...]], bool]
    matrix_axes: Callable[[tuple[Any, ...]], tuple[tuple[int, ...], tuple[int, ...]] | None]
    update_controllers: Callable[[Weights, Any, Array], tuple[Weights, Any]]
    load_metrics: Callable[[Array], dict[str, float]]
    load_shape: tuple[int, int] = (0, 0)
    rules: ShardingRules = NO_MESH
    states: Callable[..., tuple[Array, Array, ReplayCounts | None]] | None = None
    logits: Callable[[Weights, Array], Array] | None = None
    sees_parents: bool = False
    join: Callable[[Weights, Any], Weights] = lambda weights, frozen: weights
    published: Callable[[Weights], Weights] = lambda weights: weights
    initial_memory: Callable[[], Any] = lambda: ()
    forward_replaying: Callable[..., tuple[Array, Array, ReplayCounts]] | None = None
    forward_with_losses: Callable[..., tuple[Array, Array, Array, dict[str, Array]]] | None = None
    routing_metrics: Callable[..., dict[str, Array]] | None = None
    rate_multiplier: Callable[[tuple[Any, ...]], float] | None = None


def token_logprobs(
    model: PolicyModel,
    weights: Weights,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Int[Array, "L A"]]:
    """Log-probability of each token given those before it in its segment, entropy, and load.

    See `logprobs_of`.
    """
    return replayed_logprobs(model, weights, tokens, segment_ids, positions, temperature, None)[:3]


def replayed_logprobs(
    model: PolicyModel,
    weights: Weights,
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    temperature: Float[Array, ""] | float,
    routing: Int[Array, "B T L K"] | None,
    parent_ids: Int[Array, "B T"] | None = None,
    predicted: Predicted | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"], Int[Array, "L A"], ReplayCounts | None]:
    """As `token_logprobs` with the experts that `routing` names, and what came of that.

    Without routing it is the same computation, and the counts are None. With a list of what is
    `predicted` all other tokens have 0, and no logits are made for them.
    """
    if predicted is not None:
        batch = (tokens, positions, segment_ids, parent_ids, routing)
        return _listed_logprobs(model, weights, batch, temperature, predicted)
    batch, counts = (weights, tokens, positions, segment_ids), None
    if routing is None:
        logits_BTV, load = model.forward(*batch)
    elif model.forward_replaying is None:
        raise ConfigError("replays_routing=True, and this model has no routers. Set it to False.")
    else:
        logits_BTV, load, counts = model.forward_replaying(*batch, routing)
    return *logprobs_of(logits_BTV, tokens, segment_ids, temperature), load, counts


FEW_WORDS = 1024  # with a vocabulary up to here logits cost little beside the model
CHUNK_LOGITS = 2**26  # so many are made at a time on a device, and again on the way back


def _listed_logprobs(model, weights, batch, temperature, predicted):
    assert model.states is not None
    assert model.logits is not None
    tokens, (place, source) = batch[0], predicted
    hidden_BTD, load, counts = model.states(weights, *batch)
    hidden_FND, token_FN = by_rows(_listed, hidden_BTD, tokens, place, source)

    def of_states(hidden_FnD, token_Fn):
        logits_FnV = model.logits(weights, hidden_FnD).astype(jnp.float32) / temperature
        total_Fn = jax.nn.logsumexp(logits_FnV, axis=-1)
        fixed_FnV, fixed_Fn = jax.lax.stop_gradient((logits_FnV, total_Fn))
        weighed_FnV = jnp.exp(fixed_FnV - fixed_Fn[..., None]) * fixed_FnV
        return _at(logits_FnV, token_Fn) - total_Fn, fixed_Fn - jnp.sum(weighed_FnV, axis=-1)

    num_words = jax.eval_shape(model.logits, weights, hidden_FND[:, :1]).shape[-1]
    rows = max(1, CHUNK_LOGITS // num_words)
    found = in_chunks(of_states, (hidden_FND, token_FN), rows, axis=1)
    logprob, entropy = (by_rows(_unlisted, tokens, place, a) for a in found)
    return logprob, entropy, load, counts


def _listed(hidden_BTD, tokens_BT, place_FN, source_FN):
    """States and tokens of a list; on a mesh a device has the list of its own rows, and F is 1."""
    parts = len(place_FN)
    hidden_FSD = hidden_BTD.reshape(parts, -1, hidden_BTD.shape[-1])
    hidden_FND = jax.vmap(lambda hidden_SD, source_N: hidden_SD[source_N])(hidden_FSD, source_FN)
    take = jax.vmap(lambda tokens_S, place_N: tokens_S.at[place_N].get(mode="fill", fill_value=0))
    return hidden_FND, take(tokens_BT.reshape(parts, -1), place_FN)


def _unlisted(tokens_BT, place_FN, value_FN):
    """What was found of a list, where it belongs in the rows, and 0 elsewhere."""
    zeros_FS = jnp.zeros_like(tokens_BT, value_FN.dtype).reshape(len(place_FN), -1)
    put = jax.vmap(lambda zeros_S, place_N, value_N: zeros_S.at[place_N].set(value_N, mode="drop"))
    return put(zeros_FS, place_FN, value_FN).reshape(tokens_BT.shape)


def _at(logits: Float[Array, "*rows V"], token: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    """The logit of each row's token."""
    sharding = jax.typeof(logits).sharding
    if sharding.mesh.empty:
        return jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    # words may be cut over devices, of which one has the token
    word = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    is_token = word == token[..., None]
    return jnp.sum(jnp.where(is_token, logits, 0.0), axis=-1)


def logprobs_of(
    logits: Float[Array, "B T V"],
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of each token given those before it in its segment, and entropy.

    In nats, under `temperature`. The first token of a segment and padding have 0 for both; entropy
    carries no gradient. On a mesh every device must hold whole rows of the integer arrays, since
    what stands at position t is moved to t + 1; logits may be cut along T as the model likes.
    """
    log_probability = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    following = place_like(jnp.roll(tokens, -1, axis=1), logits)
    chosen = _at(log_probability, following)
    fixed = jax.lax.stop_gradient(log_probability)
    entropy = -jnp.sum(jnp.exp(fixed) * fixed, axis=-1)
    is_predicted = has_predecessor(segment_ids)
    logprob, entropy = (
        jnp.where(is_predicted, jnp.roll(place_like(found, tokens), 1, axis=1), 0.0)
        for found in (chosen, entropy)
    )
    return logprob, entropy


def in_dtypes_of(weights: Weights, like: Weights) -> Weights:
    """`weights`, each rounded or widened to the dtype of its fellow in `like`."""
    return jax.tree.map(lambda weight, other: weight.astype(other.dtype), weights, like)


def published(weights: Weights, config: ModelConfig) -> Weights:
    """The weights in the dtypes they would have if they came in the dtype of activations."""
    sampled = dataclasses.replace(config, param_dtype=config.dtype)
    return in_dtypes_of(weights, families.family_of(config).abstract_weights(sampled)[1])


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


@functools.lru_cache(maxsize=16)
def dense_policy(
    graphdef: nnx.GraphDef, config: DenseConfig, rules: ShardingRules = NO_MESH
) -> PolicyModel:
    """A dense decoder as a policy: no routers, no controllers, an empty load."""

    def run(weights, tokens, positions, segment_ids, parent_ids=None):
        model = nnx.merge(graphdef, nnx.State(weights))
        output = model(tokens, positions=positions, segment_ids=segment_ids, parent_ids=parent_ids)
        return output, jnp.zeros((0, 0), jnp.int32)

    def forward(*batch):
        output, load = run(*batch)
        return output.logits, load

    def states(weights, tokens, positions, segment_ids, parent_ids, routing):
        del routing
        output, load = run(weights, tokens, positions, segment_ids, parent_ids)
        return output.hidden, load, None

    return PolicyModel(
        forward=forward,
        rules=rules,
        states=states,
        logits=lambda weights, hidden: nnx.merge(graphdef, nnx.State(weights)).logits_of(hidden),
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
    `width_transfer`. `watches_exchange` says in supervised training which share of the choices of
    experts found the buffers of the exchange full and waited for a later round. Raises ConfigError
    where losses or `rates_of` do not fit the model.
    """
    losses.refuse_misfit(config)
    controller = bias if isinstance(bias, BiasController) else BiasController(rate=bias)

    def run(weights, batch, score_shift=None, forced_target=None):
        model = nnx.merge(graphdef, nnx.State(weights))
        names = ("positions", "segment_ids")
        call = {name: batch[name] for name in names}
        routers = dict(score_shift=score_shift, forced_target=forced_target)
        return model, model(batch["tokens"], **call, **routers)

    def forward(weights, tokens, positions, segment_ids):
        batch = dict(tokens=tokens, positions=positions, segment_ids=segment_ids)
        _, output = run(weights, batch)
        return output.logits, output.load

    def replaying(weights, tokens, positions, segment_ids, routing):
        batch = dict(tokens=tokens, positions=positions, segment_ids=segment_ids)
        recorded = jnp.moveaxis(routing.astype(jnp.int32), 2, 0)
        _, output = run(weights, batch, forced_target=recorded)
        mask = segment_ids > 0
        return output, routing_replay.count(recorded, output.own_target, output.target, mask)

    def forward_replaying(*batch):
        output, counts = replaying(*batch)
        return output.logits, output.load, counts

    def forward_with_losses(weights, batch):
        model, output = run(weights, batch)
        added, metrics = auxiliary.terms(model, output, batch, losses)
        if watches_exchange:
            choices = jnp.sum(output.load[:, : config.num_experts])
            waited = jnp.sum(output.num_overflowed) / jnp.maximum(choices, 1)
            metrics["exchange/overflowed_share"] = waited
        return output.logits, output.load, added, metrics

    def routing_metrics(weights, batch, loss):
        kernel = weights["layers"]["router"]["kernel"]
        return auxiliary.routing_metrics(
            lambda shift: run(weights, batch, shift)[1], kernel, batch, loss, config, losses
        )

    def update_controllers(weights, memory, load):
        def leaf(path, weight):
            if not parameters.is_controller_state(path):
                return weight
            if not controller.remembers:
                return router.update_bias(weight, load, config, controller.rate)
            nonlocal memory
            weight, memory = controller.update(weight, load, memory, config)
            return weight

        weights = jax.tree_util.tree_map_with_path(leaf, weights)
        return weights, memory

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

    def states(weights, tokens, positions, segment_ids, parent_ids, routing):
        del parent_ids
        if routing is not None:
            output, counts = replaying(weights, tokens, positions, segment_ids, routing)
            return output.hidden, output.load, counts
        batch = dict(tokens=tokens, positions=positions, segment_ids=segment_ids)
        _, output = run(weights, batch)
        return output.hidden, output.load, None

    return PolicyModel(
        forward=forward,
        is_controller=parameters.is_controller_state,
        matrix_axes=lambda path: (
            MATRIX_AXES.get(tuple(path[-2:])) or MATRIX_AXES.get(tuple(path[-1:]))
        ),
        update_controllers=update_controllers,
        load_metrics=load_metrics,
        states=states if config.vocab_size > FEW_WORDS else None,
        logits=lambda weights, hidden: nnx.merge(graphdef, nnx.State(weights)).logits_of(hidden),
        load_shape=(config.num_layers, config.num_targets),
        rules=rules,
        published=lambda weights: published(weights, config),
        forward_replaying=forward_replaying,
        initial_memory=lambda: ControllerMemory.zeros(config) if controller.remembers else (),
        forward_with_losses=forward_with_losses if losses.are_any or watches_exchange else None,
        routing_metrics=routing_metrics,
        rate_multiplier=None if rates_of is None else width_transfer.multiplier(config, rates_of),
    )
