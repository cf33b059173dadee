"""The train step, as pure functions over an explicit state.

A step is: gradients of its micro-batches, all of one shape, added up; then one update. Nothing here
depends on how many micro-batches there are or how rollouts were packed into them, since every
reduction divides by constants of the step. Accumulators and state are donated, so a step holds one
copy of each.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.models import parameters
from loong_jax.models.parameters import Weights
from loong_jax.rl import batching, checkpoint, objectives, offload, optimizers, policy_model
from loong_jax.rl.auxiliary import Metrics
from loong_jax.rl.batching import Layout, ReplayCounts, TrajectoryBatch
from loong_jax.rl.objectives import LossSums, Objective
from loong_jax.rl.optimizers import Optimizer
from loong_jax.rl.policy_model import PolicyModel
from loong_jax.sharding import ShardingRules, partitioned_freely


class TrainState(NamedTuple):
    """Everything that a step changes. Randomness enters nowhere, so there is no key."""

    step: Int[Array, ""]  # int32, also the policy version of the weights
    weights: Weights  # float32 whatever dtype they came in, so that no step is rounded away
    optimizer_state: Any
    memory: Any = ()  # of the controllers


class Accumulated(NamedTuple):
    """Sums over the micro-batches of one step."""

    gradient: Weights
    loss: Float[Array, ""]
    sums: LossSums
    entropy: Float[Array, ""]  # over trained tokens, in nats
    num_tokens: Float[Array, ""]  # trained tokens
    load: Int[Array, "L A"]
    replay: ReplayCounts | None = None  # where routing is replayed


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerPrograms:
    """The compiled functions of a trainer; each is compiled once for its shape.

    initial(weights) -> state; logprobs(weights, tokens, segment_ids, positions, temperature,
    routing, parent_ids, predicted) -> float32 [B, T], routing None where none is replayed and the
    last two as `layout` says; begin(weights) -> accumulated;
    accumulate(weights, accumulated, batch, num_groups, temperature, num_tokens, step) ->
    accumulated (donated), of which `num_tokens` and `step` are for objectives that read them (see
    `objectives.policy_loss`);
    update(state, accumulated) -> state, metrics, sums, load, replay (state donated);
    publish(weights, frozen) -> what engines sample from, in new buffers.

    Where a part of the weights is frozen, `accumulate` and `publish` take that part last.
    """

    layout: Layout  # of the rows that the programs take
    put_rows: Callable[[Any], Any]  # arrays of rows, where the programs take them from
    initial: Callable[[Weights], TrainState]
    logprobs: Callable[..., Array]
    begin: Callable[..., Accumulated]
    accumulate: Callable[..., Accumulated]
    update: Callable[
        [TrainState, Accumulated],
        tuple[TrainState, Metrics, LossSums, Array, ReplayCounts | None],
    ]
    publish: Callable[..., Weights]


def initial_state(model: PolicyModel, optimizer: Optimizer, weights: Weights) -> TrainState:
    """State before the first step, with the weights copied, since the state will be donated."""
    with model.rules.scope():
        masters = jax.tree.map(_master, weights)
        init: Any = _transformation(model, optimizer, masters).init
        if optimizer.offload_moments:  # in one program, or all would be on the devices at once
            init = jax.jit(lambda masters, init=init: offload.to_host(init(masters)))
        optimizer_state = init(masters)
        step = jnp.zeros((), jnp.int32)
        return TrainState(step, masters, optimizer_state, model.initial_memory())


def abstract_state(model: PolicyModel, optimizer: Optimizer, weights: Weights) -> TrainState:
    """The shapes of `initial_state`, which know where they lie on the model's mesh."""
    with model.rules.scope():
        made = jax.eval_shape(functools.partial(initial_state, model, optimizer), weights)
    made = on_mesh(model.rules, made)
    if not optimizer.offload_moments:
        return made
    return made._replace(optimizer_state=offload.waiting(made.optimizer_state))


def _master(weight: Array) -> Array:
    is_narrow = jnp.issubdtype(weight.dtype, jnp.floating) and weight.dtype.itemsize < 4
    return weight.astype(jnp.float32) if is_narrow else jnp.copy(weight)


@functools.lru_cache(maxsize=16)
def publisher(model: PolicyModel) -> Callable[..., Weights]:
    """Compiled `publish(weights, frozen)`; see `TrainerPrograms`."""

    def publish(weights: Weights, frozen: Any = ()) -> Weights:
        return jax.tree.map(jnp.copy, model.published(model.join(weights, frozen)))

    return model.rules.jit(publish)


