"""Balance of routing and size of states in training: the biases' controller, losses, measures.

Losses and measures are functions of what a call of the model returns. In formulas n is the number
of unmasked tokens of that call, a micro-batch over all devices; nothing is counted per sequence.

The controller, of every expert with weights:

    e_n = K_e / (K E) - load_n / (K T_n)
    b_n+1 - b_n = I e_n + P (e_n - e_n-1) + D (e_n - 2 e_n-1 + e_n-2)

T_n counts the tokens of step n and load_n those of them that chose the expert; I, P and D are
gains. The integral term alone is the published law, `router.update_bias`. The other two are the
velocity form of a PID controller: the bias itself is the sum, so nothing else accumulates, and what
they need beside it are the errors of two steps. Source: arXiv:2509.01322, sections 2.1.1, which
prints the integral law and calls the controller PID, 2.1.2 (load balance), 3.1.3 (stability).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.errors import ConfigError, refuse_below, refuse_outside
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.model import ModelOutput
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
        refuse_outside(self, "[0, inf)", "rate", "proportional", "derivative", why="a gain")

    @property
    def remembers(self) -> bool:
        """True if earlier errors enter the update."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountChoices:
    """Every choice of a token counts: f = 1 everywhere when routing is uniform and meets K_e."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountTokens:
    """A token counts once in each group that it chooses, the letter of the paper's indicator.

    Where a token makes several choices in a group f stays below that of `CountChoices`.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceBalance:
    """The device-level balance loss: G groups of experts and one of all zero experts.

    A group is E / G neighbouring experts, those of one device. The gradient pulls scores away from
    groups that get more than their share; it complements the biases, which see single experts and
    whole steps only.
    """

    num_groups: int  # G
    weight: float  # alpha
    counting: CountChoices | CountTokens = CountChoices()

    def __post_init__(self):
        refuse_below(self, 1, "num_groups")
        refuse_outside(self, "(0, inf]", "weight", why="no balance leaves the loss out")
        if not isinstance(self.counting, CountChoices | CountTokens):
            raise ConfigError(
                f"counting={self.counting!r} is neither CountChoices() nor CountTokens(). Use one "
                "of them."
            )


def device_balance_loss(
    output: ModelOutput,
    config: MoEConfig,
    balance: DeviceBalance,
    mask: Bool[Array, "B T"] | None = None,
) -> Float[Array, "L"]:
    """alpha sum_j f_j P_j of each layer, which is to be added to the loss, layer by layer.

    P_j is the mean score of group j, the sum over its targets; only P has a gradient.
    """
    groups = expert_groups(config, balance)
    frequency_LG = group_frequency(output, config, balance, mask)
    score_LA = output.score_sum / _num_tokens(output.load, config)
    return balance.weight * jnp.sum(frequency_LG[:, groups] * score_LA, axis=-1)


def group_frequency(
    output: ModelOutput,
    config: MoEConfig,
    balance: DeviceBalance,
    mask: Bool[Array, "B T"] | None = None,
) -> Float[Array, "L groups"]:
    """f of the G groups and, last, of the zero-computation experts.

        f_j = G / (K_e n) count_j        f_zero = 1 / ((K - K_e) n) count_zero

    `mask` is that of the call, None where it had none; `CountTokens` needs it. Where K_e = K no
    choice should fall on a zero-computation expert and f_zero is 0.
    """
    num_groups = balance.num_groups
    if isinstance(balance.counting, CountChoices):
        groups = expert_groups(config, balance)
        is_member_GA = jnp.arange(num_groups + 1)[:, None] == groups[None]
        count_LG = jnp.einsum("LA,GA->LG", output.load, is_member_GA.astype(jnp.int32))
    else:
        group_LBTK = _group_of(output.target, config, balance)
        group_G = jnp.arange(num_groups + 1)
        meets_LBTG = jnp.any(group_LBTK[..., None] == group_G[None, None, None, None], axis=3)
        if mask is not None:
            meets_LBTG &= mask[None, ..., None]
        count_LG = jnp.sum(meets_LBTG, axis=(1, 2), dtype=jnp.int32)
    zero_share = config.num_chosen - config.mean_ffn_experts
    scale = [num_groups / config.mean_ffn_experts] * num_groups
    scale_G = jnp.asarray([*scale, 1 / zero_share if zero_share else 0.0], jnp.float32)
    return scale_G[None] * count_LG / _num_tokens(output.load, config)


