"""`loong bench model`: our model's speed on this machine, alone and against transformers."""

import dataclasses
import functools
import importlib.metadata
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loong_jax import options, process
from loong_jax.bench import record
from loong_jax.errors import ConfigError
from loong_jax.launch import places

PARTS = ("transformers", "ffn", "zero_share", "cost")
SIZES = ((256, 128), (1024, 512))  # D and M of the experts' FFN
EXPERTS, ROWS = (8, 64, 256), (16, 64, 256)  # how many experts meet how many rows each
ZERO_SHARES, ZERO_TOKENS = (1 / 6, 1 / 3, 1 / 2, 2 / 3), 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Times forward passes and training steps on CPU, alone and against transformers.

    Needs a quiet machine: the load at start and end is part of the result.
    Example: loong bench model --json model.json --chart model.png
    """

    json: Path | None = None  # all figures
    chart: Path | None = None  # the curves as a PNG
    parts: tuple[str, ...] = PARTS  # what to measure
    settings: tuple[str, ...] = ()  # names of the grid to compare on; all when empty
    threads: int | None = None  # run on that many of the cores we may use
    compiled: bool = True  # time torch.compile as well, whose compilations take minutes
    budget_s: float = 15.0  # seconds of measuring per comparison, compilations not counted


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench model", arguments)
    _check(chosen)
    places.prepare_files(json=chosen.json, chart=chosen.chart)
    if chosen.threads is not None:
        _pin(chosen.threads)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    process.keep_freed_memory(one_arena=True)
    from loong_jax.bench import grid

    settings = [grid.setting(name) for name in chosen.settings] or list(grid.GRID)
    result = measure(chosen, settings)
    if chosen.chart is not None:
        from loong_jax.bench import figures

        chosen.chart.write_bytes(figures.png(result))
    return 0


def measure(chosen: Options, settings: Sequence[Any]) -> dict[str, Any]:
    """All figures, as a dict for JSON; prints them as they come and saves them part by part."""
    from loong_jax.bench import curves, versus

    result: dict[str, Any] = {"machine": _machine(), "load_before": os.getloadavg()[0]}
    save = functools.partial(record.saver(chosen.json, chosen), result)
    if result["load_before"] > 0.5:
        print(f"The load is {result['load_before']:.1f}: this machine has other things to do.")
    if "transformers" in chosen.parts:
        peer = versus.peer()
        if peer is None:
            print(f"Not compared with transformers, which is absent. Remedy: {versus.REMEDY}.")
            result["transformers"] = {"absent": versus.REMEDY}
        else:
            peer.set_num_threads(result["machine"]["threads"])
            result["machine"] |= peer.versions()
            found = result["transformers"] = {"settings": {}}
            _time_grid(chosen, settings, peer, found["settings"], save)
            found["summary"] = _summary(found["settings"])
        save()
    if "ffn" in chosen.parts:
        print("MoE FFN over one dense product of equal FLOPs: forward, forward and backward")
        result["ffn"] = curves.ffn_against_dense(SIZES, EXPERTS, ROWS, chosen.budget_s / 5)
        for point in result["ffn"]:
            print(
                f"  width {point['width']:4d}, {point['experts']:4d} experts x "
                f"{point['rows_per_expert']:4d} rows  "
                f"{point['forward_over_dense']:.2f}  {point['forward_backward_over_dense']:.2f}"
            )
        save()
    if "zero_share" in chosen.parts:
        print("MoE FFN by share of zero choices: time, share of ideal")
        result["zero_share"] = curves.zero_shares(
            SIZES, ZERO_SHARES, ZERO_TOKENS, chosen.budget_s / len(SIZES)
        )
        for point in result["zero_share"]:
            print(
                f"  width {point['width']:4d}  {point['zero_share']:.0%}  "
                f"{1e3 * point['forward_s']:.2f} ms  {point['share_of_ideal']:.0%}"
            )
        save()
    if "cost" in chosen.parts:
        base = settings[0]
        print(f"Cost of {base.name} by one size: forward, training step")
        result["cost"] = curves.cost(base, sizes(base), chosen.budget_s)
        for axis, points in result["cost"].items():
            for point in points:
                print(
                    f"  {axis} {point[axis]:5d}  {1e3 * point['forward_s']:.1f} ms  "
                    f"{1e3 * point['train_step_s']:.1f} ms"
                )
    result["load_after"] = os.getloadavg()[0]
    save()
    return result


def _time_grid(
    chosen: Options,
    settings: Sequence[Any],
    peer: Any,
    rows: dict[str, Any],
    save: Callable[[], None],
) -> None:
    """Adds a row for each setting as soon as it is measured."""
    from loong_jax.bench import ours, products, versus

    for setting in settings:
        print(f"  {setting.name}: {setting.reason}", flush=True)
        problem = ours.problem(setting)
        passes = versus.compare(
            peer,
            problem,
            compiled=chosen.compiled,
            budget_s=chosen.budget_s,
            report=lambda line: print(line, flush=True),
        )
        multiplied = products.of_forward(setting, ours.load(problem))
        seconds = products.time_each(multiplied, peer, chosen.budget_s / 2)
        bound = products.bound(
            multiplied, seconds, passes["forward"]["ours_s"], passes["train_step"]["ours_s"]
        )
        print(f"    {bound['sentence']}", flush=True)
        rows[setting.name] = {
            "reason": setting.reason,
            "tokens": [setting.batch, setting.length],
            **passes,
            "bound": bound,
            "products_alone": products.alone(multiplied, seconds, setting.length)._asdict(),
        }
        save()


def _summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Means and ceilings of both passes, which it prints."""
    summary = {}
    for name in ("forward", "train_step"):
        ratios = [row[name]["speedup"] for row in rows.values()]
        most = ceilings(name, rows)
        means = {rate: statistics.geometric_mean(found.values()) for rate, found in most.items()}
        summary[name] = {
            "geometric_mean": statistics.geometric_mean(ratios),
            "least": min(ratios),
            "ceiling": means,
            "ceilings": most,
        }
        print(
            f"  {name}: {summary[name]['geometric_mean']:.2f}x transformers in geometric mean, "
            f"{summary[name]['least']:.2f}x at least. Nothing but the products would be"
        )
        for rate, found in most.items():
            by_setting = ", ".join(f"{setting} {ratio:.2f}x" for setting, ratio in found.items())
            print(f"    at {rate}: {means[rate]:.2f}x ({by_setting})")
    return summary


