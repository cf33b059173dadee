"""Schedules of `eps_pos_high`: the report adjusts it while it trains (arXiv:2509.18883, 3.4.1).

The report says neither how nor by how much. A schedule is data; its value at a step is a traced
number, so a step of another bound runs the same program.
"""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearBound:
    """In a line from the clip's own value at step 0 to `end` at `num_steps`; `end` from there."""

    end: float
    num_steps: int

    def __post_init__(self):
        if not 0 <= self.end < math.inf or self.num_steps < 1:
            raise ConfigError(
                f"end={self.end} must be finite and >= 0, and num_steps={self.num_steps} >= 1. "
                "Correct the recipe, or use no schedule."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SteppedBound:
    """The clip's own value before steps[0], then values[i] from steps[i] on."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self):
        rises = all(a < b for a, b in zip(self.steps, self.steps[1:], strict=False))
        if len(self.steps) != len(self.values) or not self.steps or not rises or self.steps[0] < 1:
            raise ConfigError(
                f"steps={self.steps} must rise from 1 or more, and values={self.values} hold one "
                "bound for each of them. Correct the recipe."
            )
        if not all(0 <= value < math.inf for value in self.values):
            raise ConfigError(
                f"values={self.values} must be finite and >= 0: they are distances from 1."
            )


BoundSchedule = LinearBound | SteppedBound


def bound_at(schedule: BoundSchedule, start: float, step: Int[Array, ""] | int) -> Float[Array, ""]:
    """The bound of the update that follows `step` updates; `start` is the clip's own value."""
    step = jnp.asarray(step, jnp.float32)
    if isinstance(schedule, LinearBound):
        share = jnp.clip(step / schedule.num_steps, 0.0, 1.0)
        return start + share * (schedule.end - start)
    values = jnp.array((start, *schedule.values), jnp.float32)
    return values[jnp.sum(step >= jnp.array(schedule.steps, jnp.float32)).astype(jnp.int32)]
