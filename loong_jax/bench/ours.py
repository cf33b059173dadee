"""The six models on which ours is timed against transformers, and ours as things to time.

Each is a family member in small: both kinds of experts, ranks below the width, two attentions and
two dense FFNs per logical layer. Together they move what the time goes to. What is timed is a
forward pass and a training step over one batch.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Int

from loong_jax.models import moe
from loong_jax.models.moe import MoEConfig
from loong_jax.rl import optimizers

RATE, BETAS, EPS = 1e-5, (0.9, 0.95), 1e-8  # AdamW on both sides, without weight decay


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model and the batch it is timed on."""

    name: str
    reason: str
    config: MoEConfig
    batch: int  # B
    length: int  # T

    @property
    def num_tokens(self) -> int:
        return self.batch * self.length


def sized(width: int, **changes) -> MoEConfig:
    """A model of residual width `width` with the published F = 2 D, a third of the targets of zero
    computation, K_e = 2 K / 3 and alpha_kv = 2; `changes` override single fields."""
    sizes = dict(
        vocab_size=2048,
        hidden_size=width,
        num_layers=2,
        num_heads=width // 64,
        q_lora_rank=width // 2,
        kv_lora_rank=width // 4,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        ffn_hidden_size=2 * width,
        expert_ffn_hidden_size=width // 2,
        num_experts=8,
        num_zero_experts=4,
        num_chosen=3,
        target_ffn_experts=2.0,
        gate_scale=6.0,
        max_position=4096,
    )
    return MoEConfig.tiny(**(sizes | changes))


_SMALL = dict(num_experts=128, num_zero_experts=64, num_chosen=8, target_ffn_experts=5.0)
_BIG = dict(num_experts=4, num_zero_experts=2, num_chosen=2, target_ffn_experts=1.5)
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "quickstart",
        "the model that `make quickstart` trains: overheads weigh as much as products",
        MoEConfig.tiny(),
        48,
        64,
    ),
    Setting("wide", "four times the width: dense products dominate", sized(512), 8, 128),
    Setting(
        "many_small_experts",
        "128 experts of 64 columns, 8 of 192 targets per token: dispatch dominates",
        sized(256, expert_ffn_hidden_size=64, **_SMALL),
        16,
        128,
    ),
    Setting(
        "few_big_experts",
        "4 experts four times as wide as the model: a few large products",
        sized(256, expert_ffn_hidden_size=1024, **_BIG),
        16,
        128,
    ),
    Setting(
        "long_sequence",
        "one sequence of 2048 tokens: scores and softmax dominate",
        sized(256),
        1,
        2048,
    ),
    Setting(
        "many_short_sequences",
        "256 sequences of 16 tokens, as short answers are: attention of tiny matrices",
        sized(256),
        256,
        16,
    ),
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A setting with weights and a batch: every token predicts a label drawn at random."""

    setting: Setting
    graphdef: nnx.GraphDef
    weights: moe.Weights
    tokens: Int[np.ndarray, "B T"]
    labels: Int[np.ndarray, "B T"]


def problem(setting: Setting, seed: int = 0) -> Problem:
    graphdef, weights = moe.init_weights(setting.config, jax.random.key(seed))
    random = np.random.default_rng(seed)
    shape = (2, setting.batch, setting.length)
    tokens, labels = random.integers(setting.config.vocab_size, size=shape, dtype=np.int32)
    return Problem(setting, graphdef, weights, tokens, labels)


def variants(problem: Problem) -> dict[str, Problem]:
    """The same problem in the ways that are fast on one CPU or another, by what they do."""
    chosen = {
        "loop over layers, chunks of 512 tokens": dict(chunk_tokens=512, unroll_layers=False),
        "layers unrolled, no chunks": dict(chunk_tokens=None, unroll_layers=True),
    }
    found = {}
    for name, changes in chosen.items():
        config = dataclasses.replace(problem.setting.config, **changes)
        graphdef, _ = moe.abstract_weights(config)
        setting = dataclasses.replace(problem.setting, config=config)
        found[name] = dataclasses.replace(problem, setting=setting, graphdef=graphdef)
    return found


def forward(problem: Problem) -> Callable[[], Array]:
    """A run that returns the logits."""
    call = jax.jit(_logits(problem.graphdef))
    tokens = jnp.asarray(problem.tokens)
    return lambda: jax.block_until_ready(call(problem.weights, tokens))


def train_step(problem: Problem) -> Callable[[], Array]:
    """A run that updates its own copy of the weights once and returns the mean cross-entropy."""
    config = optimizers.AdamW(
        schedule=optimizers.WarmupConstant(peak=RATE), beta1=BETAS[0], beta2=BETAS[1], eps=EPS
    )
    adam = optimizers.transformation(
        config, problem.weights, moe.is_controller_state, lambda path: None
    )
    logits = _logits(problem.graphdef)

    def loss(weights, tokens, labels):
        losses = optax.softmax_cross_entropy_with_integer_labels(logits(weights, tokens), labels)
        return jnp.mean(losses)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(weights, moments, tokens, labels):
        value, gradient = jax.value_and_grad(loss)(weights, tokens, labels)
        directions, moments = adam.update(gradient, moments, weights)
        weights = jax.tree.map(lambda w, d: w - RATE * d, weights, directions)
        return weights, moments, value

    weights = jax.tree.map(jnp.copy, problem.weights)
    state: list[Any] = [weights, adam.init(weights)]
    tokens, labels = jnp.asarray(problem.tokens), jnp.asarray(problem.labels)

    def run():
        *state[:], value = step(*state, tokens, labels)
        jax.block_until_ready(state)
        return value

    return run


def _logits(graphdef):
    return lambda weights, tokens: nnx.merge(graphdef, nnx.State(weights))(tokens).logits
