"""Requests as the arrays that a compiled prefill takes, once they are known to fit the engine."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.rollout.draw import Truncation
from loong_jax.rollout.engine import SampleRequest, refuse_truncation
from loong_jax.rollout.engine_config import EngineConfig
from loong_jax.rollout.programs import Members
from loong_jax.rollout.records import SamplingSettings


def check_sampling(sampling: SamplingSettings, config: EngineConfig) -> None:
    """Raises ConfigError for what an engine of this config was not built to do."""
    if not config.truncation:
        refuse_truncation(sampling)
    if len(sampling.stop_ids) > config.max_stop_ids:
        raise ConfigError(
            f"{len(sampling.stop_ids)} stop_ids are more than max_stop_ids="
            f"{config.max_stop_ids} of this engine. Raise that, or pass fewer."
        )


def check_length(prompt_length: int, max_new_tokens: int, config: EngineConfig) -> None:
    """Raises ValueError for a sample that no slot of an engine of this config can hold."""
    # The last token is never read back, so it needs no place in the cache.
    if prompt_length + max_new_tokens - 1 > config.cache_length:
        raise ValueError(
            f"a prompt of {prompt_length} tokens and max_new_tokens={max_new_tokens} need more "
            f"than cache_length={config.cache_length}. Lower max_new_tokens or lengthen the cache."
        )


def members(
    rows: Sequence[int],
    requests: Sequence[SampleRequest],
    lengths: np.ndarray,
    *,
    end_ids: Sequence[int],
    config: EngineConfig,
) -> Members:
    """Member i samples `requests[i]` after the prompt `rows[i]`; prompts have these `lengths`.

    Each of `end_ids` ends a sample, as its own stop_ids do.
    Raises ConfigError as `check_sampling`, and ValueError as `check_length`.
    """
    count = config.prefill_members
    row = np.zeros(count, np.int32)
    stream = np.zeros((count, 5), np.uint32)
    max_new_tokens = np.ones(count, np.int32)
    temperature = np.ones(count, np.float32)
    greedy = np.zeros(count, bool)
    for i, (prompt, request) in enumerate(zip(rows, requests, strict=True)):
        sampling = request.sampling
        check_sampling(sampling, config)
        check_length(int(lengths[prompt]), sampling.max_new_tokens, config)
        row[i], stream[i] = prompt, request.stream
        max_new_tokens[i] = sampling.max_new_tokens
        temperature[i], greedy[i] = sampling.temperature, sampling.greedy
    exists = np.arange(count) < len(requests)
    stop = np.full(count, end_ids[0], np.int32)
    columns = (row, exists, stream, max_new_tokens, temperature, greedy, stop)
    return Members(
        *map(jnp.asarray, columns),  # pyright: ignore[reportArgumentType]
        truncation=_truncation(requests, count) if config.truncation else None,
        stops=_stops(requests, count, end_ids[1:], num_stops(config, end_ids)),
    )


def _truncation(requests: Sequence[SampleRequest], count: int) -> Truncation:
    top_k = np.zeros(count, np.int32)
    top_p = np.ones(count, np.float32)
    min_p = np.zeros(count, np.float32)
    for i, request in enumerate(requests):
        sampling = request.sampling
        top_k[i], top_p[i], min_p[i] = sampling.top_k, sampling.top_p, sampling.min_p
    return Truncation(jnp.asarray(top_k), jnp.asarray(top_p), jnp.asarray(min_p))


def num_stops(config: EngineConfig, end_ids: Sequence[int]) -> int:
    """How many tokens may end a sample beside the first of `end_ids`."""
    return config.max_stop_ids + len(end_ids) - 1


def _stops(
    requests: Sequence[SampleRequest], count: int, ends: Sequence[int], most: int
) -> jax.Array | None:
    if not most:
        return None
    stops = np.full((count, most), -1, np.int32)
    stops[:, : len(ends)] = ends
    for i, request in enumerate(requests):
        ids = request.sampling.stop_ids
        stops[i, len(ends) : len(ends) + len(ids)] = ids
    return jnp.asarray(stops)
