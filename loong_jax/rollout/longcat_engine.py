"""The engine over LongCat-Flash: continuous batching on dense slots of latents.

Every call has one of a few shapes that are compiled once: prefill of up to `prefill_batch` prompts
padded to a bucket, insert, and a block of `block_steps` decode steps as one scan whose state is
donated. A prompt is read once however many samples follow it. Slots that hold nothing or have
finished go through the arithmetic and write nothing.

Any model with the `prefill` and `decode` of `loong_jax.models.moe.LongcatFlash` will do.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt32

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.rollout import draw
from loong_jax.rollout import slots as slot_rows
from loong_jax.rollout.engine import Params, ResultTokens, SampleRequest, refuse_truncation
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slots import Cache, DecodeState, Prefix, SlotState


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The shapes an engine compiles. A sample depends on them only through rounding."""

    num_slots: int = 128
    cache_length: int = 96  # S, positions per slot: prompt and response together
    prefill_lengths: tuple[int, ...] = (32, 64)  # buckets, rising
    prefill_batch: int = 8  # prompts per prefill
    prefill_members: int = 64  # samples that may start from one prefill
    block_steps: int = 8  # decode steps per call
    narrow_slots: tuple[int, ...] = ()  # further widths to decode with while few slots are active

    def __post_init__(self):
        for name in ("num_slots", "prefill_batch", "prefill_members", "block_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1. Raise it.")
        lengths = self.prefill_lengths
        if not lengths or list(lengths) != sorted(set(lengths)) or lengths[0] < 1:
            raise ConfigError(f"prefill_lengths={lengths} must rise from at least 1. Sort them.")
        if lengths[-1] > self.cache_length:
            raise ConfigError(
                f"prefill_lengths={lengths} reach past cache_length={self.cache_length}. Drop the "
                "long ones or lengthen the cache."
            )
        if any(not 0 < width < self.num_slots for width in self.narrow_slots):
            raise ConfigError(
                f"narrow_slots={self.narrow_slots} must lie between 0 and num_slots="
                f"{self.num_slots}. The full width is always there."
            )


class Members(NamedTuple):
    """Samples to start from a prefill, as arrays; rows past the last one have `exists` false."""

    row: Int[Array, "members"]
    exists: Bool[Array, "members"]
    stream: UInt32[Array, "members 5"]
    max_new_tokens: Int[Array, "members"]
    temperature: Float[Array, "members"]
    greedy: Bool[Array, "members"]
    stop: Int[Array, "members"]


