"""The matrix products of a model: how many FLOPs, at which shapes, how fast this machine does them.

What a pass would take if it did nothing but its products, each at the rate measured for its shape,
says what bounds it.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from loong_jax.bench import timing
from loong_jax.bench.grid import Setting

_SQUARE = 2048, 2048, 2048  # large enough for any library's best rate


@dataclasses.dataclass(frozen=True)
class Product:
    """`count` products of [rows, inner] with [inner, columns] in one forward pass."""

    part: str
    count: float
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> float:
        return 2.0 * self.count * self.rows * self.inner * self.columns


def of_forward(setting: Setting, load: Int[np.ndarray, "L A"]) -> list[Product]:
    """The products of one forward pass; `load` says how many rows the experts met.

    Scores are counted over all pairs of tokens, masked or not, as both sides compute them.
    """
    c, tokens, length = setting.config, setting.num_tokens, setting.length
    width, heads = c.hidden_size, c.num_heads
    query = c.qk_nope_head_dim + c.qk_rope_head_dim
    attentions, pairs = 2 * c.num_layers, 2 * c.num_layers * setting.batch * heads
    expert_rows = float(np.sum(load[:, : c.num_experts]))
    mean_rows = max(1, round(expert_rows / (c.num_layers * c.num_experts)))
    experts = expert_rows / mean_rows
    return [
        Product("attention projections", attentions, tokens, width, c.q_lora_rank),
        Product("attention projections", attentions, tokens, c.q_lora_rank, heads * query),
        Product(
            "attention projections",
            attentions,
            tokens,
            width,
            c.kv_lora_rank + c.qk_rope_head_dim,
        ),
        Product(
            "attention projections",
            attentions,
            tokens,
            c.kv_lora_rank,
            heads * (c.qk_nope_head_dim + c.v_head_dim),
        ),
        Product("attention projections", attentions, tokens, heads * c.v_head_dim, width),
        Product("attention scores", pairs, length, query, length),
        Product("attention scores", pairs, length, length, c.v_head_dim),
        Product("dense FFNs", 2 * attentions, tokens, width, c.ffn_hidden_size),
        Product("dense FFNs", attentions, tokens, c.ffn_hidden_size, width),
        Product("router", c.num_layers, tokens, width, c.num_targets),
        Product("experts", experts, mean_rows, width, 2 * c.expert_ffn_hidden_size),
        Product("experts", experts, mean_rows, c.expert_ffn_hidden_size, width),
        Product("head", 1, tokens, width, c.vocab_size),
    ]


@functools.cache
def rate(rows: int, inner: int, columns: int, budget_s: float) -> float:
    """Measured FLOPs per second of one product of this shape: the best of many."""
    return _best_rate({"ours": _run(rows, inner, columns)}, rows * inner * columns, budget_s)


def _run(rows: int, inner: int, columns: int) -> timing.Run:
    a, b = jnp.ones((rows, inner)), jnp.ones((inner, columns))
    call = jax.jit(jnp.matmul)
    return lambda: jax.block_until_ready(call(a, b))


def _best_rate(runs: Mapping[str, timing.Run], size: int, budget_s: float) -> float:
    samples = timing.interleaved(runs, budget_s=budget_s, burst_s=0.005)
    return 2.0 * size / min(sample.wall_s for found in samples.values() for sample in found)


def bound(products: list[Product], forward_s: float, train_s: float, budget_s: float) -> dict:
    """What bounds the two passes: FLOPs by part, the measured peak, shares of time, a sentence."""
    by_part: dict[str, float] = {}
    for product in products:
        by_part[product.part] = by_part.get(product.part, 0.0) + product.flops
    total = sum(by_part.values())
    shapes = {(p.rows, p.inner, p.columns) for p in products}
    rates = {shape: rate(*shape, budget_s / len(shapes)) for shape in shapes}
    peak = max(rates.values())
    alone_s = sum(p.flops / rates[p.rows, p.inner, p.columns] for p in products)
    largest = max(by_part, key=lambda part: by_part[part])
    by = f"products of {largest}" if alone_s > forward_s / 2 else "what surrounds the products"
    sentence = (
        f"bound by {by}: all products ({total / 1e9:.2f} GFLOP, {by_part[largest] / total:.0%} in "
        f"{largest}) would take {alone_s / forward_s:.0%} of the forward pass at the rates "
        f"measured for their shapes, {total / peak / forward_s:.0%} at the best of these, "
        f"{peak / 1e9:.0f} GFLOP/s; three times as many are {3 * total / peak / train_s:.0%} of "
        "the training step at that rate"
    )
    return {
        "flops": total,
        "flops_by_part": by_part,
        "peak_flops_per_s": peak,
        "products_share_of_forward": alone_s / forward_s,
        "products_share_of_forward_at_peak": total / peak / forward_s,
        "products_share_of_train_step_at_peak": 3 * total / peak / train_s,
        "sentence": sentence,
    }


def needed_flops(products: Sequence[Product], setting: Setting) -> float:
    """FLOPs that no program is spared: all but the scores of pairs that a causal mask hides."""
    visible = (setting.length + 1) / (2 * setting.length)
    return sum(p.flops * (visible if p.part == "attention scores" else 1.0) for p in products)


def peak(products: Sequence[Product], peer: ModuleType, budget_s: float) -> float:
    """FLOPs per second at best: ours and the peer's, at any of the shapes or a large square one."""
    shapes = {(p.rows, p.inner, p.columns) for p in products} | {_SQUARE}
    return max(
        _best_rate(
            {"ours": _run(*shape), "peer": peer.product(*shape)},
            math.prod(shape),
            budget_s / len(shapes),
        )
        for shape in shapes
    )
