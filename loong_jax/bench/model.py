"""`loong bench model`: our model's speed on this machine against transformers'.

Same weights, tokens, threads and optimizer, in one process. Both run in every variant that works.
The one of each side that a short trial finds the fastest is then timed in turns with the other
side's.
"""

import dataclasses
import importlib
import importlib.util
import math
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from loong_jax import process
from loong_jax.bench import Report, Save, ours, timing
from loong_jax.bench.ours import Problem, Setting
from loong_jax.errors import ConfigError

REMEDY = "pip install 'torch==2.13.0' transformers, or the extra `peers`"
# batched_mm copies the weights of every choice; where that is more, it is left out
MOST_BATCHED_BYTES = 2**31
LARGEST_DIFFERENCE = 1e-3  # of logits and losses; rounding makes about 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Times forward passes and training steps on CPU, ours and transformers'.

    Needs a quiet machine: the load at start and end is part of the result. Without transformers
    ours is timed alone.
    Example: loong bench model --json model.json
    """

    json: Path | None = None  # all figures
    settings: tuple[str, ...] = ()  # names of the models to time; all when empty
    compiled: bool = True  # time torch.compile as well, whose compilations take minutes
    budget_s: float = 15.0  # seconds of measuring per comparison, compilations not counted

    def __post_init__(self):
        known = [one.name for one in ours.SETTINGS]
        if unknown := [name for name in self.settings if name not in known]:
            raise ConfigError(f"{unknown[0]!r} is no setting. Choose among {', '.join(known)}.")
        if not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise ConfigError(
                f"budget_s={self.budget_s} is not positive and finite. Name seconds, such as 15."
            )


def measure(
    chosen: Options,
    settings: Sequence[Setting] = (),
    *,
    report: Report = print,
    save: Save = lambda _: None,
) -> dict[str, Any]:
    """All figures, as a dict for JSON; reports and saves them as they come."""
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    process.keep_freed_memory(one_arena=True)
    named = [one for one in ours.SETTINGS if one.name in chosen.settings] or ours.SETTINGS
    result: dict[str, Any] = {"load_before": os.getloadavg()[0], "settings": {}}
    if result["load_before"] > 0.5:
        report(f"The load is {result['load_before']:.1f}: this machine has other things to do.")
    peer = find_peer()
    if peer is None:
        report(f"Not compared with transformers, which is absent. Remedy: {REMEDY}.")
        result["transformers"] = {"absent": REMEDY}
    else:
        peer.set_num_threads(process.num_cores())
        result["transformers"] = peer.versions()
    for setting in settings or named:
        report(f"  {setting.name}: {setting.reason}")
        result["settings"][setting.name] = {
            "reason": setting.reason,
            "tokens": [setting.batch, setting.length],
            **compare(
                peer,
                ours.problem(setting),
                compiled=chosen.compiled,
                budget_s=chosen.budget_s,
                report=report,
            ),
        }
        save(result)
    for name in ("forward", "train_step") if peer is not None else ():
        ratios = [row[name]["speedup"] for row in result["settings"].values()]
        mean, least = statistics.geometric_mean(ratios), min(ratios)
        report(f"  {name}: {mean:.2f}x transformers in geometric mean, {least:.2f}x at least")
        result.setdefault("summary", {})[name] = {"geometric_mean": mean, "least": least}
    result["load_after"] = os.getloadavg()[0]
    save(result)
    return result


def find_peer() -> ModuleType | None:
    """The adapter of transformers, or None where torch or transformers is absent."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        return None
    return importlib.import_module("loong_jax.bench.hf_torch")