def ceilings(name: str, rows: dict[str, Any]) -> dict[str, dict[str, float]]:
    """By rate and setting, transformers' time in pass `name` over that of its products alone.

    Each product at the rate measured for its shape, or all at the best rate of this run.
    """
    peak = max(row["products_alone"]["peak_flops_per_s"] for row in rows.values())
    times = {"forward": 1, "train_step": 3}[name]
    own, best = {}, {}
    for setting, row in rows.items():
        products, whole_s = row["products_alone"], row[name]["transformers_s"]
        own[setting] = whole_s / products[f"{name}_s"]
        best[setting] = whole_s * peak / (times * products["needed_flops"])
    return {"the rates of their shapes": own, "the best rate of all": best}


def sizes(base: Any) -> dict[str, Sequence[int]]:
    """The points of each cost curve: the base's own size times powers of two."""
    tokens, experts = base.num_tokens, base.config.num_experts
    return {
        "tokens": [tokens // 4, tokens // 2, tokens, 2 * tokens],
        "experts": [experts, 2 * experts, 4 * experts, 8 * experts],
        "layers": [1, 2, 4, 8],
        "length": [base.length // 2, base.length, 2 * base.length, 4 * base.length],
    }


def _check(chosen: Options) -> None:
    unknown = [part for part in chosen.parts if part not in PARTS]
    if unknown or not chosen.parts:
        raise ConfigError(
            f"parts={list(chosen.parts)} are no parts. Choose among {', '.join(PARTS)}."
        )
    if chosen.threads is not None and chosen.threads < 1:
        raise ConfigError(f"threads={chosen.threads} is below 1. Raise it or leave it out.")
    if not (math.isfinite(chosen.budget_s) and chosen.budget_s > 0):
        raise ConfigError(
            f"budget_s={chosen.budget_s} is not positive and finite. Name seconds, such as 15."
        )


def _pin(threads: int) -> None:
    """Binds this process to `threads` cores, before anything starts threads of its own."""
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError(
            f"threads={threads} cannot be had: this system binds no process to cores. Leave it out."
        )
    cores = sorted(os.sched_getaffinity(0))
    if threads > len(cores):
        raise ConfigError(f"threads={threads} exceeds the {len(cores)} cores here. Lower it.")
    os.sched_setaffinity(0, cores[:threads])


def _machine() -> dict[str, Any]:
    import jax

    from loong_jax import doctor

    return {
        "processor": record.processor(),
        "threads": doctor.num_cores(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
    }
