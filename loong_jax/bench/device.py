"""`loong bench device`: training and decoding a LongCat of two billion parameters on one device.

Peaks of a data sheet stand beside what the device does at best, measured in the same run: one large
product and one large copy. Training is a step of the trainer of `loong train`: gradients of one
micro-batch and the update of float32 masters. Decoding is greedy, all sequences at one place of a
full cache, many steps in one call as in the engine.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from loong_jax.bench import Report, Save
from loong_jax.data import packing
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.models import moe
from loong_jax.models.moe.attention import LatentCache
from loong_jax.plan import counts, programs
from loong_jax.plan.counts import attention_flops
from loong_jax.plan.topology import CHIPS
from loong_jax.rl import batching, trainer
from loong_jax.rl.batching import Layout, TrajectoryBatch
from loong_jax.run import devices
from loong_jax.sharding import ShardingRules

PARTS = ("ceilings", "train", "decode")

# 2.01 billion parameters in the proportions of the family: 0.53 of them meet a token.
TWO_BILLION = moe.MoEConfig.flash(
    vocab_size=32_768,
    hidden_size=2048,
    num_layers=5,
    num_heads=16,
    q_lora_rank=768,
    kv_lora_rank=512,
    ffn_hidden_size=4096,
    expert_ffn_hidden_size=768,
    num_experts=64,
    num_zero_experts=32,
    num_chosen=6,
    target_ffn_experts=4.0,
)
MODELS = {"2b": TWO_BILLION, "tiny": moe.MoEConfig.tiny(chunk_tokens=None)}
_BURST_S = 0.05  # of calls without a look at what they made
# Kept by layers for the backward pass: all but norms and sums.
_KEPT = ("residual", "router", "ffn_0", "ffn_1", "experts", "attention", "expanded", "latents")


class Peak(NamedTuple):
    """Peak rates of a device, from its data sheet."""

    bf16_flops: float  # per second, dense
    memory_bandwidth: float  # bytes per second


# By the name that the driver gives: SXM parts, from the vendor's data sheets, and TPUs, of which a
# chip may be two devices.
PEAKS = {
    "NVIDIA H200": Peak(989e12, 4.8e12),
    "NVIDIA H100 80GB HBM3": Peak(989e12, 3.35e12),
    "NVIDIA A100-SXM4-80GB": Peak(312e12, 2.039e12),
    **{
        kind: Peak(chip.bf16_flops / chip.num_devices, chip.hbm_bandwidth / chip.num_devices)
        for kind, name in devices.CHIPS.items()
        for chip in (CHIPS[name],)
    },
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Trains and decodes a LongCat of 2 billion parameters in bfloat16 on the device that is here.

    The default batch needs more than 105 GB of device memory. --batch 8 needs more than 66, for
    which a GPU of 80 must have XLA_PYTHON_CLIENT_MEM_FRACTION=0.9 in its environment. `train`:
    seconds of a step and its share of the peak. `decode`: bytes that a step must read, over its
    time, as a share of the memory's bandwidth.
    Example: loong bench device --json device.json
    """

    json: Path | None = None  # all figures
    parts: str = ",".join(PARTS)  # comma-separated
    model: str = "2b"  # or tiny, to try it anywhere
    batch: int = 16  # sequences of a training step
    length: int = 4096  # tokens of each
    decode_batch: int = 64  # sequences that are decoded
    decode_length: int = 8192  # tokens that each has in its cache
    decode_steps: int = 32  # in one call
    rounds: int = 8  # of every measurement; medians are reported

    def __post_init__(self):
        unknown = set(self.chosen_parts) - set(PARTS)
        if unknown or not self.chosen_parts:
            raise ConfigError(f"parts={self.parts!r} must name some of {', '.join(PARTS)}.")
        if self.model not in MODELS:
            raise ConfigError(f"model={self.model!r} must be one of {', '.join(MODELS)}.")
        refuse_below(self, 1, "batch", "decode_batch", "decode_steps", "rounds")
        refuse_below(self, 2, "length")
        if self.decode_length <= self.decode_steps:
            raise ConfigError(
                f"decode_length={self.decode_length} must exceed decode_steps={self.decode_steps}. "
                "Raise it."
            )

    @property
    def chosen_parts(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.parts.split(",") if part.strip())


