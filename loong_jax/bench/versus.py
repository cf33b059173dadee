"""Ours against transformers: same weights, tokens, threads and optimizer, in one process.

transformers runs in every variant that works; the fastest of each pass is what ours is paired with.
"""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import numpy as np

from loong_jax.bench import ours, timing
from loong_jax.bench.ours import Problem

REMEDY = "pip install 'torch==2.13.0' transformers, or the extra `peers`"
# batched_mm copies the weights of every choice; where that is more, it is left out
MOST_BATCHED_BYTES = 2**31
Report = Callable[[str], None]


def peer() -> ModuleType | None:
    """The adapter of transformers, or None where torch or transformers is absent."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        return None
    return importlib.import_module("loong_jax.bench.hf_torch")


def compare(
    peer: ModuleType, problem: Problem, *, compiled: bool, budget_s: float, report: Report
) -> dict[str, Any]:
    """Times of both passes of both sides, and their paired ratio.

    Raises:
      AssertionError: the two sides do not compute the same function, so no time means anything.
    """
    weights = jax.tree.map(np.asarray, problem.weights)
    config = problem.setting.config
    ours_forward, ours_step = ours.forward(problem), ours.train_step(problem)
    logits = np.asarray(ours_forward())
    losses = [float(ours_step()) for _ in range(2)]

    def forward_run(variant):
        run = peer.forward(peer.build(config, weights, variant), variant, problem.tokens)
        return run, _largest_difference(run().numpy(), logits)

    def step_run(variant):
        run = peer.train_step(
            peer.build(config, weights, variant),
            variant,
            problem.tokens,
            problem.labels,
            rate=ours.RATE,
            betas=ours.BETAS,
            eps=ours.EPS,
        )
        return run, max(abs(float(run()) - loss) for loss in losses)

    passes = {}
    for name, make, mine in (
        ("forward", forward_run, ours_forward),
        ("train_step", step_run, ours_step),
    ):
        runs, differences, failed = {}, {}, {}
        for variant in _variants(peer, problem, compiled):
            try:
                with peer.quiet():
                    run, difference = make(variant)
                    run()
            except Exception as error:  # a variant that does not work here is a finding
                failed[str(variant)] = f"{type(error).__name__}: {error}".splitlines()[0]
                report(f"    {name}: {variant} does not work: {failed[str(variant)]}")
                continue
            runs[str(variant)], differences[str(variant)] = run, difference
        for variant, difference in differences.items():
            if not difference < 1e-3:
                raise AssertionError(f"{name}: {variant} differs from ours by {difference}")
        with peer.quiet():
            first = timing.interleaved(runs, budget_s=budget_s / 4, min_rounds=3)
            fastest = min(first, key=lambda variant: timing.median_s(first[variant]))
            pair = {"ours": mine, "transformers": runs[fastest]}
            samples = timing.interleaved(pair, budget_s=budget_s)
        passes[name] = {
            "ours_s": timing.median_s(samples["ours"]),
            "transformers_s": timing.median_s(samples["transformers"]),
            "speedup": timing.median_ratio(samples["transformers"], samples["ours"]),
            "speedup_in_cpu_time": timing.median_ratio(
                samples["transformers"], samples["ours"], "cpu_s"
            ),
            "rounds": len(samples["ours"]),
            "fastest_variant": fastest,
            "variants_s": {v: timing.median_s(timed) for v, timed in first.items()},
            "variants_that_do_not_work": failed,
            "largest_difference": differences[fastest],
        }
        report(
            f"    {name}: ours {1e3 * passes[name]['ours_s']:.1f} ms, transformers "
            f"{1e3 * passes[name]['transformers_s']:.1f} ms ({fastest}): "
            f"{passes[name]['speedup']:.2f}x"
        )
    return passes


def _variants(peer: ModuleType, problem: Problem, compiled: bool):
    c, tokens = problem.setting.config, problem.setting.num_tokens
    batched_bytes = 12 * tokens * c.num_chosen * c.hidden_size * c.expert_ffn_hidden_size
    experts = ["loop", "grouped_mm"] + ["batched_mm"] * (batched_bytes <= MOST_BATCHED_BYTES)
    for kind in experts:
        for attention in ("sdpa", "eager"):
            yield peer.Variant(kind, attention)
    if compiled:
        for attention in ("sdpa", "eager"):
            yield peer.Variant("grouped_mm", attention, compiled=True)
        yield peer.Variant("loop", "sdpa", compiled=True)


def _largest_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.max(np.abs(found - wanted)))
