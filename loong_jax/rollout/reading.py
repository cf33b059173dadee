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
from loong_jax.errors import ConfigError
from loong_jax.rollout import requests as requests_as_arrays
from loong_jax.rollout.devices import WHOLE, OneDevice
from loong_jax.rollout.engine import Params, ResultTokens, SampleRequest
from loong_jax.rollout.engine_config import EngineConfig
from loong_jax.rollout.programs import NOT_RECORDED, Members, Programs, ReadSoFar
from loong_jax.rollout.slots import Cache, Prefix
from loong_jax.rollout.speculation import Drafting


class Begun(NamedTuple):
    """Prompts of which the first `start` tokens are read already, one per row of the cache."""

    cache: Cache  # of `cache_length`
    start: np.ndarray  # int32 [prefill_batch]


class Chunk(NamedTuple):
    """The next tokens of every prompt, as a compiled program takes them."""

    tokens: np.ndarray  # int32 [B, length of the chunk]
    start: np.ndarray  # int32 [B], tokens read before
    num_new: np.ndarray  # int32 [B]
    following: np.ndarray  # int32 [B], the token after the chunk; 0 where there is none
    history: np.ndarray | None  # int32 [B, before], where the model asks


@dataclasses.dataclass(frozen=True)
class Reading:
    """Prompts and the samples that are to start from them, on the way."""

    prompts: tuple[np.ndarray, ...]
    lengths: np.ndarray  # int32 [B], 0 for rows without a prompt
    start: np.ndarray  # int32 [B], tokens read so far
    members: Members
    read: ReadSoFar
    label: Any = None  # whatever who began it wants to know at the end

    @property
    def num_left(self) -> int:
        """Tokens left of the prompt that has most left."""
        return int((self.lengths - self.start).max())

    def next_chunk(self, length: int, *, pad_id: int, num_before: int) -> Chunk:
        """The next `length` tokens, or fewer, of every prompt."""
        num_new = np.minimum(self.lengths - self.start, length)
        tokens = np.full((len(self.lengths), length), pad_id, np.int32)
        following = np.zeros_like(self.lengths)
        for row, prompt in enumerate(self.prompts):
            first, end = self.start[row], self.start[row] + num_new[row]
            tokens[row, : num_new[row]] = prompt[first:end]
            following[row] = prompt[end] if end < len(prompt) else 0
        history = before(self.prompts, self.start, num_before)
        return Chunk(tokens, self.start, num_new, following, history)

    def after(self, chunk: Chunk, read: ReadSoFar) -> "Reading":
        return dataclasses.replace(self, start=chunk.start + chunk.num_new, read=read)