def measure(
    chosen: Options, *, report: Report = print, save: Save = lambda _: None
) -> dict[str, Any]:
    """All figures as JSON values; seconds are medians, after a run for compilation.

    `save` gets them after each part.
    """
    device = jax.local_devices()[0]
    peak = PEAKS.get(device.device_kind)
    result: dict[str, Any] = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "peak": None if peak is None else peak._asdict(),
        "model": chosen.model,
        "parameters": counts.of(MODELS[chosen.model]).named(),
    }
    sheet = "no data sheet known"
    if peak is not None:
        flops, bandwidth = peak.bf16_flops / 1e12, peak.memory_bandwidth / 1e12
        sheet = f"{flops:.0f} TFLOP/s and {bandwidth:.2f} TB/s by its data sheet"
    report(f"{device.device_kind}, jax {jax.__version__}, {sheet}")
    bench = _Bench(MODELS[chosen.model], chosen, peak, report)
    for part in PARTS:
        if part in chosen.chosen_parts:
            result[part] = getattr(bench, part)(result)
            save(result)
    return result


@dataclasses.dataclass(frozen=True)
class _Bench:
    config: moe.MoEConfig
    chosen: Options
    peak: Peak | None
    report: Report

    def ceilings(self, _: Mapping[str, Any]) -> dict[str, float]:
        """The best that is seen of a product and of a copy, bytes read and written."""
        small = jax.default_backend() == "cpu"
        width, size = (512, 2**22) if small else (8192, 2**30)
        a, b = (self._random(key, (width, width)) for key in range(2))
        product_s = self._median(jax.jit(jnp.matmul), a, b)
        flat = jnp.ones((size,), jnp.float32)
        copy_s = self._median(jax.jit(lambda x: x + 1), flat)
        found = {"flops": 2 * width**3 / product_s, "bandwidth": 2 * flat.nbytes / copy_s}
        self.report(
            f"  one product: {found['flops'] / 1e12:.3g} TFLOP/s; one copy: "
            f"{found['bandwidth'] / 1e12:.2f} TB/s"
        )
        return found

    def train(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """A step in which every layer stands on its own, each on other tokens."""
        chosen = self.chosen
        config = dataclasses.replace(self.config, unroll_layers=True, remat=_KEPT)
        graphdef, _ = moe.abstract_weights(config)
        policy, made = programs.trainer_of(config, ShardingRules(), graphdef, chosen.length)
        state = jax.jit(
            lambda key: trainer.initial_state(
                policy, programs.OPTIMIZER, moe.init_weights(config, key)[1]
            )
        )(jax.random.key(0))
        times, entropies = [], []
        for seed in range(2 + chosen.rounds):  # tokens met again are learned by heart
            batch = self._batch(seed, made.layout)
            start_s = time.perf_counter()
            state, numbers = trainer.train_step(made, policy, state, [batch], 1, 1.0)
            entropies.append(numbers["entropy"])
            times.append(time.perf_counter() - start_s)
        step_s = statistics.median(times[2:])
        # 6 per active weight and token, and attention; nothing for what is made twice
        per_token = 2 * result["parameters"]["active"]
        per_token += attention_flops(self.config, (chosen.length + 1) / 2)
        flops = 3 * chosen.batch * chosen.length * per_token
        found = {
            "batch": chosen.batch,
            "length": chosen.length,
            "compile_s": times[0] - step_s,
            "step_s": step_s,
            "steps_s": times,
            "entropy": entropies,
            "useful_flops": flops,
            "flops": flops / step_s,
        }
        self._compare(found, result, "flops", "product")
        said = f"  training step of {chosen.batch} x {chosen.length} tokens: {step_s:.3f} s"
        self.report(said + _shares(found))
        return found

    def decode(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Steps of one call, over a cache that is full up to the last of them."""
        config, chosen = self.config, self.chosen
        graphdef, _ = moe.abstract_weights(config)
        weights = jax.jit(lambda key: moe.init_weights(config, key)[1])(jax.random.key(0))
        batch, capacity = chosen.decode_batch, chosen.decode_length
        lead = (config.num_layers, 2, batch, capacity)
        widths = config.kv_lora_rank, config.qk_rope_head_dim
        cache = LatentCache(*(self._random(w, (*lead, w)).astype(config.dtype) for w in widths))

        def steps(weights, cache, tokens, positions):
            model = nnx.merge(graphdef, nnx.State(weights)).layers_cut()

            def step(carry, _):
                tokens, positions, cache = carry
                logits, cache = model.decode(tokens, positions, cache)
                return (jnp.argmax(logits, -1).astype(jnp.int32), positions + 1, cache), None

            carry = tokens, positions, cache
            (tokens, _, cache), _ = jax.lax.scan(step, carry, length=chosen.decode_steps)
            return tokens, cache

        tokens = jnp.arange(batch, dtype=jnp.int32) % config.vocab_size
        positions = jnp.full((batch,), capacity - chosen.decode_steps, jnp.int32)
        arguments = weights, cache, tokens, positions
        start_s = time.perf_counter()
        call = jax.jit(steps, donate_argnums=(1,)).lower(*arguments).compile()
        compile_s = time.perf_counter() - start_s
        times = []
        for _ in range(1 + chosen.rounds):
            start_s = time.perf_counter()
            made, cache = call(weights, cache, tokens, positions)
            jax.block_until_ready(made)
            times.append((time.perf_counter() - start_s) / chosen.decode_steps)
        step_s = statistics.median(times[1:])
        size = jnp.dtype(config.dtype).itemsize
        counts = result["parameters"]
        seen = capacity - (chosen.decode_steps - 1) / 2
        read = {
            "weights": size * (counts["total"] - counts["embedding"]),
            "cache": size * batch * seen * 2 * config.num_layers * sum(widths),
        }
        found = {
            "batch": batch,
            "length": capacity,
            "compile_s": compile_s,
            "step_s": step_s,
            "steps_s": times,
            "tokens_per_s": batch / step_s,
            "bytes": read,
            "bandwidth": sum(read.values()) / step_s,
        }
        self._compare(found, result, "bandwidth", "copy")
        self.report(
            f"  decoding {batch} sequences at {capacity}: {1e3 * step_s:.2f} ms a step, "
            f"{batch / step_s:.0f} tokens/s; {read['weights'] / 1e9:.1f} GB of weights and "
            f"{read['cache'] / 1e9:.1f} of cache at {found['bandwidth'] / 1e12:.2f} TB/s"
            f"{_shares(found)}"
        )
        return found

    def _compare(
        self, found: dict[str, Any], result: Mapping[str, Any], rate: str, best: str
    ) -> None:
        """Adds a rate's shares of the data sheet and of the best that is seen."""
        if self.peak is not None:
            peaks = {"flops": self.peak.bf16_flops, "bandwidth": self.peak.memory_bandwidth}
            found["share_of_peak"] = found[rate] / peaks[rate]
        if "ceilings" in result:
            found[f"share_of_{best}"] = found[rate] / result["ceilings"][rate]

    def _batch(self, seed: int, layout: Layout) -> TrajectoryBatch:
        """Rows of random tokens that all train, with the advantage 1."""
        rows, length = self.chosen.batch, self.chosen.length
        like = batching.shapes(layout, ShardingRules(), rows, length, has_behavior=False)
        zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), like)
        mask = np.ones((rows, length), bool)
        random = np.random.default_rng(seed)
        return zeros._replace(
            tokens=random.integers(0, self.config.vocab_size, mask.shape, np.int32),
            segment_ids=mask.astype(np.int32),
            positions=np.broadcast_to(np.arange(length, dtype=np.int32), mask.shape),
            loss_mask=mask & (np.arange(length) > 0),
            advantage=mask.astype(np.float32),
            predicted=packing.predicted({}, mask) if layout.lists else None,
        )

    def _random(self, key: int, shape: tuple[int, ...]) -> jax.Array:
        return jax.jit(lambda k: jax.random.normal(k, shape, jnp.bfloat16))(jax.random.key(key))

    def _median(self, run: Callable[..., Any], *arguments: Any) -> float:
        """Seconds of one call of a burst that is long enough for its end to count for nothing."""

        def burst(calls: int) -> float:
            start_s = time.perf_counter()
            for _ in range(calls):
                made = run(*arguments)
            jax.block_until_ready(made)
            return (time.perf_counter() - start_s) / calls

        burst(1)
        calls = max(1, round(_BURST_S / burst(1)))
        return statistics.median(burst(calls) for _ in range(self.chosen.rounds))


def _shares(found: Mapping[str, Any]) -> str:
    """A clause for a line: rates, as shares of the data sheet and of the measured best."""
    parts = []
    if "flops" in found:
        parts.append(f"{found['flops'] / 1e12:.3g} TFLOP/s")
    if "share_of_peak" in found:
        parts.append(f"{found['share_of_peak']:.1%} of the data sheet's")
    for name in ("product", "copy"):
        if f"share_of_{name}" in found:
            parts.append(f"{found[f'share_of_{name}']:.1%} of the {name}'s")
    return f", {', '.join(parts)}" if parts else ""
