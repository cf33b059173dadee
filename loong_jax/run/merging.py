"""`loong merge`: fused weights that every other command takes as a checkpoint."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax import options, own
from loong_jax.data import json_files
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.merge import METHODS, checkpoints, published
from loong_jax.merge.checkpoints import MergeConfig
from loong_jax.merge.methods import OWN_METHOD
from loong_jax.run import convert, sources

# Of an expert's distance from the base over the norm of the base: training moves weights by far
# less, and weights of two beginnings are about sqrt(2) apart.
FAR = 0.7

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    name, *rest = arguments
    if ".py" in name:
        method = own.named(name, OWN_METHOD, {})
    elif name in METHODS:
        method = METHODS[name]()
    else:
        raise ConfigError(
            f"{name!r} is not a merge method. Choose one of: {', '.join(METHODS)}; or one of your "
            "own: FILE.py:CLASS."
        )
    config_type = options.with_defaults(checkpoints.MergeConfig, method=method)
    chosen = options.parse(config_type, f"loong merge {name}", rest)
    return merge(chosen)


def merge(config: MergeConfig) -> int:
    """Merges, and puts config, tokenizer and template of the base beside the fused weights.

    Of a run its last finished stage is taken.
    """
    config = dataclasses.replace(
        config,
        base=sources.find_weights(config.base),
        experts=tuple(map(sources.find_weights, config.experts)),
        names=config.expert_names(),
    )
    report = _finished(config) or checkpoints.main(config)
    for name in far_experts(report):
        logger.warning(
            "expert %s is about as far from the base as weights of another beginning would be: was "
            "it trained from %s?",
            name,
            config.base,
        )
    if published.is_published(config.output):
        return 0
    try:
        source = sources.find(config.base)
    except CheckpointError as error:  # weights alone: their model is nobody's to say
        logger.warning("the merge has no model.json, since the base does not say one: %s", error)
        return 0
    convert.write_record(config.output, source.weights, source.config, source.hf_config)
    sources.keep_files(source, config.output / sources.KEPT)
    return 0


def _finished(config: MergeConfig) -> dict[str, Any] | None:
    """The report of this very merge where it was killed before it said its model."""
    target = config.output / published.REPORT
    if (config.output / "model.json").exists() or not target.exists():
        return None
    report = json_files.read_json(target)
    names = dict(zip(config.expert_names(), map(str, config.experts), strict=True))
    is_this = report.get("base") == str(config.base) and report.get("sources") == names
    return report if is_this and not published.is_published(config.output) else None


def far_experts(report: Mapping[str, Any]) -> list[str]:
    """Experts that are no further training of the base, by how far they are from it."""
    overall = report["global"]
    if not overall.get("base_norm"):
        return []
    return [name for name, norm in overall["norm"].items() if norm > FAR * overall["base_norm"]]