def before(prompts: tuple[np.ndarray, ...], end: np.ndarray, num_before: int) -> np.ndarray | None:
    """int32 [B, num_before]: the tokens before `end` of each prompt, the last on the right.

    0 where a prompt has none; None where none are asked for.
    """
    if not num_before:
        return None
    history = np.zeros((len(end), num_before), np.int32)
    for row, prompt in enumerate(prompts):
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
        self.num_before = programs.num_before
        self._devices, self._hidden = devices, hidden
        begun = Prefix(devices.caches, WHOLE, WHOLE), WHOLE
        read = ReadSoFar(devices.caches, WHOLE, WHOLE, WHOLE)
        self._whole = devices.compile(programs.prefill, outs=begun)
        self._chunk = devices.compile(programs.chunk, outs=read, donate=1)
        self._begin = devices.compile(programs.begin, outs=begun)

    def bucket(self, prompt_length: int) -> int:
        """The bucket a prompt falls into. Raises ValueError where it fits none."""
        lengths = self.config.prefill_lengths
        if prompt_length < 1:
            raise ValueError("a prompt has no token. Begin it with <bos>.")
        for length in lengths:
            if prompt_length <= length:
                return length
        if self.config.chunked_prefill:
            if prompt_length <= self.config.cache_length:
                return lengths[-1]
            raise ValueError(
                f"a prompt of {prompt_length} tokens is longer than cache_length="
                f"{self.config.cache_length}. Shorten it or lengthen the cache."
            )
        raise ValueError(
            f"a prompt of {prompt_length} tokens is longer than the largest bucket, "
            f"{lengths[-1]}. Shorten it, extend prefill_lengths or set chunked_prefill."
        )

    def read(
        self,
        params: Params,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        begun: Any = None,
    ) -> tuple[Prefix, ResultTokens]:
        """Everything at once, behind what is `Begun`."""
        if begun is not None or max(map(len, prompts)) > self.config.prefill_lengths[-1]:
            reading = self.begin(params, prompts, rows, requests, begun)
            while reading.num_left > 0:
                reading = self.read_chunk(params, reading)
            return self.end(reading)
        lengths, members = self._checked(prompts, rows, requests)
        length = max(self.bucket(len(prompt)) for prompt in prompts)
        tokens = np.full((len(lengths), length), self.tokenizer.pad_id, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        return self._whole(params, tokens, lengths, members)

    def num_chunks(self, prompts: Sequence[np.ndarray], begun: Any = None) -> int:
        """How many calls of the largest bucket these prompts take."""
        start = [0] * len(prompts) if begun is None else begun.start
        left = (len(prompt) - read for prompt, read in zip(prompts, start, strict=False))
        return max(-(-int(num_left) // self.config.prefill_lengths[-1]) for num_left in left)

    def begin(
        self,
        params: Params,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        begun: Any = None,
    ) -> Reading:
        """Nothing is read yet; `params` say what shapes there are."""
        if begun is not None and not isinstance(begun, Begun):
            raise ConfigError(
                f"existing_prefix is a {type(begun).__name__}, no beginning of prompts. "
                "Pass what `find` returned for these prompts, or whole prompts alone."
            )
        lengths, members = self._checked(prompts, rows, requests)
        begun = begun or self.nothing_read()
        read = self._unread(params, self._devices.bring(begun.cache))
        return Reading(tuple(prompts), lengths, begun.start, members, read)

    def read_chunk(self, params: Params, reading: Reading) -> Reading:
        """Consumes `reading`. The chunk has the smallest bucket that holds it."""
        length = self.bucket(min(reading.num_left, self.config.prefill_lengths[-1]))
        pad_id = self.tokenizer.pad_id
        chunk = reading.next_chunk(length, pad_id=pad_id, num_before=self.num_before)
        return reading.after(chunk, self._chunk(params, reading.read, *chunk))

    def end(self, reading: Reading) -> tuple[Prefix, ResultTokens]:
        """The first tokens, once nothing is left to read."""
        history = before(reading.prompts, reading.lengths, self.num_before)
        return self._begin(reading.read, reading.lengths, reading.members, history)

    def nothing_read(self) -> Begun:
        batch = self.config.prefill_batch
        cache = self._devices.make_cache(batch, self.config.cache_length)
        return Begun(cache, np.zeros(batch, np.int32))

    def _unread(self, params: Params, cache: Cache) -> ReadSoFar:
        """Logits and choices of prompts of which nothing was read, with what is in the cache."""
        batch = self.config.prefill_batch

        def read(params, cache):
            start = jnp.zeros(batch, jnp.int32)
            tokens, history = start[:, None], {}
            if self.num_before:
                history = {"history": jnp.zeros((batch, self.num_before), jnp.int32)}
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

    def _checked(
        self,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
    ) -> tuple[np.ndarray, Members]:
        """Lengths and samples as arrays, of prompts that fit one prefill."""
        config = self.config
        if len(prompts) > config.prefill_batch or len(requests) > config.prefill_members:
            raise ValueError(
                f"{len(prompts)} prompts and {len(requests)} members, but one prefill takes "
                f"{config.prefill_batch} and {config.prefill_members}. Split them."
            )
        for prompt in prompts:
            self.bucket(len(prompt))
        lengths = np.zeros(config.prefill_batch, np.int32)
        lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
        end_ids = self.tokenizer.end_ids
        return lengths, requests_as_arrays.members(
            rows, requests, lengths, end_ids=end_ids, config=config
        )
