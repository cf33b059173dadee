"""Benches: what `loong bench NAME` measures. Their names are one table.

Knows: configs, data, environments, errors, eval, merge, models, options, orchestrator, plan,
problems, process, recipes, report, rl, rollout, run, sandbox, sharding, verifiers.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax import configs, process
from loong_jax.data import json_files
from loong_jax.errors import ConfigError

# Name on the command line -> module with `Options` and `measure(chosen, report=..., save=...)`.
BENCHES: dict[str, str] = {
    "async": "loong_jax.bench.asynchronous",
    "decode": "loong_jax.bench.decode",
    "device": "loong_jax.bench.device",
    "fusion": "loong_jax.bench.fusion",
    "grpo": "loong_jax.bench.grpo",
    "model": "loong_jax.bench.model",
    "verify": "loong_jax.bench.verify",
}
Report = Callable[[str], object]  # gets lines for people
Save = Callable[[Mapping[str, Any]], object]  # gets all figures there are so far


def main(arguments: Sequence[str]) -> int:
    from loong_jax import options  # tyro, after the help text
    from loong_jax.run import places

    name, *rest = arguments
    if name not in BENCHES:
        raise ConfigError(f"{name!r} is no bench. Choose one of: {', '.join(BENCHES)}.")
    bench = importlib.import_module(BENCHES[name])
    chosen = options.parse(bench.Options, f"loong bench {name}", rest)
    places.prepare_files(json=chosen.json)
    places.try_directories(directory=getattr(chosen, "directory", None))
    report = functools.partial(print, flush=True)
    bench.measure(chosen, report=report, save=saver(chosen.json, chosen))
    return 0


def saver(path: Path | None, chosen: Any) -> Save:
    """A function that writes figures, and options, versions and machine, to `path` if there is one.

    The file is whole after every part, so that a stopped bench leaves what it has. `chosen` are the
    options of the bench, a dataclass.
    """
    if path is None:
        return lambda _: None
    machine = {
        "processor": process.processor(),
        "cores": process.num_cores(),
        "load": os.getloadavg()[0],  # at the start
    }
    setup = {
        "options": {name: _plain(value) for name, value in dataclasses.asdict(chosen).items()},
        "versions": configs.versions(),
        "machine": machine,
    }
    return lambda figures: json_files.write_json(path, {"setup": setup, **figures})


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
