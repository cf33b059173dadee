"""Routing: each token picks K of A = E + Z targets.

The first E targets are experts with weights. The last Z are zero-computation experts, which
return their input, so a token pays for between 0 and K experts.
Source: arXiv:2509.01322, section 2.1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from loong_jax.models import parameters
from loong_jax.models.decoder import Mask, States
from loong_jax.models.moe.config import MoEConfig
from loong_jax.sharding import ShardingRules

ROUTER = "router"  # the name under which a checkpoint policy finds the logits of the choice
WITHOUT_MESH = ShardingRules()


class Routing(NamedTuple):
    target: Int[Array, "B T K"]  # in [0, A); target >= E is a zero-computation expert
    gate: Float[Array, "B T K"]  # float32, not normalised over K


class LayerStatistics(NamedTuple):
    """Statistics of one layer's routing over all devices; unused ones cost nothing under jit.

    A scan over the layers stacks each of them on L.
    """

    load: Int[Array, "A"]  # unmasked tokens that chose each target
    score_sum: Float[Array, "A"]  # float32, sum over unmasked tokens of the softmax; has a gradient
    target: Int[Array, "B T K"]  # the choices, those of masked tokens too
    num_overflowed: Int[Array, ""]  # choices that waited for a later round of the exchange
    own_target: Int[Array, "B T K"] | None = None  # the router's choices, where others are forced


class Router(nnx.Module):
    """The classifier of every layer and the bias that steers its choice, float32 both."""

    def __init__(self, config: MoEConfig, *, rngs: nnx.Rngs, rules: ShardingRules):
        self.config, self.rules = config, rules
        layers, embed, targets = config.num_layers, config.hidden_size, config.num_targets
        self.kernel = parameters.kernel(
            (layers, embed, targets), ("layers", "embed", "target"), jnp.float32, rngs, rules
        )
        self.bias = parameters.ControllerState(jnp.zeros((layers, targets), jnp.float32))

    def __call__(
        self,
        x: States,
        score_shift: Float[Array, "A"] | None = None,
        forced_target: Int[Array, "B T K"] | None = None,
    ) -> tuple[Routing, Float[Array, "B T A"], Int[Array, "B T K"] | None]:
        """The routing of every token, the scores behind it, and its own choice if some is forced.

        `score_shift` is added to the scores of every token. The gradient of a loss with respect to
        it, at 0, is the gradient with respect to the mean scores (`balance.stability_ratio`).
        Of `forced_target` see `force`.
        """
        kernel = self.rules.gather(self.kernel[...], "embed", "target")
        logits_BTA = checkpoint_name(router_logits(x, kernel), ROUTER)
        score_BTA = jax.nn.softmax(logits_BTA, axis=-1)
        if score_shift is not None:
            score_BTA += score_shift[None, None]
        routing = choose(score_BTA, self.bias[...], self.config, self.rules)
        if forced_target is None:
            return routing, score_BTA, None
        forced = force(routing, score_BTA, forced_target, self.config)
        return forced, score_BTA, routing.target


def router_logits(x: States, kernel: Float[Array, "D A"]) -> Float[Array, "B T A"]:
    """Scores every target in float32 at full precision: a bf16 product would flip near-ties."""
    x, kernel = x.astype(jnp.float32), kernel.astype(jnp.float32)
    return jnp.einsum("BTD,DA->BTA", x, kernel, precision=jax.lax.Precision.HIGHEST)


def choose(
    score: Float[Array, "B T A"],
    bias: Float[Array, "A"],
    config: MoEConfig,
    rules: ShardingRules = WITHOUT_MESH,
) -> Routing:
    """Returns the K targets of each token and their gates.

    `bias` steers the choice and never enters the gates, so balancing adds nothing to the gradient.
    Near-ties must fall alike in trainer and engine, so everything here is float32.
    """
    choice_BTA = jax.lax.stop_gradient(score + bias[None, None])
    # Each device chooses for its own tokens: the partitioner for CPU would gather all scores.
    sharding = rules.like(score)
    tokens = None if sharding is None else PartitionSpec(*sharding.spec[:2])
    on_mesh = rules.shard_map(
        lambda choice: jax.lax.top_k(choice, config.num_chosen)[1],
        in_specs=tokens,
        out_specs=tokens,
    )
    target_BTK = on_mesh(choice_BTA)
    gate_BTK = jnp.take_along_axis(score, target_BTK, axis=-1)
    return Routing(target_BTK, gate_BTK * config.gate_scale)


def force(
    free: Routing, score: Float[Array, "B T A"], target: Int[Array, "B T K"], config: MoEConfig
) -> Routing:
    """`free`, but tokens go to `target` where it has K choices.

    One outside [0, A) among them, such as -1, frees the token, and so does one that is there twice:
    exchanges count on distinct ones. The gates are those that `score` gives the forced targets:
    what is forced is the choice alone, and gradients reach the router through the gates as they do
    otherwise.
    """
    is_same_BTKK = target[..., :, None] == target[..., None, :]
    is_distinct_BT1 = jnp.sum(is_same_BTKK, axis=(-1, -2))[..., None] == config.num_chosen
    is_target_BTK = (target >= 0) & (target < config.num_targets)
    is_forced_BT1 = jnp.all(is_target_BTK, axis=-1, keepdims=True) & is_distinct_BT1
    target_BTK = jnp.where(is_forced_BT1, target, free.target)
    gate_BTK = jnp.take_along_axis(score, target_BTK, axis=-1) * config.gate_scale
    return Routing(target_BTK, gate_BTK)


def layer_statistics(
    routing: Routing,
    score: Float[Array, "B T A"],
    mask: Mask,
    num_overflowed: Int[Array, ""],
    own_target: Int[Array, "B T K"] | None = None,
) -> LayerStatistics:
    """Statistics of one layer; tokens outside `mask` count in no sum."""
    load_A = count_load(routing.target, mask, score.shape[-1])
    score_sum_A = jnp.sum(jnp.where(mask[..., None], score, 0.0), axis=(0, 1))
    return LayerStatistics(load_A, score_sum_A, routing.target, num_overflowed, own_target)


def count_load(target: Int[Array, "B T K"], mask: Mask, num_targets: int) -> Int[Array, "A"]:
    """The load: unmasked tokens that each target received, over all devices."""
    chosen_BTKA = target[..., None] == jnp.arange(num_targets)[None, None, None]
    return jnp.sum(chosen_BTKA & mask[..., None, None], axis=(0, 1, 2), dtype=jnp.int32)


def update_bias(
    bias: Float[Array, "*layers A"], load: Int[Array, "*layers A"], config: MoEConfig, rate: float
) -> Float[Array, "*layers A"]:
    """The bias after one step of the controller: an integral law on the share of each expert.

    bias_e += rate * (K_e / (K E) - load_e / (K n)) for the E experts with weights, where n is the
    number of tokens of the step; zero-computation experts are left alone. At rest every expert
    receives K_e / E of the tokens and K - K_e choices per token fall on zero-computation experts.
    Where choices cannot meet K_e experts, `mean_ffn_experts` stands for it.
    `load` counts the global batch of one optimizer step; a layer that saw no token keeps its bias.
    `rate` multiplies a share of all choices, and its product adds to a score, which is 1 / A in
    the mean. Source: arXiv:2509.01322, section 2.1.1.
    """
    return bias + rate * load_error(load, config)


def load_error(load: Int[Array, "*layers A"], config: MoEConfig) -> Float[Array, "*layers A"]:
    """K_e / (K E) - load_e / (K n): what is missing from the share of each expert with weights.

    A share of all choices of the step, whose n tokens are those of `update_bias`. 0 for
    zero-computation experts and in layers that saw no token.
    """
    experts = jnp.arange(config.num_targets) < config.num_experts
    experts = jnp.expand_dims(experts, tuple(range(load.ndim - 1)))
    choices = jnp.sum(load, axis=-1, keepdims=True)  # K n
    share = load / jnp.maximum(choices, 1)
    wanted = config.mean_ffn_experts / (config.num_chosen * config.num_experts)
    return jnp.where(experts & (choices > 0), wanted - share, 0.0)
