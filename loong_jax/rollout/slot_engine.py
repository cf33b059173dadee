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

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import families
from loong_jax.models.families import ModelConfig
from loong_jax.models.parameters import Weights
from loong_jax.rollout import slots as slot_rows
from loong_jax.rollout.devices import OnMesh, rounded
from loong_jax.rollout.engine_config import EngineSettings, SampleRequest
from loong_jax.rollout.programs import WHOLE, Members, OneDevice, Programs, Reading, ResultTokens
from loong_jax.rollout.reading import CachedPrefixes, ChunkReader
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slots import DecodeState, Prefix
from loong_jax.rollout.speculation import DraftedCache
from loong_jax.sharding import ShardingRules


class SlotEngine:
    """Compiled code, without weights or slots. Only `warm_up` may take long on its own.

    What a slot's sample and its cache are to the engine is for it to know: a prefix, from
    `end_prefill` to `bulk_insert`, and the decode state are handed from call to call.
    """

    is_paged = False

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
        if not (config.cache_length and config.prefill_lengths):
            raise ConfigError(
                f"cache_length={config.cache_length} and prefill_lengths={config.prefill_lengths} "
                "leave lengths open, and an engine is compiled for them. Give both."
            )
        if self.is_paged != (config.pages is not None):
            raise ConfigError(
                f"pages={config.pages} for a {type(self).__name__}. Take PagedEngine with a "
                "PageConfig, SlotEngine without."
            )
        devices.refuse_uneven(config)
        self.config = config
        self.devices = devices
        self.tokenizer = tokenizer
        self.programs = Programs(
            devices.model_of,
            num_before,
            config.decode_steps,
            config.routing,
            config.speculation,
        )
        self._hidden = hidden
        self.chunks = ChunkReader(self.programs, devices, tokenizer, config, hidden)
        begun = Prefix(devices.caches, WHOLE, WHOLE), WHOLE
        self._prefill = devices.compile(self.programs.prefill, outs=begun)
        state = DecodeState(devices.caches, WHOLE, WHOLE)
        block, one = (state, WHOLE), Prefix(devices.one_cache, WHOLE, WHOLE)
        self._insert = devices.compile(slot_rows.insert, outs=state, donate=1)
        self._decode = devices.compile(self.programs.decode_block, outs=block, donate=1)
        self._decode_some = devices.compile(self.programs.decode_block_of, outs=block, donate=1)
        self._extract = devices.compile(slot_rows.extract, outs=one)
        self._cancel = devices.compile(slot_rows.cancel, outs=state, donate=0)

    @classmethod
    def for_model(
        cls,
        graphdef: nnx.GraphDef,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        config: EngineSettings,
        rules: ShardingRules | None = None,
    ) -> "SlotEngine":
        """The engine of the model that `init_weights` of its family gave `graphdef` for, under the
        same rules.
        """
        family = families.family_of(model_config)
        if config.routing and not family.routes:
            raise ConfigError(
                "routing=True, and this model has no routers whose choices could be recorded. Set "
                "it to False."
            )
        drafts = config.speculation and family.drafts(model_config)
        hidden = jax.ShapeDtypeStruct((model_config.hidden_size,), model_config.dtype)
        if rules is not None and rules.mesh is not None:
            devices = OnMesh(graphdef, model_config, rules, drafts=drafts)
        else:
            make_cache: Callable[..., Any] = DraftedCache.zeros if drafts else family.make_cache
            devices = OneDevice(
                lambda weights: nnx.merge(graphdef, nnx.State(weights)),
                functools.partial(make_cache, model_config),
            )
        return cls(
            devices,
            tokenizer,
            config,
            num_before=family.num_before(model_config),
            hidden=hidden if drafts else None,
        )

    # ---- the contract ---------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

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
            self.programs.num_before,
            truncation=self.config.truncation,
            num_stops=self.config.num_stops(self.tokenizer.end_ids),
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
        del version
        config = self.config
        assert len(prompts) <= config.prefill_prompts, "split them"
        assert len(requests) <= config.prefill_members, "split them"
        lengths = np.zeros(config.prefill_prompts, np.int32)
        lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
        members = Members.of(rows, requests, self.tokenizer.end_ids, config)
        reading = Reading(tuple(prompts), lengths, lengths, members)
        if existing_prefix is None and lengths.max() <= config.prefill_lengths[-1]:
            return reading
        return self.chunks.begin(params, reading, existing_prefix)

    def prefill_chunk(self, params: Weights, reading: Reading) -> Reading:
        """Reads on, where `reading.num_left` is above 0, and consumes `reading`; blocks may go
        between chunks.
        """
        return self.chunks.read(params, reading)

    def end_prefill(self, params: Weights, reading: Reading) -> tuple[Any, ResultTokens]:
        """The prefix of all members and the first token of each."""
        if reading.read is not None:
            return self.chunks.end(reading)
        length = self.config.prefill_length(int(reading.lengths.max()))
        tokens = np.full((len(reading.lengths), length), self.tokenizer.pad_id, np.int32)
        for row, prompt in enumerate(reading.prompts):
            tokens[row, : len(prompt)] = prompt
        return self._prefill(params, tokens, reading.lengths, reading.members)

    def find(
        self, decode_state: DecodeState, prompts: Sequence[np.ndarray], version: int
    ) -> CachedPrefixes | None:
        """The kept beginnings of these prompts, as `existing_prefix`; None here, where nothing is
        kept of samples that have ended.
        """
        del decode_state, prompts, version

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
        """The narrow width that holds `count` slots."""
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
        del slot, tokens, version
        return decode_state

    def forget(self, decode_state: DecodeState, version: int) -> DecodeState:
        """Drops what was kept under `version`, here nothing."""
        del version
        return decode_state

    def num_that_fit(
        self, prefix: Prefix, decode_state: DecodeState, members: Sequence[int]
    ) -> int:
        """The number of `members`, in order, that there is room for now: here all."""
        del prefix, decode_state
        return len(members)

    def reserve(self, decode_state: DecodeState, slots: Sequence[int]) -> bool:
        """Takes room for the next block of `slots`, the first ones first; false where it ends, and
        here it does not.
        """
        del decode_state, slots
        return True

    def cache_pressure(self, decode_state: DecodeState) -> float:
        """Share of the cache that slots share, in [0, 1], that is taken by running samples; 0 here,
        where each has its own.
        """
        del decode_state
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
        for length in self.config.prefill_lengths:
            prompt = np.full(length, self.tokenizer.eos_id, np.int32)
            in_chunks = [self.chunks.nothing_read()] if self.config.reads_in_chunks else []
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
