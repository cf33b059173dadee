"""A model whose next token is a table look-up, to test what samples from a model.

It has the `prefill` and `decode` of `loong_jax.models.moe.LongcatFlash` and a cache that matters:
the logits are a row of a table chosen by the sum of all tokens so far, which the cache holds.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.problems.problem import Problem
from loong_jax.rollout.devices import OneDevice
from loong_jax.rollout.paged_engine import PagedEngine
from loong_jax.rollout.slot_engine import SlotEngine
from tests.doubles import tiny
from tests.doubles.problems import made_problem


class FakeOutput(NamedTuple):
    logits: Float[Array, "B T V"]


class FakeCache(NamedTuple):
    token: Int[Array, "1 2 B S 1"]


class FakeModel:
    def __init__(self, weights: dict[str, Any]):
        self._table = weights["table"]  # [rows, V]

    def prefill(
        self,
        tokens: Int[Array, "B T"],
        mask: Bool[Array, "B T"],
        cache: FakeCache | None = None,
        start: Int[Array, "B"] | None = None,
    ):
        if cache is not None and start is not None:
            return self._next_chunk(tokens, mask, cache, start)
        total_BT = jnp.cumsum(jnp.where(mask, tokens, 0), axis=1)
        cached = jnp.broadcast_to(tokens[None, None, :, :, None], (1, 2, *tokens.shape, 1))
        return FakeOutput(self._logits(total_BT)), FakeCache(cached)

    def _next_chunk(self, tokens, mask, cache, start):
        capacity = cache.token.shape[3]
        batch = jnp.arange(tokens.shape[0])[:, None]
        at = jnp.where(mask, start[:, None] + jnp.arange(tokens.shape[1])[None], capacity)
        written = cache.token.at[:, :, batch, at, 0].set(tokens[None, None], mode="drop")
        is_before = jnp.arange(capacity)[None] < start[:, None]
        total_B = jnp.sum(jnp.where(is_before, written[0, 0, :, :, 0], 0), axis=1)
        total_BT = total_B[:, None] + jnp.cumsum(jnp.where(mask, tokens, 0), axis=1)
        return FakeOutput(self._logits(total_BT)), FakeCache(written)

    def decode(self, tokens: Int[Array, "B"], positions: Int[Array, "B"], cache: FakeCache):
        batch = jnp.arange(tokens.shape[0])
        written = cache.token.at[:, :, batch, positions, 0].set(tokens[None, None], mode="drop")
        seen_BS = jnp.arange(written.shape[3])[None] <= positions[:, None]
        total_B = jnp.sum(jnp.where(seen_BS, written[0, 0, :, :, 0], 0), axis=1)
        return self._logits(total_B), FakeCache(written)

    def _logits(self, total: Int[Array, "*B"]) -> Float[Array, "*B V"]:
        return self._table[total % self._table.shape[0]]


def fake_weights(seed: int, *, vocab_size: int = 128, num_rows: int = 61, eos_logit: float = 2.5):
    """A random table; with V = 128 a higher `eos_logit` ends samples sooner."""
    table = np.random.default_rng(seed).normal(size=(num_rows, vocab_size)).astype(np.float32)
    table[:, AsciiTokenizer.eos_id] = eos_logit
    return {"table": jax.numpy.asarray(table)}


def engine_over(model: Any, **shapes: Any) -> SlotEngine:
    """An engine over such a model; `shapes` are fields of `EngineSettings`."""
    config = tiny.engine_shapes(**shapes)
    kind = SlotEngine if config.pages is None else PagedEngine

    def empty_cache(batch, capacity):
        return FakeCache(jnp.zeros((1, 2, batch, capacity, 1), jnp.int32))

    return kind(OneDevice(model, empty_cache), AsciiTokenizer(), config)


def fake_engine(**shapes: Any) -> SlotEngine:
    return engine_over(FakeModel, **dict(cache_length=48, prefill_lengths=(16, 24)) | shapes)


def fake_problem(number: int, prompt: str | None = None) -> Problem:
    prompt = prompt or "q" * (number % 18) + f"{number}?"
    return made_problem(number, uid=f"fake/1/{number}", prompt=prompt)
