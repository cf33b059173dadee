"""The matrix products of a model: how many FLOPs, at which shapes, how fast this machine does them.

What a pass would take if it did nothing but its products, each at the rate measured for its shape,
says what bounds it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from loong_jax.bench import timing
from loong_jax.bench.grid import Setting

_SCORES = "attention scores"


class Shape(NamedTuple):
    """A product of [rows, inner] with [inner, columns], or `batch` of them at once."""

    batch: int
    rows: int
    inner: int
    columns: int
    transposed: str = ""  # the operand that lies transposed in memory: "left", "right" or neither

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.inner * self.columns

    def operands(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of both operands as they lie in memory; a single product has no batch axis."""
        left, right = (self.rows, self.inner), (self.inner, self.columns)
        left = left[::-1] if self.transposed == "left" else left
        right = right[::-1] if self.transposed == "right" else right
        return ((self.batch, *left), (self.batch, *right)) if self.batch > 1 else (left, right)

    def going_back(self) -> "tuple[Shape, Shape]":
        """The products that make the gradients of the left and of the right operand."""
        return (
            Shape(self.batch, self.rows, self.columns, self.inner, "right"),
            Shape(self.batch, self.inner, self.rows, self.columns, "left"),
        )


@dataclasses.dataclass(frozen=True)
class Product:
    """`count` products of one shape in one forward pass."""

    part: str
    count: float
    shape: Shape

    @property
    def flops(self) -> float:
        return self.count * self.shape.flops


def of_forward(setting: Setting, load: Int[np.ndarray, "L A"]) -> list[Product]:
    """The products of one forward pass; `load` says how many rows the experts met.

    Scores are counted over all pairs of tokens, masked or not, as both sides compute them.
    """
    c, tokens, length = setting.config, setting.num_tokens, setting.length
    width, heads, kv_rank = c.hidden_size, c.num_heads, c.kv_lora_rank
    query, attentions = c.qk_nope_head_dim + c.qk_rope_head_dim, 2 * c.num_layers
    expert_rows = float(np.sum(load[:, : c.num_experts]))
    mean_rows = max(1, round(expert_rows / (c.num_layers * c.num_experts)))

    def dense(part: str, count: int, inner: int, columns: int) -> Product:
        return Product(part, count, Shape(1, tokens, inner, columns))

    def score(inner: int, columns: int) -> Product:
        return Product(_SCORES, attentions, Shape(setting.batch * heads, length, inner, columns))

    def expert(inner: int, columns: int) -> Product:
        count = expert_rows / (mean_rows * c.num_experts)
        return Product("experts", count, Shape(c.num_experts, mean_rows, inner, columns))

    projections = [
        (width, c.q_lora_rank),
        (c.q_lora_rank, heads * query),
        (width, kv_rank + c.qk_rope_head_dim),
        (kv_rank, heads * (c.qk_nope_head_dim + c.v_head_dim)),
        (heads * c.v_head_dim, width),
    ]
    return [
        *(dense("attention projections", attentions, *sizes) for sizes in projections),
        score(query, length),
        score(length, c.v_head_dim),
        dense("dense FFNs", 2 * attentions, width, c.ffn_hidden_size),
        dense("dense FFNs", attentions, c.ffn_hidden_size, width),
        dense("router", c.num_layers, width, c.num_targets),
        expert(width, 2 * c.expert_ffn_hidden_size),
        expert(c.expert_ffn_hidden_size, width),
        dense("head", 1, width, c.vocab_size),
    ]


_SQUARE = Shape(1, 2048, 2048, 2048)  # large enough for any library's best rate


def time_each(
    products: Sequence[Product], peer: ModuleType, budget_s: float
) -> dict[Shape, dict[str, float]]:
    """What a product takes alone in ours and in the peer's library, by shape.

    The shapes are those of both passes and a large square.
    """
    shapes = {_SQUARE} | {s for p in products for s in (p.shape, *p.shape.going_back())}
    return {
        s: _least_s({"ours": _run(s), "peer": peer.product(s)}, budget_s / len(shapes))
        for s in shapes
    }


def bound(
    products: Sequence[Product],
    seconds: Mapping[Shape, Mapping[str, float]],
    forward_s: float,
    train_s: float,
) -> dict[str, Any]:
    """What bounds our two passes: FLOPs by part, our best rate, shares of time, a sentence."""
    by_part: dict[str, float] = {}
    for product in products:
        by_part[product.part] = by_part.get(product.part, 0.0) + product.flops
    total = sum(by_part.values())
    peak = max(shape.flops / took["ours"] for shape, took in seconds.items())
    alone_s = sum(p.count * seconds[p.shape]["ours"] for p in products)
    largest = max(by_part, key=lambda part: by_part[part])
    by = f"products of {largest}" if alone_s > forward_s / 2 else "what surrounds the products"
    sentence = (
        f"bound by {by}: all products ({total / 1e9:.2f} GFLOP, {by_part[largest] / total:.0%} in "
        f"{largest}) would take {alone_s / forward_s:.0%} of the forward pass at the rates "
        f"measured for their shapes, {total / peak / forward_s:.0%} at our best for any shape, "
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


class Alone(NamedTuple):
    """What the products of a setting take by themselves, each as fast as the faster library."""

    forward_s: float
    train_step_s: float
    needed_flops: float  # of a forward pass; a training step has three times as many
    peak_flops_per_s: float  # either library's best, at these shapes or a large square


def alone(
    products: Sequence[Product], seconds: Mapping[Shape, Mapping[str, float]], length: int
) -> Alone:
    """Adds up the products of either pass over sequences of `length` tokens.

    Those of scores count without the pairs that a causal mask hides, and at the best rate of all
    shapes, since a fused attention makes them in the cache.
    """
    least_s = {shape: min(took.values()) for shape, took in seconds.items()}
    peak = max(shape.flops / took for shape, took in least_s.items())
    visible = (length + 1) / (2 * length)
    forward_s = train_step_s = needed_flops = 0.0
    for p in products:
        if p.part == _SCORES:
            p = dataclasses.replace(p, count=p.count * visible)
            times = [p.shape.flops / peak] * 3
        else:
            times = [least_s[s] for s in (p.shape, *p.shape.going_back())]
        forward_s += p.count * times[0]
        train_step_s += p.count * sum(times)
        needed_flops += p.flops
    return Alone(forward_s, train_step_s, needed_flops, peak)


def _run(shape: Shape) -> timing.Run:
    left, right = (jnp.ones(sizes) for sizes in shape.operands())

    def multiply(left, right):
        left = left.mT if shape.transposed == "left" else left
        return left @ (right.mT if shape.transposed == "right" else right)

    call = jax.jit(multiply)
    return lambda: jax.block_until_ready(call(left, right))


def _least_s(runs: Mapping[str, timing.Run], budget_s: float) -> dict[str, float]:
    samples = timing.interleaved(runs, budget_s=budget_s, burst_s=0.02)
    return {name: min(sample.wall_s for sample in found) for name, found in samples.items()}
