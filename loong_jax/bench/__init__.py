"""Benches: what `loong bench NAME` measures. Their names are one table.

Knows: configs, data, environments, errors, eval, merge, models, options, orchestrator, plan,
problems, process, recipes, report, rl, rollout, run, sharding, verifiers.
"""

import importlib
from collections.abc import Sequence

from loong_jax.errors import ConfigError

BENCHES: dict[str, str] = {  # name on the command line -> module with `main(arguments)`
    "async": "loong_jax.bench.asynchronous",
    "decode": "loong_jax.bench.decode",
    "device": "loong_jax.bench.device",
    "fusion": "loong_jax.bench.fusion",
    "grpo": "loong_jax.bench.grpo",
    "model": "loong_jax.bench.model",
    "verify": "loong_jax.bench.verify",
}


def main(arguments: Sequence[str]) -> int:
    name, *rest = arguments
    if name not in BENCHES:
        raise ConfigError(f"{name!r} is no bench. Choose one of: {', '.join(BENCHES)}.")
    return importlib.import_module(BENCHES[name]).main(rest)
