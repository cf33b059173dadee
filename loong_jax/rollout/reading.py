"""Reading prompts a chunk at a time.

A prompt is read in chunks where it is longer than the largest bucket, or behind what is kept of its
beginning. Chunks may go between blocks of decode steps, so that a long prompt holds up nobody.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.models.parameters import Weights
from loong_jax.rollout import speculation
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.programs import (
    NOT_RECORDED,
    WHOLE,
    Members,
    OneDevice,
    Programs,
    Reading,
    ResultTokens,
    logits_at,
)
from loong_jax.rollout.slots import Cache, Prefix
from loong_jax.rollout.speculation import Drafting


class CachedPrefixes(NamedTuple):
    """Prompts of which the first `start` tokens are read already, one per row of the cache."""

    cache: Cache  # of `cache_length`
    start: np.ndarray  # int32 [prefill_prompts]


class ReadSoFar(NamedTuple):
    """Prompts that are being read in chunks."""

    cache: Cache
    logits: Float[Array, "B V"]  # after the last token that was read
    target: Int[Array, "B S L K"] | None  # the router's choices, where they are recorded
    drafting: Drafting | None  # where there are drafts


def read_chunk(
    programs: Programs,
    params: Weights,
    read: ReadSoFar,
    tokens: Int[Array, "B T"],
    start: Int[Array, "B"],
    num_new: Int[Array, "B"],
    following: Int[Array, "B"],
    history: Int[Array, "B before"] | None,
) -> ReadSoFar:
    """Reads the next `num_new` tokens of each prompt, behind the `start` that were read.

    Prompts without new tokens keep their logits. `following` is the token after the new ones.
    """
    cache, logits, target, drafting = read
    mask_BT = jnp.arange(tokens.shape[1])[None] < num_new[:, None]
    before = {} if history is None else {"history": history}
    model = programs.model_of(params)
    if drafting is None:
        output, cache = model.prefill(tokens, mask_BT, cache, start, **before)
    else:
        output, main = model.prefill(tokens, mask_BT, cache.main, start, **before)
        cache, hidden = cache._replace(main=main), output.hidden
        cache, drafting = speculation.read_chunk(
            model, cache, hidden, tokens, start, num_new, following, drafting
        )
    last_BV = logits_at(model, output, jnp.maximum(num_new - 1, 0))
    if target is not None:
        row_B1 = jnp.arange(tokens.shape[0])[:, None]
        position_BT = start[:, None] + jnp.arange(tokens.shape[1])[None]
        position_BT = jnp.where(mask_BT, position_BT, target.shape[1])
        new_BTLK = jnp.moveaxis(output.target, 0, 2)
        target = target.at[row_B1, position_BT].set(new_BTLK, mode="drop")
    logits = jnp.where(num_new[:, None] > 0, last_BV, logits)
    return ReadSoFar(cache, logits, target, drafting)


def begin(
    programs: Programs,
    read: ReadSoFar,
    lengths: Int[Array, "B"],
    members: Members,
    history: Int[Array, "B before"] | None,
) -> tuple[Prefix, ResultTokens]:
    """Begins prompts that were read in chunks, as `Programs.prefill` does whole ones."""
    if history is not None:
        history = history[members.row]
    cache, logits, target, drafting = read
    return programs.first_tokens(cache, logits, lengths, members, history, target, drafting)


class ChunkReader:
    """The compiled programs that read in chunks."""

    def __init__(
        self,
        programs: Programs,
        devices: OneDevice,
        tokenizer: Tokenizer,
        config: EngineSettings,
        hidden: jax.ShapeDtypeStruct | None,
    ):
        """`hidden` is like one state of the model, where it drafts."""
        self._config, self._programs, self._pad_id = config, programs, tokenizer.pad_id
        self._devices, self._hidden = devices, hidden
        read = ReadSoFar(devices.caches, WHOLE, WHOLE, WHOLE)
        self._chunk = devices.compile(functools.partial(read_chunk, programs), outs=read, donate=1)
        begun = Prefix(devices.caches, WHOLE, WHOLE), WHOLE
        self._begin = devices.compile(functools.partial(begin, programs), outs=begun)

    def begin(self, params: Weights, reading: Reading, known: CachedPrefixes | None) -> Reading:
        """Nothing is read yet; `params` say what shapes there are."""
        known = known or self.nothing_read()
        read = self._unread(params, self._devices.bring(known.cache))
        return dataclasses.replace(reading, start=known.start, read=read)

    def read(self, params: Weights, reading: Reading) -> Reading:
        """Consumes `reading`. The next tokens of every prompt, of the smallest bucket that holds
        what is left.
        """
        largest = self._config.prefill_lengths[-1]
        length = self._config.prefill_length(min(reading.num_left, largest))
        num_new = np.minimum(reading.lengths - reading.start, length)
        tokens = np.full((len(reading.lengths), length), self._pad_id, np.int32)
        following = np.zeros_like(reading.lengths)  # the token after the chunk, where there is one
        for row, prompt in enumerate(reading.prompts):
            first, end = reading.start[row], reading.start[row] + num_new[row]
            tokens[row, : num_new[row]] = prompt[first:end]
            following[row] = prompt[end] if end < len(prompt) else 0
        history = self._before(reading, reading.start)
        read = self._chunk(params, reading.read, tokens, reading.start, num_new, following, history)
        return dataclasses.replace(reading, start=reading.start + num_new, read=read)

    def end(self, reading: Reading) -> tuple[Prefix, ResultTokens]:
        """The first tokens, once nothing is left to read."""
        history = self._before(reading, reading.lengths)
        return self._begin(reading.read, reading.lengths, reading.members, history)

    def nothing_read(self) -> CachedPrefixes:
        batch = self._config.prefill_prompts
        cache = self._devices.make_cache(batch, self._config.cache_length)
        return CachedPrefixes(cache, np.zeros(batch, np.int32))

    def _before(self, reading: Reading, end: np.ndarray) -> np.ndarray | None:
        """int32 [B, num_before]: the tokens before `end` of each prompt, the last on the right.

        0 where a prompt has none; None where none are asked for.
        """
        num_before = self._programs.num_before
        if not num_before:
            return None
        history = np.zeros((len(end), num_before), np.int32)
        for row, prompt in enumerate(reading.prompts):
            piece = prompt[max(0, end[row] - num_before) : end[row]]
            history[row, num_before - len(piece) :] = piece
        return history

    def _unread(self, params: Weights, cache: Cache) -> ReadSoFar:
        """Logits and choices of prompts of which nothing was read, with what is in the cache."""
        batch = self._config.prefill_prompts

        def read(params, cache):
            start = jnp.zeros(batch, jnp.int32)
            tokens, history = start[:, None], {}
            if self._programs.num_before:
                history = {"history": jnp.zeros((batch, self._programs.num_before), jnp.int32)}
            main = cache.main if self._programs.speculation else cache
            model = self._programs.model_of(params)
            return model.prefill(tokens, tokens == 0, main, start, **history)[0]

        output = self._devices.eval_shape(read, params, cache)
        logits, target = jnp.zeros((batch, output.logits.shape[-1]), jnp.float32), None
        if self._config.routing:
            layers, _, _, chosen = output.target.shape
            shape = (batch, self._config.cache_length, layers, chosen)
            target = jnp.full(shape, NOT_RECORDED, jnp.int32)
        drafting = None if self._hidden is None else Drafting.zeros(batch, self._hidden)
        return ReadSoFar(cache, *self._devices.whole((logits, target, drafting)))
