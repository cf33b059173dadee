"""The optimizer as data: schedule, clipping by norm, AdamW or Muon, what it touches."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError, refuse_below, refuse_outside
from loong_jax.models.parameters import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupConstant:
    """Linear from peak / warmup_steps to the peak, then constant."""

    peak: float
    warmup_steps: int = 0

    def __post_init__(self):
        refuse_outside(self, "(0, inf)", "peak")
        refuse_below(self, 0, "warmup_steps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupCosine:
    """Linear to the peak, then half a cosine down to `final_share` of it at `num_steps`."""

    peak: float
    warmup_steps: int
    num_steps: int
    final_share: float = 0.1

    def __post_init__(self):
        refuse_outside(self, "(0, inf)", "peak")
        refuse_below(self, 0, "warmup_steps")
        refuse_outside(self, "[0, 1]", "final_share")
        if self.num_steps <= self.warmup_steps:
            raise ConfigError(
                f"num_steps={self.num_steps} must exceed warmup_steps={self.warmup_steps}. Warm "
                "up for fewer steps."
            )


Schedule = WarmupConstant | WarmupCosine


def learning_rate(schedule: Schedule, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """Rate of the update from policy version `step` to `step + 1`; never 0 at the start."""
    step = jnp.asarray(step, jnp.float32)
    rate = jnp.asarray(schedule.peak, jnp.float32)
    if isinstance(schedule, WarmupCosine):
        span = schedule.num_steps - schedule.warmup_steps
        done = jnp.clip((step - schedule.warmup_steps) / span, 0.0, 1.0)
        share = schedule.final_share + (1 - schedule.final_share) * (1 + jnp.cos(jnp.pi * done)) / 2
        rate = rate * share
    return rate * jnp.minimum(1.0, (step + 1) / max(schedule.warmup_steps, 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW:
    schedule: Schedule
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0  # not on norms, biases and other vectors
    max_grad_norm: float = 1.0
    moments_dtype: DTypeLike = jnp.float32  # what both moments are kept in between steps
    offload_moments: bool = False  # between steps they lie in host memory

    def __post_init__(self):
        _check_adam(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Muon:
    """Momentum turned into the nearest orthogonal matrix, for matrices; AdamW for the rest.

    `update_rms` makes its steps as long as AdamW's, so one schedule serves both (arXiv:2502.16982).
    """

    schedule: Schedule
    momentum: float = 0.95
    update_rms: float = 0.2
    beta1: float = 0.9  # of AdamW, as the next two
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    moments_dtype: DTypeLike = jnp.float32  # what momentum and moments are kept in between steps
    offload_moments: bool = False  # between steps they lie in host memory

    def __post_init__(self):
        refuse_outside(self, "[0, 1)", "momentum")
        refuse_outside(self, "(0, inf]", "update_rms")
        _check_adam(self)


Optimizer = AdamW | Muon
KINDS: dict[str, type[AdamW] | type[Muon]] = {"adamw": AdamW, "muon": Muon}


def of_kind(name: str, optimizer: Optimizer) -> Optimizer:
    """The optimizer of that name in `KINDS`, with the settings of `optimizer` that it knows.

    ConfigError where there is none of that name.
    """
    if name not in KINDS:
        raise ConfigError(f"no optimizer is called {name!r}. Choose among {', '.join(KINDS)}.")
    known = {field.name for field in dataclasses.fields(KINDS[name])}
    common = {f.name: getattr(optimizer, f.name) for f in dataclasses.fields(optimizer)}
    return KINDS[name](**{key: value for key, value in common.items() if key in known})


IsController = Callable[[tuple[Any, ...]], bool]
RateMultiplier = Callable[[tuple[Any, ...]], float]
MatrixAxes = Callable[[tuple[Any, ...]], tuple[tuple[int, ...], tuple[int, ...]] | None]


def _check_adam(config: Optimizer):
    refuse_outside(config, "[0, 1)", "beta1", "beta2")
    refuse_outside(config, "(0, inf]", "eps", "max_grad_norm")
    refuse_outside(config, "[0, inf)", "weight_decay")
    dtype = jnp.dtype(config.moments_dtype)
    object.__setattr__(config, "moments_dtype", dtype)  # as one type: equal configs hash alike
    if dtype not in (jnp.float32, jnp.bfloat16):
        raise ConfigError(f"moments_dtype={dtype} holds no moments. Use float32 or bfloat16.")
    if dtype == jnp.bfloat16 and config.beta2 > 0.99:
        raise ConfigError(
            f"beta2={config.beta2} changes the second moment by less than bfloat16, of 8 bits, "
            "can hold. Use a beta2 of at most 0.99, or moments_dtype=float32."
        )


def decays(path: tuple[Any, ...], weight: Array) -> bool:
    """True where weight decay applies: matrices, stacked or not, that are no norm and no bias."""
    names = [str(part) for part in path]
    is_norm = any("norm" in name for name in names)
    return weight.ndim >= 2 and not is_norm and not names[-1].endswith(("bias", "scale"))


def path_of(key_path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keys of a nested dict from the key path that JAX gives."""
    return tuple(entry.key for entry in key_path)


