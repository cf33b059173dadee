"""The engine on dense slots: continuous batching, each slot with its own part of the cache.

Weights are an argument of every call, so one engine serves any number of policy versions with the
same compiled code. Methods have JetStream's names where the two contracts coincide (`load_params`,
`init_decode_state`, `bulk_insert`, `generate`); what only JetStream asks for is in
`rollout.jetstream`.

Every call has one of a few shapes that are compiled once: prefill of up to `prefill_prompts`
prompts padded to a bucket, insert, and a block of `decode_steps` decode steps as one scan whose
state is donated. A prompt is read once however many samples follow it. Slots that hold nothing or
have finished go through the arithmetic and write nothing.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError
from loong_jax.models.parameters import Weights
from loong_jax.rollout import slots as slot_rows
from loong_jax.rollout.devices import WHOLE, OneDevice, rounded
from loong_jax.rollout.engine_config import EngineSettings, SampleRequest
from loong_jax.rollout.programs import (
    NOT_RECORDED,
    CachedPrefixes,
    Members,
    Programs,
    Reading,
    ReadSoFar,
    ResultTokens,
)
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slots import Cache, DecodeState, Prefix
from loong_jax.rollout.speculation import Drafting


class SlotEngine:
    """Compiled code, without weights or slots. Only `warm_up` may take long on its own.

    What a slot's sample and its cache are to the engine is for it to know: a prefix, from
    `end_prefill` to `bulk_insert`, and the decode state are handed from call to call.
    """

    def __init__(
        self,
        devices: OneDevice,
        tokenizer: Tokenizer,
        config: EngineSettings,
        num_before: int = 0,
        hidden: jax.ShapeDtypeStruct | None = None,
    ):
        """`num_before` is how many tokens before the one to decode the model is given as `history`;
        `hidden` is like one state of the model, where it drafts.
        """
        if config.speculation != (hidden is not None):
            raise ConfigError(
                f"speculation={config.speculation}, but the model has "
                f"{'no' if hidden is None else 'a'} drafting head to decode with. Set "
                "num_mtp_layers=1 in the model's config to have one, and speculation to use it."
            )
        assert config.prefill_lengths, "an engine is compiled for lengths"
        self.config = config
        self.devices = devices
        self.tokenizer = tokenizer
        self.programs = Programs(devices.model_of, config)
        self._num_before, self._hidden = num_before, hidden
        begun = Prefix(devices.caches, WHOLE, WHOLE), WHOLE
        self._prefill = devices.compile(self.programs.prefill, outs=begun)
        self._first_tokens = devices.compile(self.programs.first_tokens, outs=begun)
        read = ReadSoFar(devices.caches, WHOLE, WHOLE, WHOLE)
        self._read_chunk = devices.compile(self.programs.read_chunk, outs=read, donate=1)
        state = DecodeState(devices.caches, WHOLE, WHOLE)
        block, one = (state, WHOLE), Prefix(devices.one_cache, WHOLE, WHOLE)
        self._insert = devices.compile(slot_rows.insert, outs=state, donate=1)
        self._decode = devices.compile(self.programs.decode_block, outs=block, donate=1)
        self._decode_some = devices.compile(self.programs.decode_block_of, outs=block, donate=1)
        self._extract = devices.compile(slot_rows.extract, outs=one)
        self._cancel = devices.compile(slot_rows.cancel, outs=state, donate=0)

    # ---- the contract ---------------------------------------------------------------------------

    def load_params(self, weights: Weights) -> Weights:
        """Weights as the other methods take them."""
        weights = self.devices.load(weights)
        bits = self.config.mantissa_bits
        return weights if bits is None else rounded(weights, bits)

    def init_decode_state(self) -> DecodeState:
        return self._empty_state(self.config.slots_per_replica, self.config.cache_length)

    def _empty_state(self, rows: int, capacity: int) -> DecodeState:
        cache = self.devices.make_cache(rows, capacity)
        return DecodeState(cache, *self.devices.whole(self._empty_slots()))

    def lower_block(self, params: Weights) -> jax.stages.Lowered:
        """The program of a block of all slots; `params` are `jax.ShapeDtypeStruct`."""
        size = self.config.slots_per_replica, self.config.cache_length
        return self._decode.lower(params, self._abstract_state(*size))

    def _abstract_state(self, rows: int, capacity: int) -> DecodeState:
        devices = self.devices
        cache = devices.abstract(devices.abstract_cache(rows, capacity), devices.caches)
        return DecodeState(cache, *devices.abstract(jax.eval_shape(self._empty_slots), WHOLE))

    def _empty_slots(self) -> tuple[slot_rows.SlotState, jax.Array | None]:
        """Slots without samples, and counts of drafts, where there are any."""
        slots = slot_rows.empty(
            self.config.slots_per_replica,
            self._num_before,
            truncation=self.config.truncation,
            num_stops=self.config.max_stop_ids + len(self.tokenizer.end_ids),
            hidden=self._hidden,
        )
        return slots, jnp.zeros(2, jnp.int32) if self.config.speculation else None

    def prefill_batch(
        self,
        *,
        params: Weights,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        **given: Any,
    ) -> tuple[Any, ResultTokens]:
        """Runs a whole prefill, of what `begin_prefill` takes. Raises ValueError for prompts or
        requests that the engine is not built for.
        """
        for prompt in prompts:
            self.config.prefill_length(len(prompt))
        for row, request in zip(rows, requests, strict=True):
            self.config.check_sampling(request.sampling)
            self.config.check_length(len(prompts[row]), request.sampling.max_new_tokens)
        reading = self.begin_prefill(params, prompts, rows, requests, **given)
        while reading.num_left > 0:
            reading = self.prefill_chunk(params, reading)
        return self.end_prefill(params, reading)

    def begin_prefill(
        self,
        params: Weights,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        *,
        existing_prefix: CachedPrefixes | None = None,
        version: int | None = None,
    ) -> Reading:
        """Prompts of one bucket; member i is to sample `requests[i]` after `prompts[rows[i]]`.

        At most `prefill_prompts` prompts and `prefill_members` members. `existing_prefix` is what
        `find` gave for the same prompts; prompts of one policy version alone find what is written
        under that `version`.
        """
        config = self.config
        assert len(prompts) <= config.prefill_prompts, "split them"
        assert len(requests) <= config.prefill_members, "split them"
        lengths = np.zeros(config.prefill_prompts, np.int32)
        lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
        members = Members.of(rows, requests, self.tokenizer.end_ids, config)
        reading = Reading(tuple(prompts), lengths, lengths, members)
        if existing_prefix is None and lengths.max() <= config.prefill_lengths[-1]:
            return reading
        known = existing_prefix or self._nothing_read()
        read = self._unread(params, self.devices.bring(known.cache))
        return dataclasses.replace(reading, start=known.start, read=read)

    def prefill_chunk(self, params: Weights, reading: Reading) -> Reading:
        """Reads on, where `reading.num_left` is above 0, and consumes `reading`; blocks may go
        between chunks. The next tokens of every prompt, of the smallest bucket that holds what is
        left.
        """
        length = self.config.prefill_length(min(reading.num_left, self.config.prefill_lengths[-1]))
        num_new = np.minimum(reading.lengths - reading.start, length)
        end = reading.start + num_new
        tokens = self._chunk_of(reading, reading.start, end, length)
        following = np.zeros_like(reading.lengths)  # the token after the chunk, where there is one
        for row, prompt in enumerate(reading.prompts):
            following[row] = prompt[end[row]] if end[row] < len(prompt) else 0
        history = self._before(reading, reading.start)
        read = self._read_chunk(
            params, reading.read, tokens, reading.start, num_new, following, history
        )
        return dataclasses.replace(reading, start=end, read=read)

    def end_prefill(self, params: Weights, reading: Reading) -> tuple[Any, ResultTokens]:
        """The prefix of all members and the first token of each."""
        lengths, members = reading.lengths, reading.members
        history = self._before(reading, lengths)
        if reading.read is not None:
            return self._first_tokens(reading.read, lengths, members, history)
        length = self.config.prefill_length(int(lengths.max()))
        tokens = self._chunk_of(reading, np.zeros_like(lengths), lengths, length)
        return self._prefill(params, tokens, lengths, members, history)

    def _chunk_of(
        self, reading: Reading, start: np.ndarray, end: np.ndarray, length: int
    ) -> np.ndarray:
        tokens = np.full((len(start), length), self.tokenizer.pad_id, np.int32)
        for row, prompt in enumerate(reading.prompts):
            tokens[row, : end[row] - start[row]] = prompt[start[row] : end[row]]
        return tokens

    def _before(self, reading: Reading, end: np.ndarray) -> np.ndarray | None:
        """int32 [B, num_before]: the tokens before `end` of each prompt, the last on the right.

        0 where a prompt has none; None where none are asked for.
        """
        if not self._num_before:
            return None
        history = np.zeros((len(end), self._num_before), np.int32)
        for row, prompt in enumerate(reading.prompts):
            piece = prompt[max(0, end[row] - self._num_before) : end[row]]
            history[row, self._num_before - len(piece) :] = piece
        return history

    def _nothing_read(self) -> CachedPrefixes:
        batch = self.config.prefill_prompts
        cache = self.devices.make_cache(batch, self.config.cache_length)
        return CachedPrefixes(cache, np.zeros(batch, np.int32))

    def _unread(self, params: Weights, cache: Cache) -> ReadSoFar:
        """Logits and choices of prompts of which nothing was read, with what is in the cache."""
        batch = self.config.prefill_prompts

        def read(params, cache):
            start = jnp.zeros(batch, jnp.int32)
            tokens, history = start[:, None], {}
            if self._num_before:
                history = {"history": jnp.zeros((batch, self._num_before), jnp.int32)}
            main = cache.main if self.config.speculation else cache
            model = self.programs.model_of(params)
            return model.prefill(tokens, tokens == 0, main, start, **history)[0]

        output = self.devices.eval_shape(read, params, cache)
        logits, target = jnp.zeros((batch, output.logits.shape[-1]), jnp.float32), None
        if self.config.routing:
            layers, _, _, chosen = output.target.shape
            shape = (batch, self.config.cache_length, layers, chosen)
            target = jnp.full(shape, NOT_RECORDED, jnp.int32)
        drafting = None if self._hidden is None else Drafting.zeros(batch, self._hidden)
        return ReadSoFar(cache, *self.devices.whole((logits, target, drafting)))

    def find(
        self, decode_state: DecodeState, prompts: Sequence[np.ndarray], version: int
    ) -> CachedPrefixes | None:
        """The kept beginnings of these prompts, as `existing_prefix`; None here, where nothing is
        kept of samples that have ended.
        """

    def bulk_insert(
        self,
        prefix: Prefix,
        decode_state: DecodeState,
        slots: Sequence[int],
        *,
        members: Sequence[int] | None = None,
    ) -> DecodeState:
        """Puts member `members[i]` (default: i) of the prefix into `slots[i]`.

        Consumes `decode_state`; the prefix stays good for its other members.
        """
        slot_of_member = np.full(prefix.row.shape[0], self.config.slots_per_replica, np.int32)
        slot_of_member[list(members) if members is not None else range(len(slots))] = slots
        return self._insert(self.devices.bring(prefix), decode_state, slot_of_member)

    def generate(
        self, params: Weights, decode_state: DecodeState, *, slots: np.ndarray | None = None
    ) -> tuple[DecodeState, ResultTokens]:
        """`decode_steps` steps of all slots, or of `slots` alone, whose rows the result has then:
        as many as one of `narrow_slots` holds. Consumes `decode_state`.
        """
        if slots is None:
            return self._decode(params, decode_state)
        padded = np.full(self._width(len(slots)), self.config.slots_per_replica, np.int32)
        padded[: len(slots)] = slots
        return self._decode_some(params, decode_state, padded)

    def _width(self, count: int) -> int:
        return min(width for width in self.config.narrow_slots if width >= count)

    def extract(self, decode_state: DecodeState, slot: int) -> Prefix:
        """The running sample of a slot: the inverse of an insert."""
        return self._extract(decode_state, np.int32(slot))

    def accepts(self, prefix: Any) -> bool:
        """True for a prefix, of another engine perhaps, that can be inserted here as it is."""
        if not isinstance(prefix, Prefix) or not self._is_alike(prefix):
            return False
        return all(a.shape[3] <= self.config.cache_length for a in jax.tree.leaves(prefix.cache))

    @functools.cached_property
    def _own_shapes(self) -> tuple[Any, Any]:
        """Of a cache, and of slots."""
        cache = self.devices.abstract_cache(1, self.config.cache_length)
        return cache, jax.eval_shape(self._empty_slots)[0]

    def _is_alike(self, prefix: Prefix) -> bool:
        """Caches and slots are made as they are here, but for the number of positions."""
        mine, slots = self._own_shapes
        structures = [jax.tree.structure(a) for a in (prefix.cache, prefix.slot, mine, slots)]
        return structures[:2] == structures[2:] and all(
            (a.dtype, a.shape[:2], a.shape[4:]) == (b.dtype, b.shape[:2], b.shape[4:])
            for a, b in zip(jax.tree.leaves(prefix.cache), jax.tree.leaves(mine), strict=True)
        )

    def cancel(self, decode_state: DecodeState, slots: Sequence[int]) -> DecodeState:
        """Ends what runs in `slots`; they write nothing more until the next insert. Consumes
        `decode_state`.
        """
        ended = np.zeros(self.config.slots_per_replica, bool)
        ended[list(slots)] = True
        return self._cancel(decode_state, ended)

    def release(
        self,
        decode_state: DecodeState,
        slot: int,
        *,
        tokens: np.ndarray | None = None,
        version: int | None = None,
    ) -> DecodeState:
        """Frees what an ended slot holds, here nothing: each owns its part of the cache."""
        return decode_state

    def forget(self, decode_state: DecodeState, version: int) -> DecodeState:
        """Drops what was kept under `version`, here nothing."""
        return decode_state

    def num_that_fit(
        self, prefix: Prefix, decode_state: DecodeState, members: Sequence[int]
    ) -> int:
        """The number of `members`, in order, that there is room for now: here all."""
        return len(members)

    def reserve(self, decode_state: DecodeState, slots: Sequence[int]) -> bool:
        """Takes room for the next block of `slots`, the first ones first; false where it ends, and
        here it does not.
        """
        return True

    def cache_pressure(self, decode_state: DecodeState) -> float:
        """Share of the cache that slots share, in [0, 1], that is taken by running samples; 0 here,
        where each has its own.
        """
        return 0.0

    def statistics(self, decode_state: DecodeState) -> dict[str, int]:
        """Counters since `init_decode_state`; with drafts these wait for the blocks under way.

        num_drafts_proposed, one per step of a running sample, and num_drafts_kept, those that
        brought a second token.
        """
        if decode_state.num_drafts is None:
            return {}
        proposed, kept = map(int, np.asarray(decode_state.num_drafts))
        return {"num_drafts_proposed": proposed, "num_drafts_kept": kept}

    # ---- compiling ------------------------------------------------------------------------------

    def warm_up(self, params: Weights) -> None:
        """Compiles everything that decoding needs, so that no block stands still for it later."""
        state = self.init_decode_state()
        request = SampleRequest(stream=(0, 0, 0, 0, 0), sampling=SamplingSettings(max_new_tokens=1))
        pages = self.config.pages
        is_chunked = self.config.chunked_prefill or (pages is not None and pages.reuse_prefixes)
        for length in self.config.prefill_lengths:
            prompt = np.full(length, self.tokenizer.eos_id, np.int32)
            in_chunks = [self._nothing_read()] if is_chunked else []
            for beginning in (None, *in_chunks):
                prefix, _ = self.prefill_batch(
                    params=params,
                    prompts=[prompt],
                    rows=[0],
                    requests=[request],
                    existing_prefix=beginning,
                )
                state = self._warm_up_inserts(prefix, state)
        state = self._warm_up_blocks(params, state)
        jax.block_until_ready(jax.tree.leaves(self.cancel(state, [0])))

    def _warm_up_inserts(self, prefix: Any, state: Any) -> Any:
        return self.bulk_insert(prefix, state, [0])

    def _warm_up_blocks(self, params: Weights, state: DecodeState) -> DecodeState:
        state, _ = self.generate(params, state)
        for width in self.config.narrow_slots:
            state, _ = self.generate(params, state, slots=np.arange(width, dtype=np.int32))
        return state
