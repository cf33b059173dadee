"""The engine over pages: a `SlotEngine` whose slots share one pool.

Prompts with the same beginning under the same version share its full pages, whether they are
members of a group, later groups, or later turns; a prompt whose beginning is kept is read from
there. A sample holds the pages it has filled and those of its next block. Where pages are short,
`num_that_fit` and `reserve` say so, and whoever drives the engine waits or moves samples out.

Reading a prompt from its middle rounds differently from reading it whole, so what a sample equals
to the last bit then depends on what was kept: runs that are to repeat bit for bit set
`reuse_prefixes=False`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError
from loong_jax.models import families
from loong_jax.models.families import ModelConfig
from loong_jax.models.parameters import Weights
from loong_jax.rollout import pages as page_pool
from loong_jax.rollout.devices import WHOLE, OneDevice, OnMesh
from loong_jax.rollout.engine_config import EngineSettings, SampleRequest
from loong_jax.rollout.pages import OutOfPages, PageAllocator
from loong_jax.rollout.programs import CachedPrefixes, Reading, ResultTokens
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.slots import DecodeState, Prefix
from loong_jax.rollout.speculation import DraftedCache
from loong_jax.sharding import ShardingRules


@dataclasses.dataclass
class PagedSample:
    """The sample of a slot; `position` is that of its last token while it is active."""

    version: int  # negative: of its prefix alone
    tokens: np.ndarray  # of its prompt
    position: int
    last_position: int
    result: tuple[ResultTokens, int] | None = None  # result and row of its last block, if unread

    def settle(self) -> None:
        """Looks up how far the last block came; waits for it."""
        if self.result is not None:
            result, row = self.result
            self.position = len(self.tokens) + int(np.asarray(result.data)[row, -1]) - 1
            self.result = None


class PagedPrefix(NamedTuple):
    """A prefix, with the row of each member and the sample as it takes a slot."""

    device: Prefix
    rows: tuple[int, ...]
    samples: tuple[PagedSample, ...]


class PagedState(NamedTuple):
    """Everything that `generate` changes; arrays, and who holds which page of them."""

    arrays: DecodeState
    allocator: PageAllocator
    samples: dict[int, PagedSample]


class PagedEngine(SlotEngine):
    """A `SlotEngine` with the cache in pages (`config.pages`)."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        assert self.config.pages is not None
        self.pages = self.config.pages
        self._private = itertools.count(1)
        devices = self.devices
        state, one = DecodeState(devices.caches, WHOLE, WHOLE), devices.one_cache
        self._store = devices.compile(page_pool.store, outs=state, donate=1)
        self._view = devices.compile(page_pool.view, outs=devices.caches)
        self._take_out = devices.compile(page_pool.take_out, outs=Prefix(one, WHOLE, WHOLE))
        decode = functools.partial(page_pool.decode, self.programs)
        self._decode_pages = devices.compile(decode, outs=(state, WHOLE), donate=1)

    def init_decode_state(self) -> PagedState:
        pool = self._empty_state(self.pages.num_pages, self.pages.page_size)
        return PagedState(pool, PageAllocator(self.pages.num_pages, self.pages.page_size), {})

    def lower_block(self, params: Weights) -> jax.stages.Lowered:
        pool = self._abstract_state(self.pages.num_pages, self.pages.page_size)
        num_slots = self.config.slots_per_replica
        table = self._empty_table(num_slots, self.config.cache_length)
        return self._decode_pages.lower(params, pool, np.zeros(num_slots, np.int32), table)

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
        """Without a version the pages are shared among the members of this prefix alone."""
        reading = super().begin_prefill(
            params, prompts, rows, requests, existing_prefix=existing_prefix
        )
        if version is None or not self.pages.reuse_prefixes:
            version = -next(self._private)
        tokens = [np.asarray(prompt, np.int32) for prompt in prompts]
        samples = tuple(
            PagedSample(
                version,
                tokens[row],
                position=len(tokens[row]),
                last_position=len(tokens[row]) + request.sampling.max_new_tokens - 1,
            )
            for row, request in zip(rows, requests, strict=True)
        )
        return dataclasses.replace(reading, label=(tuple(rows), samples))

    def end_prefill(self, params: Weights, reading: Reading) -> tuple[PagedPrefix, ResultTokens]:
        prefix, result = super().end_prefill(params, reading)
        return PagedPrefix(prefix, *reading.label), result

    def find(
        self, decode_state: PagedState, prompts: Sequence[np.ndarray], version: int
    ) -> CachedPrefixes | None:
        """The pages that hold beginnings of these prompts, end to end; None where none do.

        The last token of a prompt is always read, since its logits are needed.
        """
        if not self.pages.reuse_prefixes:
            return None
        allocator, size = decode_state.allocator, self.pages.page_size
        found = [allocator.match(version, prompt[:-1]) for prompt in prompts]
        if not any(found):
            return None
        table = self._empty_table(self.config.prefill_prompts, self.config.cache_length)
        start = np.zeros(self.config.prefill_prompts, np.int32)
        for row, pages in enumerate(found):
            table[row, : len(pages)] = pages
            start[row] = len(pages) * size
        allocator.counts.num_prefix_hits += sum(bool(pages) for pages in found)
        allocator.counts.num_prefix_tokens += int(start.sum())
        return CachedPrefixes(self._view(decode_state.arrays.cache, table), start)

    def _empty_table(self, num_rows: int, length: int) -> np.ndarray:
        return np.zeros((num_rows, length // self.pages.page_size), np.int32)

    def bulk_insert(
        self,
        prefix: PagedPrefix,
        decode_state: PagedState,
        slots: Sequence[int],
        *,
        members: Sequence[int] | None = None,
    ) -> PagedState:
        """Consumes `decode_state`. Raises OutOfPages for a member that does not fit."""
        allocator, size = decode_state.allocator, self.pages.page_size
        device = self.devices.bring(prefix.device)
        num_rows, length = jax.tree.leaves(device.cache)[0].shape[2:4]
        num_members = device.row.shape[0]
        full = np.full((num_rows, -(-length // size)), self.pages.num_pages, np.int32)
        slot_of = np.full(num_members, self.config.slots_per_replica, np.int32)
        tail = np.full(num_members, self.pages.num_pages, np.int32)
        tail_of = np.zeros(num_members, np.int32)
        for slot, member in zip(slots, members or range(len(slots)), strict=True):
            sample = dataclasses.replace(prefix.samples[member])
            end = self._end_of_block(sample)
            num_shared = allocator.fill(slot, sample.version, sample.tokens, end)
            pages = allocator.table(slot)
            decode_state.samples[slot] = sample
            slot_of[member] = slot
            num_full, rest = divmod(sample.position, size)
            for i in range(num_shared, num_full):
                full[prefix.rows[member], i] = pages[i]
            if rest:
                tail_of[member], tail[member] = num_full, pages[num_full]
        arrays = self._store(device, decode_state.arrays, slot_of, full, tail_of, tail)
        return decode_state._replace(arrays=arrays)

    def generate(
        self, params: Weights, decode_state: PagedState, *, slots: np.ndarray | None = None
    ) -> tuple[PagedState, ResultTokens]:
        """Consumes `decode_state`. Raises OutOfPages; see `reserve`."""
        width = self.config.slots_per_replica if slots is None else self._width(len(slots))
        chosen = list(range(width)) if slots is None else [int(slot) for slot in slots]
        samples = {s: decode_state.samples[s] for s in chosen if s in decode_state.samples}
        if not self.reserve(decode_state, list(samples)):
            raise OutOfPages(
                f"the next block of slots {list(samples)[:8]} needs more than the "
                f"{decode_state.allocator.num_available} pages there are. Extract or release one."
            )
        ends = [self._end_of_block(sample) for sample in samples.values()]
        lengths = (*sorted(self.pages.view_lengths), self.config.cache_length)
        length = next(length for length in lengths if length >= max(ends, default=0))
        arrays, result = self._block(params, decode_state, chosen, width, length)
        for (slot, sample), end in zip(samples.items(), ends, strict=True):
            sample.position = max(sample.position, end)
            if self.config.speculation:  # how many drafts are kept is for the device to say
                sample.result = result, chosen.index(slot)
        return decode_state._replace(arrays=arrays), result

    def _block(self, params, decode_state, chosen, width, length):
        padded = np.full(width, self.config.slots_per_replica, np.int32)
        padded[: len(chosen)] = chosen
        table = self._empty_table(width, length)
        for row, slot in enumerate(chosen):
            pages = decode_state.allocator.table(slot)[: table.shape[1]]
            table[row, : len(pages)] = pages
        return self._decode_pages(params, decode_state.arrays, padded, table)

    def extract(self, decode_state: PagedState, slot: int) -> PagedPrefix:
        """Waits for the blocks under way, since only the device knows where a sample ended."""
        sample = decode_state.samples[slot]
        table = self._empty_table(1, self.config.cache_length)
        pages = decode_state.allocator.table(slot)
        table[0, : len(pages)] = pages
        prefix = self._take_out(decode_state.arrays, np.array([slot], np.int32), table)
        length = int(prefix.slot.position[0])
        moved = dataclasses.replace(sample, position=length, result=None)
        return PagedPrefix(prefix, (0,), (moved,))

    def cancel(self, decode_state: PagedState, slots: Sequence[int]) -> PagedState:
        """Consumes `decode_state`. The slots keep their pages until they are released."""
        return decode_state._replace(arrays=super().cancel(decode_state.arrays, slots))

    def release(
        self,
        decode_state: PagedState,
        slot: int,
        *,
        tokens: np.ndarray | None = None,
        version: int | None = None,
    ) -> PagedState:
        """Gives back the pages of `slot`, which must have ended or been cancelled.

        With its `tokens`, prompt and response, other prompts may find what they begin with.
        """
        sample = decode_state.samples.pop(slot, None)
        if sample is not None and tokens is not None and sample.version == version:
            # The last token was drawn and never read, so the cache does not hold it.
            decode_state.allocator.publish(slot, sample.version, np.asarray(tokens[:-1]))
        decode_state.allocator.release(slot)
        return decode_state

    def forget(self, decode_state: PagedState, version: int) -> PagedState:
        """Pages of samples that ended under `version` are not found any more, and go first."""
        decode_state.allocator.forget(version)
        return decode_state

    def num_that_fit(
        self, prefix: PagedPrefix, decode_state: PagedState, members: Sequence[int]
    ) -> int:
        """The number of `members`, in order, that find pages for their prompt and a block."""
        allocator = decode_state.allocator
        available, seen = allocator.num_available, set()
        for count, member in enumerate(members):
            row, sample = prefix.rows[member], prefix.samples[member]
            available -= allocator.num_needed(self._end_of_block(sample))
            if row in seen:
                available += len(sample.tokens) // self.pages.page_size
            else:
                matched = allocator.match(sample.version, sample.tokens)
                available += len(matched) - allocator.num_kept_among(matched)
            seen.add(row)
            if available < 0:
                return count
        return len(members)

    def reserve(self, decode_state: PagedState, slots: Sequence[int]) -> bool:
        """Takes pages for the next block of `slots`; false where some lack pages still."""
        for slot in slots:
            decode_state.samples[slot].settle()
        grown = [
            decode_state.allocator.grow(slot, self._end_of_block(decode_state.samples[slot]))
            for slot in slots
        ]
        return all(grown)

    def accepts(self, prefix: Any) -> bool:
        return (
            isinstance(prefix, PagedPrefix)
            and self._is_alike(prefix.device)
            and max(s.last_position for s in prefix.samples) <= self.config.cache_length
        )

    def cache_pressure(self, decode_state: PagedState) -> float:
        """Share of the pages that running samples hold."""
        return decode_state.allocator.num_held / decode_state.allocator.num_pages

    def statistics(self, decode_state: PagedState) -> dict[str, int]:
        allocator = decode_state.allocator
        drafts = super().statistics(decode_state.arrays)
        return {
            **dataclasses.asdict(allocator.counts),
            "num_pages_held": allocator.num_held,
            **drafts,
        }

    def _end_of_block(self, sample: PagedSample) -> int:
        """The number of positions that a sample may have filled after one more block."""
        end = min(sample.position + self.programs.block_tokens, sample.last_position)
        return max(sample.position, end)

    def _warm_up_inserts(self, prefix: PagedPrefix, state: PagedState) -> PagedState:
        """Compiles inserts, those of a sample that steps aside and comes back included."""
        state = self.bulk_insert(prefix, state, [0])
        aside = jax.device_get(self.extract(state, 0))
        state = self.release(self.cancel(state, [0]), 0)
        return self.release(self.bulk_insert(aside, state, [0]), 0)

    def _warm_up_blocks(self, params: Weights, state: PagedState) -> PagedState:
        if self.pages.reuse_prefixes:
            table = self._empty_table(self.config.prefill_prompts, self.config.cache_length)
            self._view(state.arrays.cache, table)
        for length in (*self.pages.view_lengths, self.config.cache_length):
            for width in (*self.config.narrow_slots, self.config.slots_per_replica):
                arrays, _ = self._block(params, state, list(range(width)), width, length)
                state = state._replace(arrays=arrays)
        return state


def engine_for(
    graphdef: nnx.GraphDef,
    model: ModelConfig,
    tokenizer: Tokenizer,
    config: EngineSettings,
    rules: ShardingRules | None = None,
) -> SlotEngine:
    """The engine of the model that `init_weights` of its family gave `graphdef` for, under the same
    rules: with slots that own their cache, or over pages, as `config` says.
    """
    family = families.family_of(model)
    if config.routing and not family.routes:
        raise ConfigError(
            "routing=True, and this model has no routers whose choices could be recorded. Set "
            "it to False."
        )
    drafts = config.speculation and family.drafts(model)
    if rules is not None and rules.mesh is not None:
        devices = OnMesh(graphdef, model, rules, drafts=drafts)
    else:
        make_cache: Any = DraftedCache.zeros if drafts else family.make_cache
        devices = OneDevice(
            lambda weights: nnx.merge(graphdef, nnx.State(weights)),
            functools.partial(make_cache, model),
        )
    kind = SlotEngine if config.pages is None else PagedEngine
    hidden = jax.ShapeDtypeStruct((model.hidden_size,), model.dtype) if drafts else None
    return kind(devices, tokenizer, config, family.num_before(model), hidden)