def transformation(
    config: Optimizer,
    weights: Weights,
    is_controller: IsController,
    matrix_axes: MatrixAxes,
    rate_multiplier: RateMultiplier | None = None,
) -> optax.GradientTransformation:
    """The direction to go against, for a learning rate of 1.

    Controller state (router biases) gets no update and no moments. `matrix_axes(path)` gives the
    input and output axes of a matrix that Muon turns, or None for what AdamW updates.
    `rate_multiplier(path)` multiplies Adam's step before weight decay joins it, so that the time
    scale of decay stays. Raises ConfigError where Muon, whose steps have one length whatever the
    width, is given one.
    """
    if rate_multiplier is not None and isinstance(config, Muon):
        raise ConfigError(
            f"multipliers of the learning rate are Adam's, and the optimizer is {config}. Use "
            "AdamW, or leave out the config that the rate was chosen for."
        )

    def label(path: tuple[Any, ...], _: Any) -> str:
        if is_controller(path):
            return "controller"
        is_turned = isinstance(config, Muon) and matrix_axes(path) is not None
        return "muon" if is_turned else "adam"

    decay = optax.add_decayed_weights(
        config.weight_decay, mask=functools.partial(_map_paths, decays)
    )
    adam = [optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.eps)]
    if rate_multiplier is not None:
        scaled = functools.partial(_map_paths, lambda path, u: u * rate_multiplier(path))
        adam.append(optax.stateless(lambda updates, _: scaled(updates)))
    parts: dict[Any, optax.GradientTransformation] = {
        "controller": optax.set_to_zero(),
        "adam": optax.chain(*adam, decay),
    }
    if isinstance(config, Muon):

        def dimensions(tree: optax.Params) -> optax.Params:
            numbers = optax.contrib.MuonDimensionNumbers
            return _map_paths(lambda path, _: numbers(*(matrix_axes(path) or ((0,), (1,)))), tree)

        def scale(updates: optax.Updates) -> optax.Updates:
            def turned(path: tuple[Any, ...], u: Array) -> Array:
                # its entries have a mean square of 1 / longer side
                sides = [math.prod(u.shape[axis] for axis in s) for s in matrix_axes(path) or ()]
                return u * config.update_rms * math.sqrt(max(sides, default=1))

            return _map_paths(turned, updates)

        parts["muon"] = optax.chain(
            optax.contrib.scale_by_muon(beta=config.momentum, weight_dimension_numbers=dimensions),
            optax.stateless(lambda updates, _: scale(updates)),
            decay,
        )
    partition = optax.partition(parts, _map_paths(label, weights))
    if config.moments_dtype == jnp.float32:
        return partition
    return _kept_in(config.moments_dtype, partition)


def _kept_in(
    dtype: DTypeLike, transformation: optax.GradientTransformation
) -> optax.GradientTransformation:
    """The same, whose floating-point state is `dtype` between updates and float32 within them."""

    def in_dtype(state: optax.OptState, dtype: DTypeLike) -> optax.OptState:
        return jax.tree.map(
            lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, state
        )

    def init(params: optax.Params) -> optax.OptState:
        return in_dtype(transformation.init(params), dtype)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        direction, state = transformation.update(updates, in_dtype(state, jnp.float32), params)
        return direction, in_dtype(state, dtype)

    return optax.GradientTransformation(init, update)


def _map_paths(function: Callable[[tuple[Any, ...], Any], Any], tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda p, leaf: function(path_of(p), leaf), tree)


def clip_by_norm(gradient: Weights, norm: Float[Array, ""], max_norm: float) -> Weights:
    """A gradient or a part of one, scaled down where `norm`, that of the whole, is longer."""
    factor = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * factor, gradient)
