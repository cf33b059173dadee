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
from loong_jax.models.families import ModelConfig
from loong_jax.rollout import paged
from loong_jax.rollout.devices import WHOLE
from loong_jax.rollout.engine import Params, ResultTokens, SampleRequest
from loong_jax.rollout.engine_config import EngineConfig
from loong_jax.rollout.pages import OutOfPages, PageBook
from loong_jax.rollout.reading import Begun
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.slots import DecodeState, Prefix
from loong_jax.sharding import ShardingRules


class Label(NamedTuple):
    """What the books need to know of a prefix."""

    tokens: tuple[np.ndarray, ...]  # of each row, as far as they are known
    lengths: tuple[int, ...]  # positions of each row that are filled
    rows: tuple[int, ...]  # of each member
    last_positions: tuple[int, ...]  # of each member
    version: int  # negative: of this prefix alone


class PagedPrefix(NamedTuple):
    """A prefix with its label."""

    device: Prefix
    tokens: tuple[np.ndarray, ...]
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    last_positions: tuple[int, ...]
    version: int


@dataclasses.dataclass
class _Seat:
    """What runs in a slot; `position` is that of its last token while it is active."""

    version: int
    tokens: np.ndarray  # of its prompt
    position: int
    last_position: int
    written: tuple[ResultTokens, int] | None = None  # result and row of its last block, if unread

    def settle(self) -> None:
        """Looks up how far the last block came; waits for it."""
        if self.written is not None:
            result, row = self.written
            count = int(np.asarray(result.data)[row, result.length_idx[0]])
            self.position, self.written = len(self.tokens) + count - 1, None


class PagedState(NamedTuple):
    """Everything that `generate` changes; arrays, and the books about them."""

    arrays: DecodeState
    book: PageBook
    seats: dict[int, _Seat]


