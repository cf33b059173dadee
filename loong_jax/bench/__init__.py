"""Benches: what `loong bench NAME` measures. Their names are one table."""

import importlib
from collections.abc import Callable, Sequence

from loong_jax.errors import ConfigError

BENCHES: dict[str, str] = {  # name on the command line -> module with `main(arguments)`
    "async": "loong_jax.bench.asynchronous",
    "curation": "loong_jax.bench.curation",
    "decode": "loong_jax.bench.decode",
    "device": "loong_jax.bench.device",
    "fusion": "loong_jax.bench.fusion",
    "grpo": "loong_jax.bench.grpo",
    "loongbench": "loong_jax.bench.loongbench",
    "model": "loong_jax.bench.model",
    "placement": "loong_jax.bench.placement",
    "quickstart-ablation": "loong_jax.bench.ablation.command",
    "synth": "loong_jax.bench.synth.command",
    "verify": "loong_jax.bench.verify",
}


def get_bench(name: str) -> Callable[[Sequence[str]], int]:
    """The function that runs the bench called `name` with its arguments.

    Raises:
      ConfigError: there is no such bench.
    """
    if name not in BENCHES:
        raise ConfigError(f"{name!r} is no bench. Choose one of: {', '.join(BENCHES)}.")
    return importlib.import_module(BENCHES[name]).main