def expert_groups(config: MoEConfig, balance: DeviceBalance) -> Int[Array, "A"]:
    """The group of each target: 0..G-1 by device, G for zero-computation experts."""
    return _group_of(jnp.arange(config.num_targets), config, balance)


def _group_of(
    target: Int[Array, "..."], config: MoEConfig, balance: DeviceBalance
) -> Int[Array, "..."]:
    size, rest = divmod(config.num_experts, balance.num_groups)
    if rest:
        raise ConfigError(
            f"num_groups={balance.num_groups} does not divide num_experts={config.num_experts}. "
            "Use a divisor, such as the number of devices that hold experts."
        )
    return jnp.minimum(target // size, balance.num_groups)


def _num_tokens(load: Int[Array, "L A"], config: MoEConfig) -> Float[Array, "L 1"]:
    """n, at least 1: every unmasked token made K choices."""
    return jnp.maximum(jnp.sum(load, axis=-1, keepdims=True) / config.num_chosen, 1.0)


def stability_ratio(
    output: ModelOutput,
    score_gradient: Float[Array, "L A"],
    config: MoEConfig,
    balance: DeviceBalance,
    mask: Bool[Array, "B T"] | None = None,
) -> Float[Array, "L"]:
    """R_g = |alpha grad_P L_balance| / |grad_P L_model| of each layer; the paper keeps it < 0.1.

    P is the vector of mean scores. `score_gradient` is the gradient of the model's loss with
    respect to the argument `score_shift` of its call, taken at zeros: what the loss gains when the
    score of a target rises by the same amount for all tokens.
    """
    groups = expert_groups(config, balance)
    balance_LA = balance.weight * group_frequency(output, config, balance, mask)[:, groups]
    return jnp.linalg.norm(balance_LA, axis=-1) / jnp.maximum(
        jnp.linalg.norm(score_gradient, axis=-1), jnp.finfo(jnp.float32).tiny
    )


def router_row_cosine(kernel: Float[Array, "*layers D A"]) -> Float[Array, "*layers"]:
    """Mean cosine over all pairs of different targets' rows of each router; near 0 at the start.

    Towards 1 the router no longer tells its targets apart. A row of zeros has cosine 0 with all.
    """
    num_targets = kernel.shape[-1]
    length = jnp.linalg.norm(kernel, axis=-2, keepdims=True)
    unit = kernel / jnp.where(length > 0, length, 1.0)
    # |sum of units|^2 = number of them + sum over pairs of their cosines
    squared = jnp.sum(jnp.sum(unit, axis=-1) ** 2, axis=-1)
    num_units = jnp.sum(length > 0, axis=(-2, -1))
    return (squared - num_units) / max(num_targets * (num_targets - 1), 1)


def hidden_z_loss(
    hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None = None, *, weight: float = 1e-7
) -> Float[Array, ""]:
    """weight / n sum_t (log sum_i exp |z_t,i|)^2 of the last hidden states, in float32.

    It holds down massive activations: single components much larger than all others.
    """
    size_BT = jax.nn.logsumexp(jnp.abs(hidden.astype(jnp.float32)), axis=-1)
    mask = jnp.ones_like(size_BT, bool) if mask is None else mask
    total = jnp.sum(jnp.where(mask, size_BT**2, 0.0))
    return weight * total / jnp.maximum(jnp.sum(mask), 1)
