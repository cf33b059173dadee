"""The controller of the router biases with its optional terms.

    e_n = K_e / (K E) - load_n / (K T_n)                       of every expert with weights
    b_n+1 - b_n = I e_n + P (e_n - e_n-1) + D (e_n - 2 e_n-1 + e_n-2)

T_n counts the tokens of step n and load_n those of them that chose the expert; I, P and D are
gains. The integral term alone is the published law, `router.update_bias`. The other two are the
velocity form of a PID controller: the bias itself is the sum, so nothing else accumulates, and what
they need beside it are the errors of two steps. Source: arXiv:2509.01322, section 2.1.1, which
prints the integral law and calls the controller PID.
"""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.router import load_error, update_bias


class ControllerMemory(NamedTuple):
    """Errors of the last two steps; kept beside the weights, as optimizer state is."""

    error: Float[Array, "L A"]
    error_before: Float[Array, "L A"]

    @classmethod
    def zeros(cls, config: MoEConfig) -> "ControllerMemory":
        shape = config.num_layers, config.num_targets
        # Two buffers: a step that donates its state could not take one twice.
        return cls(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiasController:
    """Gains: from an error, a share of all choices, to a score, 1 / A in the mean.

    The default terms are the published law.
    """

    rate: float  # integral: of each step's error, added up
    proportional: float = 0.0  # of the error of the last step
    derivative: float = 0.0  # of its change since the step before

    def __post_init__(self):
        gains = (self.rate, self.proportional, self.derivative)
        if not all(0 <= gain < math.inf for gain in gains):
            raise ConfigError(
                f"rate={self.rate}, proportional={self.proportional} and "
                f"derivative={self.derivative} must be finite and not negative. Correct the "
                "controller."
            )

    @property
    def remembers(self) -> bool:
        """Whether earlier errors matter."""
        return bool(self.proportional or self.derivative)

    def update(
        self,
        bias: Float[Array, "L A"],
        load: Int[Array, "L A"],
        memory: ControllerMemory | None,
        config: MoEConfig,
    ) -> tuple[Float[Array, "L A"], ControllerMemory | None]:
        """The bias after one step, and what the next one needs to know.

        `load` counts the global batch of one optimizer step. Zero-computation experts and layers
        that saw no token keep their bias. `memory` may be None, and stays it, unless the controller
        `remembers`; ValueError says so.
        """
        if memory is None:
            if self.remembers:
                raise ValueError(
                    f"memory=None, and proportional={self.proportional} and derivative="
                    f"{self.derivative} compare errors of several steps. Begin with "
                    "ControllerMemory.zeros(config) and pass on what each step returns."
                )
            return update_bias(bias, load, config, self.rate), None
        seen_L1 = jnp.sum(load, axis=-1, keepdims=True) > 0
        error = load_error(load, config)
        last, before = memory
        step = self.rate * error
        if self.remembers:
            step += self.proportional * (error - last)
            step += self.derivative * (error - 2 * last + before)
        moved = ControllerMemory(jnp.where(seen_L1, error, last), jnp.where(seen_L1, last, before))
        return bias + jnp.where(seen_L1, step, 0.0), moved
