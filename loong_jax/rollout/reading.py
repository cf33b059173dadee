"""Reading prompts: whole ones of a bucket in one call, others a chunk at a time.

A prompt is read in chunks where it is longer than the largest bucket, or behind what is kept of its
beginning. Chunks may go between blocks of decode steps, so that a long prompt holds up nobody.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.rollout.devices import WHOLE, OneDevice
from loong_jax.rollout.draw import Truncation
from loong_jax.rollout.engine import Params, PrefillWork, ResultTokens, SampleRequest
from loong_jax.rollout.engine_config import EngineConfig
from loong_jax.rollout.programs import NOT_RECORDED, Members, Programs, ReadSoFar
from loong_jax.rollout.slots import Cache, Prefix
from loong_jax.rollout.speculation import Drafting


class CachedPrefixes(NamedTuple):
    """Prompts of which the first `start` tokens are read already, one per row of the cache."""

    cache: Cache  # of `cache_length`
    start: np.ndarray  # int32 [prefill_prompts]


@dataclasses.dataclass(frozen=True)
class Reading:
    """Prompts and the samples that are to start from them, on the way."""

    prompts: tuple[np.ndarray, ...]
    lengths: np.ndarray  # int32 [B], 0 for rows without a prompt
    start: np.ndarray  # int32 [B], tokens read so far; all of a prompt that is read at the end
    members: Members
    read: ReadSoFar | None  # None: whole prompts, read in one call at the end
    label: Any = None  # of whoever began it, for the end

    @property
    def num_left(self) -> int:
        """Tokens left of the prompt that has most left."""
        return int((self.lengths - self.start).max())

    def before(self, end: np.ndarray, num_before: int) -> np.ndarray | None:
        """int32 [B, num_before]: the tokens before `end` of each prompt, the last on the right.

        0 where a prompt has none; None where none are asked for.
        """
        if not num_before:
            return None
        history = np.zeros((len(end), num_before), np.int32)
        for row, prompt in enumerate(self.prompts):
            piece = prompt[max(0, end[row] - num_before) : end[row]]
            history[row, num_before - len(piece) :] = piece
        return history


class PromptReader:
    """The compiled programs of prefill, and which of them a set of prompts needs."""

    def __init__(
        self,
        programs: Programs,
        devices: OneDevice,
        tokenizer: Tokenizer,
        config: EngineConfig,
        hidden: jax.ShapeDtypeStruct | None,
    ):
        """`hidden` is like one state of the model, where it drafts."""
        self.config, self.programs, self.tokenizer = config, programs, tokenizer
        self._devices, self._hidden = devices, hidden
        begun = Prefix(devices.caches, WHOLE, WHOLE), WHOLE
        read = ReadSoFar(devices.caches, WHOLE, WHOLE, WHOLE)
        self._whole = devices.compile(programs.prefill, outs=begun)
        self._chunk = devices.compile(programs.chunk, outs=read, donate=1)
        self._begin = devices.compile(programs.begin, outs=begun)

    def begin(self, params: Params, work: PrefillWork) -> Reading:
        """Nothing is read yet; `params` say what shapes there are."""
        config = self.config
        prompts, rows, requests, known, _ = work
        assert len(prompts) <= config.prefill_prompts, "split them"
        assert len(requests) <= config.prefill_members, "split them"
        for prompt in prompts:
            config.prefill_length(len(prompt))
        lengths = np.zeros(config.prefill_prompts, np.int32)
        lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
        members = _members(rows, requests, lengths, self.tokenizer.end_ids, config)
        if known is None and lengths.max() <= config.prefill_lengths[-1]:
            return Reading(tuple(prompts), lengths, lengths, members, None)
        known = known or self.nothing_read()
        read = self._unread(params, self._devices.bring(known.cache))
        return Reading(tuple(prompts), lengths, known.start, members, read)

    def read_chunk(self, params: Params, reading: Reading) -> Reading:
        """Consumes `reading`. The next tokens of every prompt, of the smallest bucket that holds
        what is left.
        """
        largest = self.config.prefill_lengths[-1]
        length = self.config.prefill_length(min(reading.num_left, largest))
        num_new = np.minimum(reading.lengths - reading.start, length)
        tokens = np.full((len(reading.lengths), length), self.tokenizer.pad_id, np.int32)
        following = np.zeros_like(reading.lengths)  # the token after the chunk, where there is one
        for row, prompt in enumerate(reading.prompts):
            first, end = reading.start[row], reading.start[row] + num_new[row]
            tokens[row, : num_new[row]] = prompt[first:end]
            following[row] = prompt[end] if end < len(prompt) else 0
        history = reading.before(reading.start, self.programs.num_before)
        read = self._chunk(params, reading.read, tokens, reading.start, num_new, following, history)
        return dataclasses.replace(reading, start=reading.start + num_new, read=read)

    def end(self, params: Params, reading: Reading) -> tuple[Prefix, ResultTokens]:
        """The first tokens, once nothing is left to read but whole prompts."""
        if reading.read is not None:
            history = reading.before(reading.lengths, self.programs.num_before)
            return self._begin(reading.read, reading.lengths, reading.members, history)
        length = self.config.prefill_length(int(reading.lengths.max()))
        tokens = np.full((len(reading.lengths), length), self.tokenizer.pad_id, np.int32)
        for row, prompt in enumerate(reading.prompts):
            tokens[row, : len(prompt)] = prompt
        return self._whole(params, tokens, reading.lengths, reading.members)

    def nothing_read(self) -> CachedPrefixes:
        batch = self.config.prefill_prompts
        cache = self._devices.make_cache(batch, self.config.cache_length)
        return CachedPrefixes(cache, np.zeros(batch, np.int32))

    def _unread(self, params: Params, cache: Cache) -> ReadSoFar:
        """Logits and choices of prompts of which nothing was read, with what is in the cache."""
        batch = self.config.prefill_prompts

        def read(params, cache):
            start = jnp.zeros(batch, jnp.int32)
            tokens, history = start[:, None], {}
            if self.programs.num_before:
                history = {"history": jnp.zeros((batch, self.programs.num_before), jnp.int32)}
            main = cache.main if self.programs.speculation else cache
            model = self.programs.model_of(params)
            return model.prefill(tokens, tokens == 0, main, start, **history)[0]

        output = self._devices.eval_shape(read, params, cache)
        logits, target = jnp.zeros((batch, output.logits.shape[-1]), jnp.float32), None
        if self.config.routing:
            layers, _, _, chosen = output.target.shape
            shape = (batch, self.config.cache_length, layers, chosen)
            target = jnp.full(shape, NOT_RECORDED, jnp.int32)
        drafting = None if self._hidden is None else Drafting.zeros(batch, self._hidden)
        return ReadSoFar(cache, *self._devices.whole((logits, target, drafting)))


def _members(
    rows: Sequence[int],
    requests: Sequence[SampleRequest],
    lengths: np.ndarray,
    end_ids: Sequence[int],
    config: EngineConfig,
) -> Members:
    """Member i samples `requests[i]` after the prompt `rows[i]`; prompts have these `lengths`.

    Each of `end_ids` ends a sample, as its own stop_ids do.
    """
    count = config.prefill_members
    row = np.zeros(count, np.int32)
    stream = np.zeros((count, 5), np.uint32)
    max_new_tokens, top_k = np.ones(count, np.int32), np.zeros(count, np.int32)
    temperature, top_p = np.ones(count, np.float32), np.ones(count, np.float32)
    greedy, min_p = np.zeros(count, bool), np.zeros(count, np.float32)
    ends = end_ids[1:]
    stops = np.full((count, config.num_stops(end_ids)), -1, np.int32)
    stops[:, : len(ends)] = ends
    for i, (prompt, request) in enumerate(zip(rows, requests, strict=True)):
        sampling = request.sampling
        config.check_sampling(sampling)
        config.check_length(int(lengths[prompt]), sampling.max_new_tokens)
        row[i], stream[i] = prompt, request.stream
        max_new_tokens[i] = sampling.max_new_tokens
        temperature[i], greedy[i] = sampling.temperature, sampling.greedy
        top_k[i], top_p[i], min_p[i] = sampling.top_k, sampling.top_p, sampling.min_p
        stops[i, len(ends) : len(ends) + len(sampling.stop_ids)] = sampling.stop_ids
    exists = np.arange(count) < len(requests)
    stop = np.full(count, end_ids[0], np.int32)
    arrays: Any = (row, exists, stream, max_new_tokens, temperature, greedy, stop)
    arrays += (Truncation(top_k, top_p, min_p) if config.truncation else None,)  # pyright: ignore
    arrays += (stops if stops.size else None,)
    return Members(*jax.tree.map(jnp.asarray, arrays))
