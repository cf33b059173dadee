"""The optimizer as data: schedule, clipping by global norm, AdamW, which weights it touches."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError

Weights = dict[Any, Any]  # nested dicts of arrays


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupConstant:
    """Linear from peak / warmup_steps to the peak, then constant."""

    peak: float
    warmup_steps: int = 0

    def __post_init__(self):
        _check_schedule(self.peak, self.warmup_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupCosine:
    """Linear to the peak, then half a cosine down to `final_share` of it at `num_steps`."""

    peak: float
    warmup_steps: int
    num_steps: int
    final_share: float = 0.1

    def __post_init__(self):
        _check_schedule(self.peak, self.warmup_steps)
        if self.num_steps <= self.warmup_steps:
            raise ConfigError(
                f"num_steps={self.num_steps} must exceed warmup_steps={self.warmup_steps}. Warm "
                "up for fewer steps."
            )
        if not 0 <= self.final_share <= 1:
            raise ConfigError(f"final_share={self.final_share} is not in [0, 1]. Use 0.1.")


Schedule = WarmupConstant | WarmupCosine


def _check_schedule(peak: float, warmup_steps: int):
    if not peak > 0 or warmup_steps < 0:
        raise ConfigError(
            f"peak={peak} must be positive and warmup_steps={warmup_steps} >= 0. Correct the "
            "schedule."
        )


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

    def __post_init__(self):
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ConfigError(
                f"beta1={self.beta1} and beta2={self.beta2} must lie in [0, 1). Correct the recipe."
            )
        if not self.eps > 0 or self.weight_decay < 0 or not self.max_grad_norm > 0:
            raise ConfigError(
                f"eps={self.eps} and max_grad_norm={self.max_grad_norm} must be positive and "
                f"weight_decay={self.weight_decay} >= 0. Correct the recipe."
            )


def decays(path: tuple[Any, ...], weight: Array) -> bool:
    """True where weight decay applies: matrices that are no norm and no bias, stacked over layers
    or not.
    """
    names = [str(part) for part in path]
    is_norm = any("norm" in name for name in names)
    return weight.ndim >= 2 and not is_norm and names[-1] not in ("bias", "scale")


def path_of(key_path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keys of a nested dict from the key path that JAX gives."""
    return tuple(entry.key for entry in key_path)


def transformation(config: AdamW, weights: Weights, is_controller) -> optax.GradientTransformation:
    """optax's AdamW direction for a learning rate of 1; controller state gets no update and no
    moments.

    `is_controller(path)` says which weights belong to a controller (router biases) and not to the
    optimizer.
    """

    def decay_mask(tree):
        return jax.tree_util.tree_map_with_path(lambda p, w: decays(path_of(p), w), tree)

    label = jax.tree_util.tree_map_with_path(
        lambda p, _: "controller" if is_controller(path_of(p)) else "trained", weights
    )
    trained = [optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.eps)]
    if config.weight_decay:
        trained.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask))
    return optax.partition(
        {"trained": optax.chain(*trained), "controller": optax.set_to_zero()}, label
    )


def clip_by_norm(gradient: Weights, max_norm: float) -> tuple[Weights, Float[Array, ""]]:
    """The gradient scaled down to the norm `max_norm` where longer, and its norm before."""
    norm = optax.tree.norm(gradient)
    factor = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * factor, gradient), norm