class PagedEngine(SlotEngine):
    """An `Engine` (see `loong_jax.rollout.engine`) with the cache in pages (`config.pages`)."""

    is_paged = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        assert self.config.pages is not None
        self.pages = self.config.pages
        self._private = itertools.count(1)
        devices = self.devices
        state, one = DecodeState(devices.caches, WHOLE, WHOLE), devices.one_cache
        self._store = devices.compile(paged.store, outs=state, donate=1)
        self._view = devices.compile(paged.view, outs=devices.caches)
        self._take_out = devices.compile(paged.take_out, outs=Prefix(one, WHOLE, WHOLE))
        decode = functools.partial(paged.decode, self.programs)
        self._decode_pages = devices.compile(decode, outs=(state, WHOLE), donate=1)

    def init_decode_state(self) -> PagedState:
        pool = self.devices.make_cache(self.pages.num_pages, self.pages.page_size)
        book = PageBook(self.pages.num_pages, self.pages.page_size)
        slots, drafts = self.devices.whole((self._empty_slots(), self._no_drafts()))
        return PagedState(DecodeState(pool, slots, drafts), book, {})

    def lower_block(self, params: Params) -> jax.stages.Lowered:
        pool = self._abstract_state(self.pages.num_pages, self.pages.page_size)
        num_slots, length = self.config.num_slots, self.config.cache_length
        slots = np.zeros(num_slots, np.int32)
        table = np.zeros((num_slots, length // self.pages.page_size), np.int32)
        return self._decode_pages.lower(params, pool, slots, table)

    def _label(
        self,
        prompts: Sequence[np.ndarray],
        rows: Sequence[int],
        requests: Sequence[SampleRequest],
        version: int | None,
    ) -> Label:
        """Without a `version` the pages are shared among the members of this prefix alone."""
        if version is None or not self.pages.reuse_prefixes:
            version = -next(self._private)
        ends = tuple(
            len(prompts[row]) + request.sampling.max_new_tokens - 1
            for row, request in zip(rows, requests, strict=True)
        )
        tokens = tuple(np.asarray(prompt, np.int32) for prompt in prompts)
        return Label(tokens, tuple(map(len, tokens)), tuple(rows), ends, version)

    def _labelled(self, prefix: Prefix, label: Label) -> "PagedPrefix":
        return PagedPrefix(prefix, *label)

    def find(
        self, decode_state: PagedState, prompts: Sequence[np.ndarray], version: int
    ) -> Begun | None:
        """What pages hold of these prompts, for `prefill_batch`; None where they hold nothing.

        The last token of a prompt is always read, since its logits are needed.
        """
        if not self.pages.reuse_prefixes:
            return None
        book, size = decode_state.book, self.pages.page_size
        found = [book.match(version, prompt[:-1]) for prompt in prompts]
        if not any(found):
            return None
        table = self._empty_table()
        start = np.zeros(self.config.prefill_batch, np.int32)
        for row, pages in enumerate(found):
            table[row, : len(pages)] = pages
            start[row] = len(pages) * size
        book.counts.num_prefix_hits += sum(bool(pages) for pages in found)
        book.counts.num_prefix_tokens += int(start.sum())
        return Begun(self._view(decode_state.arrays.cache, table), start)

    def _empty_table(self) -> np.ndarray:
        """Where the pages of a batch of prompts are written down, int32 [prompts, pages]."""
        num_pages = self.config.cache_length // self.pages.page_size
        return np.zeros((self.config.prefill_batch, num_pages), np.int32)

    def bulk_insert(
        self,
        prefix: PagedPrefix,
        decode_state: PagedState,
        slots: Sequence[int],
        *,
        members: Sequence[int] | None = None,
    ) -> PagedState:
        """Consumes `decode_state`. Raises OutOfPages for a member that does not fit."""
        book, size = decode_state.book, self.pages.page_size
        device = self.devices.bring(prefix.device)
        num_rows, num_members = _num_rows(device), device.row.shape[0]
        num_pages = -(-jax.tree.leaves(device.cache)[0].shape[3] // size)
        full = np.full((num_rows, num_pages), self.pages.num_pages, np.int32)
        slot_of = np.full(num_members, self.config.num_slots, np.int32)
        tail = np.full(num_members, self.pages.num_pages, np.int32)
        tail_of = np.zeros(num_members, np.int32)
        for slot, member in zip(slots, members or range(len(slots)), strict=True):
            row = prefix.rows[member]
            length, tokens = prefix.lengths[row], prefix.tokens[row]
            seat = _Seat(prefix.version, tokens, length, prefix.last_positions[member])
            seating = book.seat(slot, prefix.version, tokens, self._end_of_block(seat))
            decode_state.seats[slot] = seat
            slot_of[member] = slot
            num_full, rest = divmod(length, size)
            for i in range(seating.num_shared, num_full):
                full[row, i] = seating.pages[i]
            if rest:
                tail_of[member], tail[member] = num_full, seating.pages[num_full]
        arrays = self._store(device, decode_state.arrays, slot_of, full, tail_of, tail)
        return decode_state._replace(arrays=arrays)

    def generate(
        self,
        params: Params,
        decode_state: PagedState,
        sampler: Any = None,
        *,
        slots: np.ndarray | None = None,
    ) -> tuple[PagedState, ResultTokens]:
        """`block_steps` steps. Consumes `decode_state`. Raises OutOfPages; see `reserve`."""
        if sampler is not None:
            raise ConfigError("sampler is not taken: every slot has its settings. Leave it out.")
        chosen = range(self.config.num_slots) if slots is None else [int(slot) for slot in slots]
        seats = {slot: decode_state.seats[slot] for slot in chosen if slot in decode_state.seats}
        if not self.reserve(decode_state, list(seats)):
            raise OutOfPages(
                f"the next block of slots {list(seats)[:8]} needs more than the "
                f"{decode_state.book.num_available} pages there are. Extract or release a slot."
            )
        ends = [self._end_of_block(seat) for seat in seats.values()]
        lengths = (*sorted(self.pages.view_lengths), self.config.cache_length)
        length = next(length for length in lengths if length >= max(ends, default=0))
        width = self.config.num_slots if slots is None else self._width(len(chosen))
        arrays, result = self._block(params, decode_state, chosen, width, length)
        for (slot, seat), end in zip(seats.items(), ends, strict=True):
            seat.position = max(seat.position, end)
            if self.config.speculation:  # how many drafts are kept is for the device to say
                seat.written = result, list(chosen).index(slot)
        return decode_state._replace(arrays=arrays), result

    def _block(self, params, decode_state, chosen, width, length):
        padded = np.full(width, self.config.num_slots, np.int32)
        padded[: len(chosen)] = chosen
        table = np.zeros((width, length // self.pages.page_size), np.int32)
        for row, slot in enumerate(chosen):
            pages = decode_state.book.table(slot)[: table.shape[1]]
            table[row, : len(pages)] = pages
        return self._decode_pages(params, decode_state.arrays, padded, table)

    def extract(self, decode_state: PagedState, slot: int) -> PagedPrefix:
        """Waits for the blocks under way, since only the device knows where a sample ended."""
        seat = decode_state.seats[slot]
        table = np.zeros((1, self.config.cache_length // self.pages.page_size), np.int32)
        pages = decode_state.book.table(slot)
        table[0, : len(pages)] = pages
        prefix = self._take_out(decode_state.arrays, np.array([slot], np.int32), table)
        length = int(prefix.slot.position[0])
        return PagedPrefix(
            prefix, (seat.tokens,), (length,), (0,), (seat.last_position,), seat.version
        )

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
        seat = decode_state.seats.pop(slot, None)
        if seat is not None and tokens is not None and seat.version == version:
            # The last token was drawn and never read, so the cache does not hold it.
            decode_state.book.publish(slot, seat.version, np.asarray(tokens[:-1]))
        decode_state.book.release(slot)
        return decode_state

    def forget(self, decode_state: PagedState, version: int) -> PagedState:
        """What ended under `version` is not found any more, and makes room first."""
        decode_state.book.forget(version)
        return decode_state

    def num_that_fit(
        self, prefix: PagedPrefix, decode_state: PagedState, members: Sequence[int]
    ) -> int:
        """How many of `members`, in order, find pages for their prompt and a block."""
        book, size = decode_state.book, self.pages.page_size
        available, seen = book.num_available, set()
        for count, member in enumerate(members):
            row = prefix.rows[member]
            seat = _Seat(
                prefix.version,
                prefix.tokens[row],
                prefix.lengths[row],
                prefix.last_positions[member],
            )
            wanted = book.num_needed(self._end_of_block(seat))
            if row in seen:
                wanted -= len(prefix.tokens[row]) // size
            else:
                matched = book.match(prefix.version, prefix.tokens[row])
                wanted -= len(matched)
                available -= book.num_kept_among(matched)
            seen.add(row)
            available -= wanted
            if available < 0:
                return count
        return len(members)

    def reserve(self, decode_state: PagedState, slots: Sequence[int]) -> bool:
        """Takes pages for the next block of `slots`; false where some lack pages still."""
        for slot in slots:
            decode_state.seats[slot].settle()
        grown = [
            decode_state.book.grow(slot, self._end_of_block(decode_state.seats[slot]))
            for slot in slots
        ]
        return all(grown)

    def accepts(self, prefix: Any) -> bool:
        return (
            isinstance(prefix, PagedPrefix)
            and self._is_alike(prefix.device)
            and max(prefix.last_positions) <= self.config.cache_length
        )

    def cache_pressure(self, decode_state: PagedState) -> float:
        """Share of the pages that running samples hold."""
        return decode_state.book.num_held / decode_state.book.num_pages

    def statistics(self, decode_state: PagedState) -> dict[str, int]:
        book = decode_state.book
        drafts = super().statistics(decode_state.arrays)
        return {**dataclasses.asdict(book.counts), "num_pages_held": book.num_held, **drafts}

    def _end_of_block(self, seat: _Seat) -> int:
        """How many positions a sample may have filled after one more block."""
        end = min(seat.position + self.programs.block_tokens, seat.last_position)
        return max(seat.position, end)

    def _warm_up_inserts(self, prefix: PagedPrefix, state: PagedState) -> PagedState:
        """Also those of a sample that steps aside and comes back."""
        state = self.bulk_insert(prefix, state, [0])
        aside = jax.device_get(self.extract(state, 0))
        state = self.release(self.cancel(state, [0]), 0)
        return self.release(self.bulk_insert(aside, state, [0]), 0)

    def _warm_up_blocks(self, params: Params, state: PagedState) -> PagedState:
        if self.pages.reuse_prefixes:
            self._view(state.arrays.cache, self._empty_table())
        for length in (*self.pages.view_lengths, self.config.cache_length):
            for width in (*self.config.narrow_slots, self.config.num_slots):
                arrays, _ = self._block(params, state, range(width), width, length)
                state = state._replace(arrays=arrays)
        return state


def engine_for(
    graphdef: nnx.GraphDef,
    model: ModelConfig,
    tokenizer: Tokenizer,
    config: EngineConfig,
    rules: ShardingRules | None = None,
) -> SlotEngine:
    """The engine of a model as `config` says: over pages, or with slots that own their cache."""
    kind = SlotEngine if config.pages is None else PagedEngine
    return kind.for_model(graphdef, model, tokenizer, config, rules)


def _num_rows(prefix: Prefix) -> int:
    return jax.tree.leaves(prefix.cache)[0].shape[2]