def _transformation(
    model: PolicyModel, optimizer: Optimizer, weights: Weights
) -> optax.GradientTransformation:
    return optimizers.transformation(
        optimizer, weights, model.is_controller, model.matrix_axes, model.rate_multiplier
    )


# Fields of a batch that enter the loss as they are.
_LOSS_READS = (
    "engine_logprob", "advantage", "loss_mask", "segment_ids", "reference_logprob", "version_lag",
)  # fmt: skip


def microbatch_loss(
    weights: Weights,
    batch: TrajectoryBatch,
    num_groups: Int[Array, ""],
    temperature: Float[Array, ""],
    num_tokens: Float[Array, ""] | None = None,
    step: Int[Array, ""] | None = None,
    frozen: Any = (),
    *,
    model: PolicyModel,
    objective: Objective,
    num_lags: int,
) -> tuple[Float[Array, ""], tuple[LossSums, Array, Array, Array, Any]]:
    """Loss of one micro-batch with (sums, entropy, number of trained tokens, load, replay).

    A step is one update from the weights it began with: they stand for the proximal policy where
    the objective asks for one, and for the behaviour, where the batch has neither.
    """
    logprob, entropy, load, replay = policy_model.replayed_logprobs(
        model, model.join(weights, frozen), batch._asdict(), temperature
    )
    behavior, proximal = batch.behavior_logprob, batch.proximal_logprob
    behavior = jax.lax.stop_gradient(logprob) if behavior is None else behavior
    if proximal is None and objective.needs_proximal:
        proximal = jax.lax.stop_gradient(logprob)
    loss, sums = objectives.policy_loss(
        objective,
        policy_logprob=logprob,
        behavior_logprob=behavior,
        proximal_logprob=proximal,
        **{name: getattr(batch, name) for name in _LOSS_READS},
        num_groups=num_groups,
        num_tokens=num_tokens,
        step=step,
        num_lags=num_lags,
    )
    entropy = jnp.sum(jnp.where(batch.loss_mask, entropy, 0.0))
    trained = jnp.sum(batch.loss_mask.astype(jnp.float32))
    return loss, (sums, entropy, trained, load, replay)


def apply_gradient(
    state: TrainState,
    gradient: Weights,
    load: Int[Array, "L A"],
    *,
    model: PolicyModel,
    optimizer: Optimizer,
) -> tuple[TrainState, Metrics]:
    """One update of weights by the optimizer and of router biases by their controller.

    A gradient that is not finite changes neither; the step still counts, and `grad_norm` shows it.
    """
    norm = optax.tree.norm(gradient)
    rate = optimizers.learning_rate(optimizer.schedule, state.step)
    is_finite = jnp.isfinite(norm)

    def selected(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), new, old)

    def update(weights: Weights, gradient: Weights, before: Any, /) -> tuple[Weights, Any]:
        transformation = _transformation(model, optimizer, weights)
        gradient = optimizers.clip_by_norm(gradient, norm, optimizer.max_grad_norm)
        direct = partitioned_freely(transformation.update, (gradient, before))
        direction, after = direct(gradient, before, weights)
        made = jax.tree.map(lambda w, d: (w - rate * d).astype(w.dtype), weights, direction)
        return selected((made, after), (weights, before))

    if optimizer.offload_moments:
        update = offload.streamed(update, lambda w: _transformation(model, optimizer, w).init(w))
    weights, optimizer_state = update(state.weights, gradient, state.optimizer_state)
    controlled, memory = model.update_controllers(weights, state.memory, load)
    weights, memory = selected((controlled, memory), (weights, state.memory))
    state = TrainState(state.step + 1, weights, optimizer_state, memory)
    return state, {"grad_norm": norm, "learning_rate": rate}


