"""What the model's own time grows and falls with, each measured in one interleaved run."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.bench import grid, ours, timing
from loong_jax.models.moe import grouped


@dataclasses.dataclass(frozen=True)
class Choices:
    """K choices of every token, at random; a share of them falls on zero-computation experts."""

    num_tokens: int
    num_chosen: int
    num_experts: int
    zero_share: float = 0.0
    width: int = 256  # D
    ffn: int = 128  # M


def ffn_against_dense(
    sizes: Sequence[tuple[int, int]],
    experts: Sequence[int],
    rows: Sequence[int],
    budget_s: float,
) -> list[dict[str, Any]]:
    """The experts' FFN against one dense product of as many FLOPs, for all of `sizes` (D and M),
    numbers of experts and mean rows of each.

    One choice per token, at random, so that `rows` is the mean of an expert. The FFN's time holds
    everything from the choices to the sum per token: sorting, gathering, products, SwiGLU. A row
    meets D x 2 M and M x D weights; the dense product is [choices, D] x [D, 3 M], the same FLOPs,
    and its backward pass gives both gradients, as the FFN's gives those of tokens, gates and
    weights.
    """
    points = []
    for (width, ffn), num_experts, mean_rows in itertools.product(sizes, experts, rows):
        choices = Choices(num_experts * mean_rows, 1, num_experts, width=width, ffn=ffn)
        forward, backward = ffn_runs(choices)
        dense, dense_backward = dense_runs(choices)
        runs = {
            "forward": forward,
            "dense_forward": dense,
            "backward": backward,
            "dense_backward": dense_backward,
        }
        samples = timing.interleaved(runs, budget_s=budget_s)
        points.append(
            {
                "width": width,
                "experts": num_experts,
                "rows_per_expert": mean_rows,
                "forward_s": timing.median_s(samples["forward"]),
                "forward_backward_s": timing.median_s(samples["backward"]),
                "dense_forward_s": timing.median_s(samples["dense_forward"]),
                "dense_forward_backward_s": timing.median_s(samples["dense_backward"]),
                "forward_over_dense": timing.median_ratio(
                    samples["forward"], samples["dense_forward"]
                ),
                "forward_backward_over_dense": timing.median_ratio(
                    samples["backward"], samples["dense_backward"]
                ),
            }
        )
    return points


def zero_shares(
    sizes: Sequence[tuple[int, int]], shares: Sequence[float], num_tokens: int, budget_s: float
) -> list[dict[str, float]]:
    """Time of the experts' FFN by the share of zero choices, and the share of ideal that it is.

    For all of `sizes` (D and M). A token makes 4 choices, and an expert meets 256 rows where none
    of them is zero. Ideal is the time without zero choices times the share of choices that are
    left. The capacity of an expert is that of its expected rows, as in a model, whose config says
    how many zero choices it aims at.
    """
    points = []
    for width, ffn in sizes:
        choices = Choices(num_tokens, 4, num_tokens // 64, width=width, ffn=ffn)
        runs = {
            str(share): ffn_runs(dataclasses.replace(choices, zero_share=share))[0]
            for share in (0.0, *shares)
        }
        samples = timing.interleaved(runs, budget_s=budget_s)
        whole = samples["0.0"]
        points += [
            {
                "width": width,
                "zero_share": share,
                "forward_s": timing.median_s(samples[str(share)]),
                "share_of_ideal": (1 - share) * timing.median_ratio(whole, samples[str(share)]),
            }
            for share in shares
        ]
    return points


def cost(base: grid.Setting, points: dict[str, Sequence[int]], budget_s: float) -> dict[str, Any]:
    """Times of both passes of `base` with one size changed: batch, experts, layers or length.

    With another number of experts the choices per token stay; with another length the tokens do.
    """
    found: dict[str, Any] = {}
    for axis, values in points.items():
        settings = {value: _changed(base, axis, value) for value in values}
        problems = {value: ours.problem(setting) for value, setting in settings.items()}
        rows: dict[str, dict[str, float]] = {
            str(value): {"tokens": s.num_tokens} for value, s in settings.items()
        }
        for name, make in (("forward_s", ours.forward), ("train_step_s", ours.train_step)):
            runs = {str(value): make(problem) for value, problem in problems.items()}
            samples = timing.interleaved(runs, budget_s=budget_s / 2)
            for value in runs:
                rows[value][name] = timing.median_s(samples[value])
        found[axis] = [{axis: value, **rows[str(value)]} for value in values]
    return found


def _changed(base: grid.Setting, axis: str, value: int) -> grid.Setting:
    config = base.config
    if axis == "tokens":
        return dataclasses.replace(base, batch=max(1, value // base.length))
    if axis == "length":
        return dataclasses.replace(base, batch=max(1, base.num_tokens // value), length=value)
    if axis == "experts":
        zeros = value * config.num_zero_experts // config.num_experts
        config = dataclasses.replace(config, num_experts=value, num_zero_experts=zeros)
    else:
        config = dataclasses.replace(config, num_layers=value)
    return dataclasses.replace(base, config=config)


def ffn_runs(choices: Choices) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Runs of the experts' FFN: forward, and forward with all gradients."""
    random = np.random.default_rng(0)
    tokens, num_experts = choices.num_tokens, choices.num_experts
    width, ffn = choices.width, choices.ffn
    score_TE = random.random((tokens, num_experts))
    target = np.argpartition(score_TE, choices.num_chosen - 1)[:, : choices.num_chosen]
    kept = random.random(target.shape) >= choices.zero_share
    shapes = (
        (tokens, width),
        target.shape,
        (num_experts, width, 2, ffn),
        (num_experts, ffn, width),
    )
    deviations = (1.0, 1.0, width**-0.5, ffn**-0.5)
    operands = tuple(
        jnp.asarray(random.normal(size=shape, scale=deviation), jnp.float32)
        for shape, deviation in zip(shapes, deviations, strict=True)
    )

    def run(x, gate, gate_up, down, target, kept):
        mean_rows = target.size * (1 - choices.zero_share) / num_experts
        plan = grouped.arrange(target, kept, num_experts, grouped.capacity(mean_rows))
        return grouped.expert_ffn(x, gate, plan, gate_up, down)

    return _both(run, operands, (jnp.asarray(target, jnp.int32), jnp.asarray(kept)))


def dense_runs(choices: Choices) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Runs of one product of as many FLOPs: forward, and forward with both gradients."""
    random = np.random.default_rng(0)
    num_choices = choices.num_tokens * choices.num_chosen
    operands = tuple(
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in ((num_choices, choices.width), (choices.width, 3 * choices.ffn))
    )
    return _both(jnp.matmul, operands, ())


def _both(function, operands, indices):
    forward = jax.jit(function)

    @jax.jit
    def backward(operands, indices, grad_out):
        out, pull = jax.vjp(lambda *operands: function(*operands, *indices), *operands)
        return out, pull(grad_out)

    grad_out = jnp.ones_like(forward(*operands, *indices))
    return (
        lambda: jax.block_until_ready(forward(*operands, *indices)),
        lambda: jax.block_until_ready(backward(operands, indices, grad_out)),
    )
