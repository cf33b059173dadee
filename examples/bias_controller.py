"""Which terms settle the router biases fastest: the published integral law, PI or PID?

Two plants. "stream": router logits with skewed means that do a random walk and jump halfway, so
that the biases must first find, then follow, then find again. "model": a small LongCat-Flash that
learns sequences of a fixed random grammar by Adam, its biases starting at zero. A run has settled
at the first step from which the mean number of FFN experts per token, averaged over 16 steps, stays
within 1 % of K_e. Imbalance is the largest load of an expert over the mean load, averaged over the
last quarter of the steps (of either half, for the stream). Writes OUT/bias_controller.json and
OUT/bias_controller.png.

Command: python examples/bias_controller.py --out build/bias_controller
"""

import argparse
import functools
import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot
import numpy as np
import optax
from flax import nnx

from loong_jax.models import moe
from loong_jax.models.moe import router
from loong_jax.models.moe.controller import BiasController, ControllerMemory

matplotlib.use("Agg")

RATES = (0.05, 0.3, 1.5)
# Gains of the P and D terms as multiples of the rate.
KINDS = {"I": (0.0, 0.0), "PI": (3.0, 0.0), "PID": (3.0, 1.0)}
COLORS = {"I": "#3b82c4", "PI": "#d97a1f", "PID": "#2f9e73"}
WINDOW, TOLERANCE = 16, 0.01

STREAM_STEPS, STREAM_TOKENS = 600, 2048
MODEL_STEPS, MODEL_BATCH, MODEL_LENGTH, MODEL_WARMUP = 200, 16, 64, 20


def config_of(**changes):
    sizes = dict(
        hidden_size=32,
        num_heads=2,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=12,
        qk_rope_head_dim=4,
        v_head_dim=16,
        ffn_hidden_size=64,
        expert_ffn_hidden_size=16,
        num_experts=16,
        num_zero_experts=8,
        num_chosen=6,
        target_ffn_experts=4.0,
        gate_scale=4.0,
        vocab_size=64,
    )
    return moe.MoEConfig.tiny(**(sizes | changes))


STREAM = config_of(num_layers=1, num_experts=64, num_zero_experts=32)
MODEL = config_of(num_layers=2)


def controller_of(kind, rate):
    proportional, derivative = KINDS[kind]
    return BiasController(rate=rate, proportional=proportional * rate, derivative=derivative * rate)