@functools.lru_cache(maxsize=16)
def make_programs(
    model: PolicyModel,
    objective: Objective,
    optimizer: Optimizer,
    max_staleness: int,
    replays_routing: bool = False,
    shares_prompts: bool | None = None,
) -> TrainerPrograms:
    """Builds the programs; equal arguments share them, so stages of one recipe compile once.

    With `replays_routing` every batch must have routing, and none otherwise. `shares_prompts` is
    that of `TrainerSettings`; ConfigError where the model cannot.
    """
    if shares_prompts and (not model.sees_parents or replays_routing):
        raise ConfigError(
            "shares_prompts=True, and this model's tokens see their own segment only, or experts "
            "are replayed. Use None to share where the model can."
        )
    if replays_routing and not any(model.load_shape):
        raise ConfigError("replays_routing=True, and this model has no routers. Set it to False.")
    rules = model.rules
    sees_parents = model.sees_parents and not replays_routing
    parts = rules.parts("act_batch")
    layout = Layout(model.lists, sees_parents and shares_prompts is not False, parts)
    num_lags = max_staleness + 1

    @rules.jit
    def logprobs(
        weights: Weights,
        tokens: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        temperature: Float[Array, ""],
        *how: Any,
    ) -> Float[Array, "B T"]:
        rows = tokens, segment_ids, positions, *how
        batch: Any = dict(zip(policy_model.FIELDS, rows, strict=False))
        return policy_model.replayed_logprobs(model, weights, batch, temperature)[0]

    @functools.partial(rules.jit, donate_argnames="accumulated")
    def accumulate(
        weights: Weights,
        accumulated: Accumulated,
        batch: TrajectoryBatch,
        num_groups: Int[Array, ""],
        temperature: Float[Array, ""],
        num_tokens: Float[Array, ""] | None = None,
        step: Int[Array, ""] | None = None,
        frozen: Any = (),
    ) -> Accumulated:
        def loss_of(weights: Weights) -> tuple[Float[Array, ""], Any]:
            how = num_groups, temperature, num_tokens, step, frozen
            return microbatch_loss(
                weights, batch, *how, model=model, objective=objective, num_lags=num_lags
            )

        loss, pull_back, found = jax.vjp(loss_of, weights, has_aux=True)
        sums, entropy, trained, load, replay = found
        gradient = jax.tree.map(jax.new_ref, accumulated.gradient)
        pull_back.with_refs(gradient)(jnp.ones_like(loss))
        return Accumulated(
            jax.tree.map(jax.freeze, gradient),
            accumulated.loss + loss,
            accumulated.sums.add(sums),
            accumulated.entropy + entropy,
            accumulated.num_tokens + trained,
            accumulated.load + load,
            jax.tree.map(jnp.add, accumulated.replay, replay),
        )

    @rules.jit
    def begin(weights: Weights) -> Accumulated:
        zero, gradient = jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights)
        replay = ReplayCounts(zero, zero, zero) if replays_routing else None
        load, sums = jnp.zeros(model.load_shape, jnp.int32), objectives.empty_sums(num_lags)
        return Accumulated(gradient, zero, sums, zero, zero, load, replay)

    @functools.partial(rules.jit, donate_argnames="state")
    def update(
        state: TrainState, accumulated: Accumulated
    ) -> tuple[TrainState, Metrics, LossSums, Int[Array, "L A"], ReplayCounts | None]:
        state, metrics = apply_gradient(
            state, accumulated.gradient, accumulated.load, model=model, optimizer=optimizer
        )
        metrics |= {
            "loss": accumulated.loss,
            "entropy": accumulated.entropy / jnp.maximum(accumulated.num_tokens, 1.0),
            "num_tokens": accumulated.num_tokens,
        }
        return state, metrics, accumulated.sums, accumulated.load, accumulated.replay

    return TrainerPrograms(
        layout=layout,
        put_rows=rules.put_rows,
        initial=functools.partial(initial_state, model, optimizer),
        logprobs=logprobs,
        begin=begin,
        accumulate=accumulate,
        update=update,
        publish=publisher(model),
    )


def on_mesh(rules: ShardingRules, tree: Any) -> Any:
    """Shapes on the devices of the mesh that they were derived for."""

    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        assert rules.mesh is not None
        sharding = NamedSharding(rules.mesh, getattr(leaf.sharding, "spec", PartitionSpec()))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return tree if rules.mesh is None else jax.tree.map(place, tree)


class Call(NamedTuple):
    """A compiled function of the trainer and the shapes of its arguments, by their names."""

    function: Any
    arguments: dict[str, Any]

    def lower(self) -> jax.stages.Lowered:
        return self.function.lower(*self.arguments.values())


