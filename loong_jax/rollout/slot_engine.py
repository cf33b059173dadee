"""The engine on dense slots: continuous batching, each slot with its own part of the cache.

Every call has one of a few shapes that are compiled once: prefill of up to `prefill_batch` prompts
padded to a bucket, insert, and a block of `block_steps` decode steps as one scan whose state is
donated. A prompt is read once however many samples follow it. Slots that hold nothing or have
finished go through the arithmetic and write nothing.
"""

import dataclasses
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
from loong_jax.rollout import coarse
from loong_jax.rollout import requests as requests_as_arrays
from loong_jax.rollout import slots as slot_rows
from loong_jax.rollout.devices import WHOLE, OneDevice, OnMesh
from loong_jax.rollout.engine import Params, ResultTokens, SampleRequest
from loong_jax.rollout.engine_config import EngineConfig, PageConfig
from loong_jax.rollout.programs import Programs
from loong_jax.rollout.reading import Begun, PromptReader, Reading
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slots import DecodeState, Prefix
from loong_jax.rollout.speculation import DraftedCache
from loong_jax.sharding import ShardingRules

__all__ = ["EngineConfig", "PageConfig", "SlotEngine"]


class SlotEngine:
    """An `Engine` (see `loong_jax.rollout.engine`): compiled code, without weights or slots."""

    is_paged = False

    def __init__(
        self,
        devices: OneDevice,
        tokenizer: Tokenizer,
        config: EngineConfig,
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
        if self.is_paged != (config.pages is not None):
            raise ConfigError(
                f"pages={config.pages} for a {type(self).__name__}. Take PagedEngine with a "
                "PageConfig, SlotEngine without."
            )
        devices.refuse_uneven(config)
        self.config = config
        self.devices = devices
        self.num_before = num_before
        self.tokenizer = tokenizer
        self.programs = Programs(
            devices.model_of,
            num_before,
            config.block_steps,
            config.raw_log_probs,
            config.routing,
            config.speculation,
        )
        self._hidden = hidden
        self.reader = PromptReader(self.programs, devices, tokenizer, config, hidden)
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
        config: EngineConfig,
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

    def load_params(self, weights: Params) -> Params:
        weights = self.devices.load(weights)
        bits = self.config.mantissa_bits
        return weights if bits is None else coarse.rounded(weights, bits)

    def init_decode_state(self) -> DecodeState:
        batch = self.config.num_slots
        cache = self.devices.make_cache(batch, self.config.cache_length)
        slots, drafts = self.devices.whole((self._empty_slots(), self._no_drafts()))
        return DecodeState(cache, slots, drafts)

    def lower_block(self, params: Params) -> jax.stages.Lowered:
        """The program of a block of all slots; `params` are `jax.ShapeDtypeStruct`."""
        size = self.config.num_slots, self.config.cache_length
        return self._decode.lower(params, self._abstract_state(*size))

    def _abstract_state(self, rows: int, capacity: int) -> DecodeState:
        devices = self.devices
        slots = jax.eval_shape(lambda: (self._empty_slots(), self._no_drafts()))
        cache = devices.abstract(devices.abstract_cache(rows, capacity), devices.caches)
        return DecodeState(cache, *devices.abstract(slots, WHOLE))

    def _no_drafts(self) -> jax.Array | None:
        return jnp.zeros(2, jnp.int32) if self.config.speculation else None

    def _empty_slots(self) -> slot_rows.SlotState:
        return slot_rows.empty(
            self.config.num_slots,
            self.num_before,
            truncation=self.config.truncation,
            num_stops=requests_as_arrays.num_stops(self.config, self.tokenizer.end_ids),
            hidden=self._hidden,
        )

    def prefill(
        self,
        *,
        params: Params,
        existing_prefix: Any = None,
        padded_tokens: jax.Array | np.ndarray,
        true_length: int,
        sampler: Any = None,
        request_id: Any = None,
        request: SampleRequest | None = None,
    ) -> tuple[Any, ResultTokens]:
        """Without a `request`, decodes greedily as long as the cache allows."""
        del request_id
        return self.prefill_multisampling(
            params=params,
            existing_prefix=existing_prefix,
            padded_tokens=padded_tokens,
            true_length=true_length,
            sampler=sampler,
            num_samples=1,
            requests=None if request is None else [request],
        )

    def prefill_multisampling(
        self,
        *,
        params: Params,
        existing_prefix: Any = None,
        padded_tokens: jax.Array | np.ndarray,
        true_length: int,
        sampler: Any = None,
        rng: Any = None,
        num_samples: int,
        requests: Sequence[SampleRequest] | None = None,
    ) -> tuple[Any, ResultTokens]:
        if sampler is not None or rng is not None:
            raise ConfigError(
                "sampler and rng are not taken: each sample brings its settings. Pass `requests`."
            )
        if requests is None:
            room = self.config.cache_length - true_length + 1
            greedy = SamplingSettings(greedy=True, max_new_tokens=max(room, 1))
            requests = [
                SampleRequest(stream=(0, 0, 0, 0, i), sampling=greedy) for i in range(num_samples)
            ]
        if len(requests) != num_samples:
            raise ValueError(
                f"{len(requests)} requests for num_samples={num_samples}. Pass as many."
            )
        prompt = np.asarray(padded_tokens).reshape(-1)[:true_length]
        return self.prefill_batch(
            params=params,
            prompts=[prompt],
            rows=[0] * num_samples,
            requests=requests,
            existing_prefix=existing_prefix,
        )

    def prefill_batch(
        self,
        *,
        params: Params,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        existing_prefix: Any = None,
        version: int | None = None,
    ) -> tuple[Any, ResultTokens]:
        prefix, result = self.reader.read(params, prompts, rows, requests, existing_prefix)
        return self._labelled(prefix, self._label(prompts, rows, requests, version)), result

    def num_chunks(self, prompts: Sequence[np.ndarray], existing_prefix: Any = None) -> int:
        return self.reader.num_chunks(prompts, existing_prefix)

    def begin_reading(
        self,
        *,
        params: Params,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        existing_prefix: Any = None,
        version: int | None = None,
    ) -> Reading:
        label = self._label(prompts, rows, requests, version)
        reading = self.reader.begin(params, prompts, rows, requests, existing_prefix)
        return dataclasses.replace(reading, label=label)

    def read_chunk(self, params: Params, reading: Reading) -> Reading:
        """Consumes `reading`."""
        return self.reader.read_chunk(params, reading)

    def end_reading(self, reading: Reading) -> tuple[Any, ResultTokens]:
        prefix, result = self.reader.end(reading)
        return self._labelled(prefix, reading.label), result

    def _label(
        self,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        version: int | None,
    ) -> Any:
        """What this engine wants to know of a prefix beside its arrays: nothing."""
        del prompts, rows, requests, version

    def _labelled(self, prefix: Prefix, label: Any) -> Any:
        del label
        return prefix

    def prefill_length(self, prompt_length: int) -> int:
        return self.reader.bucket(prompt_length)

    def insert(
        self, prefix: Prefix, decode_state: DecodeState, slot: int, request_id: Any = None
    ) -> DecodeState:
        del request_id
        return self.bulk_insert(prefix, decode_state, [slot], members=[0])

    def bulk_insert(
        self,
        prefix: Prefix,
        decode_state: DecodeState,
        slots: Sequence[int],
        *,
        members: Sequence[int] | None = None,
    ) -> DecodeState:
        """Consumes `decode_state`; the prefix stays good for its other members."""
        slot_of_member = np.full(prefix.row.shape[0], self.config.num_slots, np.int32)
        slot_of_member[list(members) if members is not None else range(len(slots))] = slots
        return self._insert(self.devices.bring(prefix), decode_state, slot_of_member)

    def generate(
        self,
        params: Params,
        decode_state: DecodeState,
        sampler: Any = None,
        *,
        slots: np.ndarray | None = None,
    ) -> tuple[DecodeState, ResultTokens]:
        """`block_steps` steps. Consumes `decode_state`. `slots` must fit one of `narrow_slots`."""
        if sampler is not None:
            raise ConfigError("sampler is not taken: every slot has its settings. Leave it out.")
        if slots is None:
            return self._decode(params, decode_state)
        padded = np.full(self._width(len(slots)), self.config.num_slots, np.int32)
        padded[: len(slots)] = slots
        return self._decode_some(params, decode_state, padded)

    def _width(self, count: int) -> int:
        """The narrow width that holds `count` slots."""
        width = min((w for w in self.config.narrow_slots if w >= count), default=None)
        if width is None:
            raise ValueError(
                f"{count} slots fit none of narrow_slots={self.config.narrow_slots}. Leave "
                "`slots` out to decode all."
            )
        return width

    def extract(self, decode_state: DecodeState, slot: int) -> Prefix:
        return self._extract(decode_state, np.int32(slot))

    def cancel(self, decode_state: DecodeState, slots: Sequence[int]) -> DecodeState:
        """Consumes `decode_state`."""
        ended = np.zeros(self.config.num_slots, bool)
        ended[list(slots)] = True
        return self._cancel(decode_state, ended)

    def warm_up(self, params: Params) -> None:
        """Compiles everything that decoding needs, so that no block stands still for it later."""
        state = self.init_decode_state()
        request = SampleRequest(stream=(0, 0, 0, 0, 0), sampling=SamplingSettings(max_new_tokens=1))
        for length in self.config.prefill_lengths:
            prompt = np.full(length, self.tokenizer.eos_id, np.int32)
            prefix, _ = self.prefill_batch(
                params=params, prompts=[prompt], rows=[0], requests=[request]
            )
            state = self._warm_up_inserts(prefix, state)
            if self.config.reads_in_chunks:
                prefix, _ = self.prefill_batch(
                    params=params,
                    prompts=[prompt],
                    rows=[0],
                    requests=[request],
                    existing_prefix=self.reader.nothing_read(),
                )
                state = self._warm_up_inserts(prefix, state)
        state = self._warm_up_blocks(params, state)
        jax.block_until_ready(jax.tree.leaves(self.cancel(state, [0])))

    def _warm_up_inserts(self, prefix: Any, state: Any) -> Any:
        return self.bulk_insert(prefix, state, [0])

    def _warm_up_blocks(self, params: Params, state: DecodeState) -> DecodeState:
        state, _ = self.generate(params, state)
        for width in self.config.narrow_slots:
            state, _ = self.generate(params, state, slots=np.arange(width, dtype=np.int32))
        return state

    def free_resource(self, slot: int) -> None:
        """Nothing to free: see `release`."""

    def release(
        self,
        decode_state: DecodeState,
        slot: int,
        *,
        tokens: np.ndarray | None = None,
        version: int | None = None,
    ) -> DecodeState:
        """Nothing to free: every slot owns its part of the cache for good."""
        del slot, tokens, version
        return decode_state

    def forget(self, decode_state: DecodeState, version: int) -> DecodeState:
        """Nothing to forget."""
        del version
        return decode_state

    def find(
        self, decode_state: DecodeState, prompts: Sequence[np.ndarray], version: int
    ) -> Begun | None:
        """None: nothing is kept of samples that have ended."""
        del decode_state, prompts, version

    def num_that_fit(
        self, prefix: Prefix, decode_state: DecodeState, members: Sequence[int]
    ) -> int:
        """All: a free slot has its part of the cache."""
        del prefix, decode_state
        return len(members)

    def reserve(self, decode_state: DecodeState, slots: Sequence[int]) -> bool:
        """True: every slot has room to its end."""
        del decode_state, slots
        return True

    def accepts(self, prefix: Any) -> bool:
        """Whether a prefix, of another engine perhaps, can be inserted here as it is."""
        if not isinstance(prefix, Prefix) or not self._is_alike(prefix):
            return False
        return all(a.shape[3] <= self.config.cache_length for a in jax.tree.leaves(prefix.cache))

    def _is_alike(self, prefix: Prefix) -> bool:
        """Whether caches and slots are made as they are here, but for the number of positions."""
        mine = self.devices.abstract_cache(1, self.config.cache_length)
        slots = jax.eval_shape(self._empty_slots)
        structures = [jax.tree.structure(a) for a in (prefix.cache, prefix.slot, mine, slots)]
        return structures[:2] == structures[2:] and all(
            (a.dtype, a.shape[:2], a.shape[4:]) == (b.dtype, b.shape[:2], b.shape[4:])
            for a, b in zip(jax.tree.leaves(prefix.cache), jax.tree.leaves(mine), strict=True)
        )

    def cache_pressure(self, decode_state: DecodeState) -> float:
        """0: every slot has a cache of its own."""
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

    def get_prefix_destination_sharding(self) -> Any:
        mesh = self.devices.mesh
        return None if mesh is None else jax.sharding.NamedSharding(mesh, self.devices.caches)

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def build_tokenizer(self, metadata: Any) -> Tokenizer:
        """`metadata` is what `get_tokenizer` returned."""
        return metadata

    @property
    def max_concurrent_decodes(self) -> int:
        return self.config.num_slots

    @property
    def samples_per_slot(self) -> int:
        return 1

    @property
    def max_prefill_length(self) -> int:
        return self.config.prefill_lengths[-1]

    @property
    def max_narrow_slots(self) -> int:
        return max(self.config.narrow_slots, default=0)

    @property
    def max_prefill_prompts(self) -> int:
        return self.config.prefill_batch

    @property
    def max_prefill_members(self) -> int:
        return self.config.prefill_members

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        return self.devices.mesh

    @property
    def colocated_cpus(self) -> None:
        return None

    @property
    def use_chunked_prefill(self) -> bool:
        return self.config.chunked_prefill

    @property
    def prefill_chunk_size(self) -> int:
        return self.max_prefill_length

    def check_sampling(self, sampling: SamplingSettings) -> None:
        requests_as_arrays.check_sampling(sampling, self.config)

    def check_length(self, prompt_length: int, max_new_tokens: int) -> None:
        requests_as_arrays.check_length(prompt_length, max_new_tokens, self.config)