@functools.partial(jax.jit, static_argnames="controller")
def stream_loads(controller, key):
    """Loads [steps, A] while the controller faces a stream of drifting logits."""
    targets, mask = STREAM.num_targets, jnp.ones((1, STREAM_TOKENS), bool)

    def step(carry, number):
        bias, memory, mean = carry
        walk, jump, noise = jax.random.split(jax.random.fold_in(key, number), 3)
        mean = 0.999 * mean + 0.02 * jax.random.normal(walk, (targets,))
        jumped = 0.5 * mean + 0.5 * jax.random.normal(jump, (targets,))
        mean = jnp.where(number == STREAM_STEPS // 2, jumped, mean)
        logits = mean[None, None] + jax.random.normal(noise, (1, STREAM_TOKENS, targets))
        routing = router.route(logits, bias[0], STREAM)
        load = router.count_load(routing.target, mask, targets)
        bias, memory = controller.update(bias, load[None], memory, STREAM)
        return (bias, memory, mean), load

    first = jax.random.normal(jax.random.fold_in(key, STREAM_STEPS), (targets,))
    start = (jnp.zeros((1, targets)), ControllerMemory.zeros(STREAM), first)
    _, loads = jax.lax.scan(step, start, jnp.arange(STREAM_STEPS))
    return loads[:, None]


GRAPH, _ = moe.init_weights(MODEL, jax.random.key(0))
OPTIMIZER = optax.chain(
    optax.scale_by_adam(b2=0.95),
    optax.scale_by_schedule(lambda n: -3e-3 * jnp.minimum(1.0, (n + 1) / MODEL_WARMUP)),
)


@jax.jit
def train_step(weights, state, key, grammar):
    """Weights and optimizer state after a fresh batch, its loss and loads."""

    def grow(token, key):
        follower = jax.random.categorical(key, grammar[token])
        return follower, follower

    first = jax.random.randint(key, (MODEL_BATCH,), 0, MODEL.vocab_size)
    _, tokens = jax.lax.scan(grow, first, jax.random.split(key, MODEL_LENGTH))
    tokens = tokens.T

    def loss(weights):
        output = nnx.merge(GRAPH, nnx.State(weights))(tokens)
        log_p = jax.nn.log_softmax(output.logits[:, :-1])
        return -jnp.mean(jnp.take_along_axis(log_p, tokens[:, 1:, None], -1)), output.load

    (value, load), gradient = jax.value_and_grad(loss, has_aux=True)(weights)
    update, state = OPTIMIZER.update(gradient, state)
    return optax.apply_updates(weights, update), state, value, load


@functools.partial(jax.jit, static_argnames="controller")
def steer(controller, weights, load, memory):
    layers = weights["layers"]
    bias, memory = controller.update(layers["router"]["bias"], load, memory, MODEL)
    layers = {**layers, "router": {**layers["router"], "bias": bias}}
    return {**weights, "layers": layers}, memory


def model_loads(controller, seed):
    """Loads [steps, L, A] and losses while the model learns."""
    key = jax.random.key(seed)
    _, weights = moe.init_weights(MODEL, key)
    state, memory = OPTIMIZER.init(weights), ControllerMemory.zeros(MODEL)
    grammar = 2.0 * jax.random.normal(key, (MODEL.vocab_size, MODEL.vocab_size))
    loads, losses = [], []
    for number in range(MODEL_STEPS):
        data = jax.random.fold_in(key, number)
        weights, state, loss, load = train_step(weights, state, data, grammar)
        weights, memory = steer(controller, weights, load, memory)
        loads.append(load)
        losses.append(loss)
    return np.array(loads), np.array(losses, np.float64)


def ffn_experts_per_token(loads, config):
    """[steps], mean over layers."""
    loads = loads.astype(np.float64)
    share = loads[..., : config.num_experts].sum(-1) / loads.sum(-1)
    return config.num_chosen * share.mean(-1)


def smooth(values):
    return np.convolve(values, np.ones(WINDOW) / WINDOW, mode="valid")


def settled_after(loads, config):
    """Steps until the averaged mean stays within the tolerance; None where it never does."""
    error = abs(smooth(ffn_experts_per_token(loads, config)) / config.target_ffn_experts - 1)
    outside = np.flatnonzero(error > TOLERANCE)
    if not len(outside):
        return 0
    return None if outside[-1] == len(error) - 1 else int(outside[-1]) + WINDOW


def imbalance(loads, config):
    last = loads[-(len(loads) // 4) :, :, : config.num_experts].astype(np.float64)
    return float((last.max(-1) / last.mean(-1)).mean())


def measure(plant, kind, rate, seed):
    controller = controller_of(kind, rate)
    result = dict(plant=plant, kind=kind, rate=rate, seed=seed)
    if plant == "stream":
        loads, half = np.array(stream_loads(controller, jax.random.key(seed))), STREAM_STEPS // 2
        halves = (loads[:half], loads[half:])
        result["steps_to_settle"] = [settled_after(part, STREAM) for part in halves]
        result["imbalance"] = float(np.mean([imbalance(part, STREAM) for part in halves]))
        return result, ffn_experts_per_token(loads, STREAM) / STREAM.target_ffn_experts
    loads, losses = model_loads(controller, seed)
    result["steps_to_settle"] = [settled_after(loads, MODEL)]
    result["imbalance"] = imbalance(loads, MODEL)
    result["final_loss"] = float(losses[-20:].mean())
    return result, ffn_experts_per_token(loads, MODEL) / MODEL.target_ffn_experts


def draw(curves, path):
    """FFN experts per token over K_e against steps: plants in rows, rates in columns."""
    plants = sorted({key[0] for key in curves}, reverse=True)
    figure, axes = matplotlib.pyplot.subplots(
        len(plants), len(RATES), figsize=(10, 2.6 * len(plants)), squeeze=False, sharey=True
    )
    for (row, plant), (column, rate) in itertools.product(enumerate(plants), enumerate(RATES)):
        axis = axes[row][column]
        axis.axhspan(1 - TOLERANCE, 1 + TOLERANCE, color="#d8dee4", lw=0)
        for kind, color in COLORS.items():
            curve = smooth(curves[plant, kind, rate])
            axis.plot(np.arange(len(curve)) + WINDOW, curve, color=color, lw=1, label=kind)
        axis.set_title(f"{plant}, rate {rate:g}", fontsize=9)
        axis.set_ylim(0.9, 1.1)
        axis.tick_params(labelsize=8)
    axes[0][0].legend(fontsize=8, frameon=False)
    for row in axes:
        row[0].set_ylabel("FFN experts per token / $K_e$", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("step", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--plants", nargs="+", default=["stream", "model"])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results, curves = [], {}
    for seed, plant in itertools.product(range(args.seeds), args.plants):
        for kind, rate in itertools.product(KINDS, RATES):
            result, curve = measure(plant, kind, rate, seed)
            print(json.dumps(result), flush=True)
            results.append(result)
            curves.setdefault((plant, kind, rate), curve)  # the first seed
        (args.out / "bias_controller.json").write_text(json.dumps(results, indent=1))
    draw(curves, args.out / "bias_controller.png")


if __name__ == "__main__":
    main()