def calls(
    programs: TrainerPrograms,
    model: PolicyModel,
    state: TrainState,
    batch: TrajectoryBatch,
    published: Weights,
    frozen: Any = (),
) -> dict[str, Call]:
    """The calls of a step, over shapes that lie where the arrays will: `logprobs` of what it trains
    on, `accumulate` of a micro-batch, `update`.
    """
    rules = model.rules
    with rules.scope():
        begun = on_mesh(rules, jax.eval_shape(programs.begin, state.weights))
    number, integer = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.float32, jnp.int32))
    rows = [(name, getattr(batch, name)) for name in policy_model.FIELDS]
    scores = dict([("weights", published), *rows[:3], ("temperature", number), *rows[3:]])
    adds = dict(masters=state.weights, gradients=begun, batch=batch)
    adds |= dict(groups=integer, temperature=number, num_tokens=number, step=integer, frozen=frozen)
    return {
        "logprobs": Call(programs.logprobs, scores),
        "accumulate": Call(programs.accumulate, adds),
        "update": Call(programs.update, dict(state=state, gradients=begun)),
    }


def train_step(
    programs: TrainerPrograms,
    model: PolicyModel,
    state: TrainState,
    batches: Iterable[TrajectoryBatch],
    num_groups: int,
    temperature: float,
    frozen: Any = (),
) -> tuple[TrainState, dict[str, Any]]:
    """One whole step over its micro-batches; `state` is donated. Metrics are plain numbers."""
    batches = list(batches)
    num_tokens = sum(int(np.sum(batch.loss_mask)) for batch in batches)
    scalars = (
        jnp.asarray(num_groups, jnp.int32),
        jnp.asarray(temperature, jnp.float32),
        jnp.asarray(num_tokens, jnp.float32),
        state.step,
        frozen,
    )
    accumulated = programs.begin(state.weights)
    for batch in map(model.rules.put_rows, batches):
        accumulated = programs.accumulate(state.weights, accumulated, batch, *scalars)
    state, metrics, sums, load, replay = programs.update(state, accumulated)
    numbers = {name: float(value) for name, value in metrics.items()}
    numbers |= {} if replay is None else batching.replay_metrics(replay)
    return state, numbers | objectives.summarise(sums) | model.load_metrics(load)


def to_arrays(state: TrainState) -> dict[str, Any]:
    """The state as nested dicts for a checkpoint: "weights" as they are, "optimizer" by path,
    "step", and "memory" where the controllers have one.
    """
    memory = checkpoint.to_plain(state.memory)
    return {
        "step": state.step,
        "weights": state.weights,
        "optimizer": checkpoint.by_path(state.optimizer_state),
    } | ({"memory": memory} if memory else {})


def shardings(
    model: PolicyModel, optimizer: Optimizer, template: Weights, whole: Weights
) -> checkpoint.Shardings:
    """Shardings of a checkpoint's arrays on the model's mesh; `template` is as for `from_arrays`,
    `whole` like the weights of a version.
    """
    if model.rules.mesh is None:
        return checkpoint.as_numpy
    like = abstract_state(model, optimizer, template)
    trees = {"weights": like.weights, "versions": on_mesh(model.rules, whole)}
    trees["optimizer"] = checkpoint.by_path(like.optimizer_state)
    known = parameters.by_path(trees)

    def of_name(name: str) -> NamedSharding | None:
        leaf = known.get(re.sub(r"^versions/#\d+/", "versions/", name))
        return None if leaf is None else leaf.sharding

    return of_name


def from_arrays(
    model: PolicyModel, optimizer: Optimizer, template: Weights, arrays: Mapping[Any, Any]
) -> TrainState:
    """Inverse of `to_arrays`; `template` has the structure of the weights. CheckpointError where
    they do not fit.

    Checkpoints from before masters were float32 hold bfloat16 ones; they are widened.
    """
    like = abstract_state(model, optimizer, template)
    with model.rules.scope():
        return TrainState(
            jnp.asarray(arrays["step"], jnp.int32),
            _restored(like.weights, checkpoint.by_path(arrays["weights"])),
            _restored(like.optimizer_state, arrays["optimizer"]),
            checkpoint.from_plain(like.memory, arrays.get("memory", {})),
        )


def _restored(like: Any, plain: Mapping[str, Any]) -> Any:
    wanted, placed = checkpoint.by_path(like), dict(plain)
    for name in wanted.keys() & plain.keys():
        if plain[name].dtype == jnp.bfloat16 and wanted[name].dtype == jnp.float32:
            placed[name] = plain[name].astype(np.float32)
        if offload.is_on_host(wanted[name]):
            placed[name] = jax.device_put(placed[name], jax.memory.Space.Host)
    return checkpoint.from_plain(like, placed)