def compare(
    peer: ModuleType | None, problem: Problem, *, compiled: bool, budget_s: float, report: Report
) -> dict[str, Any]:
    """Times of both passes of both sides, and their paired ratio; of ours alone without a peer.

    Raises:
      AssertionError: the two sides do not compute the same function, so no time means anything.
    """
    weights = jax.tree.map(np.asarray, problem.weights)
    config = problem.setting.config
    batched_bytes = 12 * problem.setting.num_tokens * config.num_chosen * config.hidden_size
    batched_bytes *= config.expert_ffn_hidden_size
    eager = ["loop", "grouped_mm"] + ["batched_mm"] * (batched_bytes <= MOST_BATCHED_BYTES)
    mine = ours.variants(problem)
    forwards = {name: ours.forward(variant) for name, variant in mine.items()}
    steps = {name: ours.train_step(variant) for name, variant in mine.items()}
    logits = np.asarray(next(iter(forwards.values()))())
    # of the first two steps, which must agree among ours as well
    losses, *others = ([float(step()) for _ in range(2)] for step in steps.values())
    assert all(np.allclose(losses, other, atol=LARGEST_DIFFERENCE) for other in others), others

    def forward_run(variant):
        assert peer is not None
        run = peer.forward(peer.build(config, weights, variant), variant, problem.tokens)
        return run, float(np.max(np.abs(run().numpy() - logits)))

    def step_run(variant):
        assert peer is not None
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
    for name, make, runs in (("forward", forward_run, forwards), ("train_step", step_run, steps)):
        own_samples = timing.interleaved(runs, budget_s=budget_s / 5, min_rounds=3)
        own_seconds = {variant: timing.median_s(found) for variant, found in own_samples.items()}
        passes[name] = {"ours_s": min(own_seconds.values()), "ours_variants_s": own_seconds}
        if peer is None:
            report(f"    {name}: ours {1e3 * passes[name]['ours_s']:.1f} ms")
            continue
        variants = _Variants(name, make, peer, report)
        kinds = [(kind, attention) for kind in eager for attention in ("sdpa", "eager")]
        variants.time([peer.Variant(*kind) for kind in kinds], budget_s / 5)
        if compiled:  # with the faster attention; the loop compiles anew for every expert
            kinds = ["grouped_mm"] + ["loop"] * (config.num_experts <= 8)
            attention = variants.fastest.attention
            made = [peer.Variant(kind, attention, compiled=True) for kind in kinds]
            variants.time(made, budget_s / 5)
        pair = {
            "ours": min(own_seconds, key=lambda variant: own_seconds[variant]),
            "transformers": str(variants.fastest),
        }
        finals = {"ours": runs[pair["ours"]], "transformers": variants.runs[pair["transformers"]]}
        with peer.quiet():
            samples = timing.interleaved(finals, budget_s=budget_s)
        passes[name] |= {
            "ours_s": timing.median_s(samples["ours"]),
            "transformers_s": timing.median_s(samples["transformers"]),
            "speedup": timing.median_ratio(samples["transformers"], samples["ours"]),
            "speedup_in_cpu_time": timing.median_ratio(
                samples["transformers"], samples["ours"], "cpu_s"
            ),
            "rounds": len(samples["ours"]),
            "ours_variant": pair["ours"],
            "fastest_variant": pair["transformers"],
            "variants_s": variants.seconds,
            "variants_that_do_not_work": variants.failed,
            "largest_difference": variants.differences[pair["transformers"]],
        }
        said = (f"{side} {1e3 * passes[name][f'{side}_s']:.1f} ms ({pair[side]})" for side in pair)
        report(f"    {name}: {', '.join(said)}: {passes[name]['speedup']:.2f}x")
    return passes


class _Variants:
    """The variants of one pass that work and how long each takes."""

    def __init__(self, name: str, make: Callable, peer: ModuleType, report: Report):
        self.name, self.make, self.peer, self.report = name, make, peer, report
        self.runs: dict[str, Callable[[], Any]] = {}
        self.seconds: dict[str, float] = {}
        self.differences: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.fastest: Any = None

    def time(self, variants: Iterable[Any], budget_s: float) -> None:
        """Builds the variants, checks what they compute, and times those that work."""
        built = {}
        with self.peer.quiet():
            for variant in variants:
                try:
                    run, difference = self.make(variant)
                except Exception as error:  # that a variant does not work here is a finding
                    self.failed[str(variant)] = f"{type(error).__name__}: {error}".splitlines()[0]
                    self.report(f"    {self.name}: {variant} fails: {self.failed[str(variant)]}")
                    continue
                is_same = difference < LARGEST_DIFFERENCE
                assert is_same, f"{self.name}: {variant} differs from ours by {difference}"
                built[variant] = run
                self.runs[str(variant)], self.differences[str(variant)] = run, difference
            samples = timing.interleaved(
                {str(variant): run for variant, run in built.items()},
                budget_s=budget_s,
                min_rounds=3,
            )
        for variant in built:
            self.seconds[str(variant)] = timing.median_s(samples[str(variant)])
            if self.seconds[str(variant)] < self.seconds.get(str(self.fastest), math.inf):
                self.fastest = variant