class LongcatEngine:
    """An `Engine` (see `loong_jax.rollout.engine`): compiled code, without weights or slots."""

    def __init__(
        self,
        model_of: Callable[[Params], Any],
        make_cache: Callable[[int, int], Cache],
        tokenizer: Tokenizer,
        config: EngineConfig,
        num_before: int = 0,
    ):
        """`model_of(params)` is called under jit; `make_cache(batch, capacity)` makes a cache.

        `num_before` is how many tokens before the one to decode the model is given as `history`.
        """
        self.config = config
        self.num_before = num_before
        self.tokenizer = tokenizer
        self._model_of = model_of
        self._make_cache = make_cache
        self._prefill = jax.jit(self._prefill_and_draw)
        self._insert = jax.jit(slot_rows.insert, donate_argnums=1)
        self._decode = jax.jit(self._decode_block, donate_argnums=1)
        self._decode_some = jax.jit(self._decode_block_of, donate_argnums=1)
        self._extract = jax.jit(slot_rows.extract)
        self._cancel = jax.jit(slot_rows.cancel, donate_argnums=0)

    @classmethod
    def for_longcat(
        cls,
        graphdef: nnx.GraphDef,
        model_config: moe.MoEConfig,
        tokenizer: Tokenizer,
        config: EngineConfig,
    ) -> "LongcatEngine":
        """The engine of the model that `loong_jax.models.moe.init_weights` gave `graphdef` for."""
        return cls(
            lambda weights: nnx.merge(graphdef, nnx.State(weights)),
            lambda batch, capacity: moe.LatentCache.zeros(model_config, batch, capacity),
            tokenizer,
            config,
            num_before=0 if model_config.ngram is None else model_config.ngram.max_order - 1,
        )

    # ---- the contract ---------------------------------------------------------------------------

    def load_params(self, weights: Params) -> Params:
        return jax.tree.map(jnp.asarray, weights)

    def init_decode_state(self) -> DecodeState:
        batch = self.config.num_slots
        cache = self._make_cache(batch, self.config.cache_length)
        return DecodeState(cache, slot_rows.empty(batch, self.num_before))

    def prefill(
        self,
        *,
        params: Params,
        existing_prefix: Prefix | None = None,
        padded_tokens: jax.Array | np.ndarray,
        true_length: int,
        sampler: Any = None,
        request_id: Any = None,
        request: SampleRequest | None = None,
    ) -> tuple[Prefix, ResultTokens]:
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
        existing_prefix: Prefix | None = None,
        padded_tokens: jax.Array | np.ndarray,
        true_length: int,
        sampler: Any = None,
        rng: Any = None,
        num_samples: int,
        requests: Sequence[SampleRequest] | None = None,
    ) -> tuple[Prefix, ResultTokens]:
        if existing_prefix is not None or sampler is not None or rng is not None:
            raise ConfigError(
                "existing_prefix, sampler and rng are not taken: prompts are read in one piece and "
                "each sample brings its settings. Pass whole prompts and `requests`."
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
            params=params, prompts=[prompt], rows=[0] * num_samples, requests=requests
        )

    def prefill_batch(
        self,
        *,
        params: Params,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
    ) -> tuple[Prefix, ResultTokens]:
        config = self.config
        if len(prompts) > config.prefill_batch or len(requests) > config.prefill_members:
            raise ValueError(
                f"{len(prompts)} prompts and {len(requests)} members, but one prefill takes "
                f"{config.prefill_batch} and {config.prefill_members}. Split them."
            )
        length = max(self.prefill_length(len(prompt)) for prompt in prompts)
        tokens = np.full((config.prefill_batch, length), self.tokenizer.pad_id, np.int32)
        lengths = np.zeros(config.prefill_batch, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        members = self._members(rows, requests, lengths)
        return self._prefill(params, tokens, lengths, members)

    def prefill_length(self, prompt_length: int) -> int:
        if prompt_length < 1:
            raise ValueError("a prompt has no token. Begin it with <bos>.")
        for length in self.config.prefill_lengths:
            if prompt_length <= length:
                return length
        raise ValueError(
            f"a prompt of {prompt_length} tokens is longer than the largest bucket, "
            f"{self.max_prefill_length}. Shorten it or extend prefill_lengths."
        )

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
        return self._insert(prefix, decode_state, slot_of_member)

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
        width = min((w for w in self.config.narrow_slots if w >= len(slots)), default=None)
        if width is None:
            raise ValueError(
                f"{len(slots)} slots fit none of narrow_slots={self.config.narrow_slots}. Leave "
                "`slots` out to decode all."
            )
        padded = np.full(width, self.config.num_slots, np.int32)
        padded[: len(slots)] = slots
        return self._decode_some(params, decode_state, padded)

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
            prompt = np.full(length, self.tokenizer.bos_id, np.int32)
            prefix, _ = self.prefill_batch(
                params=params, prompts=[prompt], rows=[0], requests=[request]
            )
            state = self.bulk_insert(prefix, state, [0])
        state, _ = self.generate(params, state)
        for width in self.config.narrow_slots:
            state, _ = self.generate(params, state, slots=np.arange(width, dtype=np.int32))
        jax.block_until_ready(self.cancel(state, [0]))

    def free_resource(self, slot: int) -> None:
        """Nothing to free: every slot owns its part of the cache for good."""

    def get_prefix_destination_sharding(self) -> None:
        return None

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
    def mesh(self) -> None:
        return None

    @property
    def colocated_cpus(self) -> None:
        return None

    @property
    def use_chunked_prefill(self) -> bool:
        return False

    @property
    def prefill_chunk_size(self) -> int:
        return self.max_prefill_length

    # ---- what is compiled -----------------------------------------------------------------------

    def _members(
        self, rows: Sequence[int], requests: Sequence[SampleRequest], lengths: np.ndarray
    ) -> Members:
        count = self.config.prefill_members
        row = np.zeros(count, np.int32)
        stream = np.zeros((count, 5), np.uint32)
        max_new_tokens = np.ones(count, np.int32)
        temperature = np.ones(count, np.float32)
        greedy = np.zeros(count, bool)
        for i, (prompt, request) in enumerate(zip(rows, requests, strict=True)):
            sampling = request.sampling
            refuse_truncation(sampling)
            # The last token is never read back, so it needs no place in the cache.
            if lengths[prompt] + sampling.max_new_tokens - 1 > self.config.cache_length:
                raise ValueError(
                    f"a prompt of {lengths[prompt]} tokens and max_new_tokens="
                    f"{sampling.max_new_tokens} need more than cache_length="
                    f"{self.config.cache_length}. Lower max_new_tokens or lengthen the cache."
                )
            row[i], stream[i] = prompt, request.stream
            max_new_tokens[i] = sampling.max_new_tokens
            temperature[i], greedy[i] = sampling.temperature, sampling.greedy
        exists = np.arange(count) < len(requests)
        stop = np.full(count, self.tokenizer.eos_id, np.int32)
        columns = (row, exists, stream, max_new_tokens, temperature, greedy, stop)
        return Members(*(jnp.asarray(column) for column in columns))

    def _prefill_and_draw(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, "B"],
        members: Members,
    ) -> tuple[Prefix, ResultTokens]:
        """Caches of the prompts, and the first token of every member."""
        mask_BT = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        output, cache = self._model_of(params).prefill(tokens, mask_BT)
        last_B = jnp.maximum(lengths - 1, 0)
        last_logits_BV = jnp.take_along_axis(output.logits, last_B[:, None, None], axis=1)[:, 0]
        position = lengths[members.row]
        key = draw.stream_keys(members.stream)
        token, log_prob = draw.draw(
            last_logits_BV[members.row], key, position, members.temperature, members.greedy
        )
        last_position = position + members.max_new_tokens - 1
        slot = SlotState(
            token=token,
            position=position,
            prompt_length=position,
            last_position=last_position,
            active=members.exists & (token != members.stop) & (position < last_position),
            key=key,
            temperature=members.temperature,
            greedy=members.greedy,
            stop=members.stop,
            history=self._last_tokens(tokens, lengths, members.row),
        )
        result = ResultTokens.pack(
            token[:, None], members.exists[:, None], jnp.ones_like(token), log_prob[:, None]
        )
        return Prefix(cache, members.row, slot), result

    def _last_tokens(
        self, tokens: Int[Array, "B T"], lengths: Int[Array, "B"], row: Int[Array, "members"]
    ) -> Int[Array, "members before"] | None:
        """The end of each member's prompt; anything in place of what a short one does not have."""
        if not self.num_before:
            return None
        index = lengths[row][:, None] - self.num_before + jnp.arange(self.num_before)[None]
        return jnp.take_along_axis(tokens[row], jnp.maximum(index, 0), axis=1)

    def _decode_block(self, params: Params, state: DecodeState) -> tuple[DecodeState, ResultTokens]:
        model = self._model_of(params)

        def step(state: DecodeState, _):
            slot = state.slot
            before = {} if slot.history is None else {"history": slot.history}
            logits, cache = model.decode(slot.token, slot.position, state.cache, **before)
            next_position = slot.position + 1
            drawn = draw.draw(logits, slot.key, next_position, slot.temperature, slot.greedy)
            wrote = slot.active
            token = jnp.where(wrote, drawn.token, slot.token)
            position = jnp.where(wrote, next_position, slot.position)
            active = wrote & (token != slot.stop) & (position < slot.last_position)
            history = slot.history
            if history is not None:
                moved = jnp.concatenate([history[:, 1:], slot.token[:, None]], axis=1)
                history = jnp.where(wrote[:, None], moved, history)
            slot = slot._replace(token=token, position=position, active=active, history=history)
            log_prob = jnp.where(wrote, drawn.log_prob, 0.0)
            return DecodeState(cache, slot), (token, wrote, log_prob)

        state, (token_KB, wrote_KB, log_prob_KB) = jax.lax.scan(
            step, state, length=self.config.block_steps
        )
        written = state.slot.position - state.slot.prompt_length + 1
        return state, ResultTokens.pack(token_KB.T, wrote_KB.T, written, log_prob_KB.T)

    def _decode_block_of(
        self, params: Params, state: DecodeState, slots: Int[Array, "W"]
    ) -> tuple[DecodeState, ResultTokens]:
        """The same for `slots` alone; a number past the last slot stands for none."""
        exists = slots < state.slot.active.shape[0]
        part = DecodeState(
            jax.tree.map(lambda a: a.at[:, :, slots].get(mode="clip"), state.cache),
            jax.tree.map(lambda a: a.at[slots].get(mode="clip"), state.slot),
        )
        part = part._replace(slot=part.slot._replace(active=part.slot.active & exists))
        part, result = self._decode_block(params, part)
        return slot_rows.put(state, part.cache, part.slot, slots), result
