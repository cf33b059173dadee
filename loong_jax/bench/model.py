"""`loong bench model`: our model's speed on this machine against transformers'."""

import dataclasses
import functools
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loong_jax import options, process
from loong_jax.bench import record
from loong_jax.errors import ConfigError
from loong_jax.run import places


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
        if not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise ConfigError(
                f"budget_s={self.budget_s} is not positive and finite. Name seconds, such as 15."
            )


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench model", arguments)
    places.prepare_files(json=chosen.json)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    process.keep_freed_memory(one_arena=True)
    from loong_jax.bench import ours

    measure(chosen, [ours.setting(name) for name in chosen.settings] or list(ours.SETTINGS))
    return 0


def measure(chosen: Options, settings: Sequence[Any]) -> dict[str, Any]:
    """All figures, as a dict for JSON; prints them as they come and saves them one by one."""
    from loong_jax.bench import ours, versus

    result: dict[str, Any] = {"load_before": os.getloadavg()[0], "settings": {}}
    save = functools.partial(record.saver(chosen.json, chosen), result)
    if result["load_before"] > 0.5:
        print(f"The load is {result['load_before']:.1f}: this machine has other things to do.")
    peer = versus.peer()
    if peer is None:
        print(f"Not compared with transformers, which is absent. Remedy: {versus.REMEDY}.")
        result["transformers"] = {"absent": versus.REMEDY}
    else:
        peer.set_num_threads(process.num_cores())
        result["transformers"] = peer.versions()
    for setting in settings:
        print(f"  {setting.name}: {setting.reason}", flush=True)
        result["settings"][setting.name] = {
            "reason": setting.reason,
            "tokens": [setting.batch, setting.length],
            **versus.compare(
                peer,
                ours.problem(setting),
                compiled=chosen.compiled,
                budget_s=chosen.budget_s,
                report=lambda line: print(line, flush=True),
            ),
        }
        save()
    if peer is not None:
        result["summary"] = {name: _summary(name, result) for name in ("forward", "train_step")}
    result["load_after"] = os.getloadavg()[0]
    save()
    return result


def _summary(name: str, result: dict[str, Any]) -> dict[str, float]:
    ratios = [row[name]["speedup"] for row in result["settings"].values()]
    mean, least = statistics.geometric_mean(ratios), min(ratios)
    print(f"  {name}: {mean:.2f}x transformers in geometric mean, {least:.2f}x at least")
    return {"geometric_mean": mean, "least": least}
