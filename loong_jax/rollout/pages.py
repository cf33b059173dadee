"""A cache in pages: P pages of one pool instead of S positions per slot.

A page is `page_size` consecutive positions of one sequence. Pages that are full may be held by
several slots and found again by later prompts that begin with the same tokens under the same
policy version; a page that is not full belongs to one slot, the only one that writes into it. So
nothing that is shared is ever written: the last, partial page of a prompt is copied for each
member of a group when that member takes its slot, because its first step writes there.

A page is free, held by at least one slot, or kept: held by none but findable, until it is evicted,
least recently used first. Source of the idea: arXiv:2309.06180, section 4.

A block of decode steps works on a view: the pages of its slots are laid end to end, the steps run
on that contiguous cache as they would on any, and the entries they wrote go back to their pages.
The copy is paid once per block, not per step, and every model and kernel stays as it is; the view
of the slots that decode is memory that a kernel which reads pages itself would not need.
"""

import dataclasses
import hashlib
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from loong_jax.errors import LoongError
from loong_jax.models.parameters import Weights
from loong_jax.rollout import slots as slot_rows
from loong_jax.rollout.programs import Programs, ResultTokens
from loong_jax.rollout.slots import Cache, DecodeState, Prefix
from loong_jax.rollout.speculation import DraftedCache


class OutOfPages(LoongError):
    """No page is free and none can be evicted."""


@dataclasses.dataclass
class PageCounts:
    """Events since the start."""

    num_prefix_tokens: int = 0  # that were not read again
    num_pages_shared: int = 0  # pages taken that held their tokens already
    num_pages_evicted: int = 0
    num_prefix_hits: int = 0  # prompts that were not read from their beginning


class PageAllocator:
    """The pages of one pool and the slots that hold them. Not for several threads at once."""

    def __init__(self, num_pages: int, page_size: int):
        self.num_pages, self.page_size = num_pages, page_size
        self.counts = PageCounts()
        self._free = list(range(num_pages))[::-1]
        self._holders = [0] * num_pages
        self._tables: dict[int, list[int]] = {}  # slot -> pages
        self._page_of: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._name_of: dict[int, tuple[int, bytes]] = {}  # findable page -> version, key
        self._num_kept = 0

    @property
    def num_available(self) -> int:
        """Pages that can be had, free or by eviction."""
        return len(self._free) + self._num_kept

    @property
    def num_held(self) -> int:
        return self.num_pages - self.num_available

    def table(self, slot: int) -> tuple[int, ...]:
        return tuple(self._tables.get(slot, ()))

    def num_needed(self, length: int) -> int:
        """Pages for `length` positions."""
        return -(-length // self.page_size)

    def match(self, version: int, tokens: np.ndarray) -> tuple[int, ...]:
        """Pages that hold the beginning of `tokens` under `version`: full ones, in order."""
        found = []
        for key in self._keys(version, tokens):
            if key not in self._page_of:
                break
            found.append(self._page_of[key])
        for page in reversed(found):  # so that eviction takes the ends of sequences first
            self._page_of.move_to_end(self._name_of[page][1])
        return tuple(found)

    def num_kept_among(self, pages: tuple[int, ...]) -> int:
        """The number of these that no slot holds, so that holding them takes from the free ones."""
        return sum(not self._holders[page] for page in pages)

    def fill(self, slot: int, version: int, tokens: np.ndarray, length: int) -> int:
        """Gives `slot` pages for `length` positions, of which `tokens` are the first, and returns
        how many of them hold their tokens already.

        Full pages with the same tokens of the same version are shared; the caller fills the others
        up to the end of `tokens`, and full ones are findable from now on. Raises OutOfPages.
        """
        assert slot not in self._tables, f"slot {slot} holds pages already: release it first"
        shared = self.match(version, tokens)
        wanted = self.num_needed(length) - len(shared)
        missing = wanted - (self.num_available - self.num_kept_among(shared))
        if missing > 0:
            raise OutOfPages(
                f"{missing} more pages are needed for {length} positions; {self.num_held} of "
                f"{self.num_pages} are held. Wait for a slot to end, or preempt one."
            )
        for page in shared:
            self._num_kept -= not self._holders[page]
            self._holders[page] += 1
        self._tables[slot] = list(shared)
        self.counts.num_pages_shared += len(shared)
        self.grow(slot, length)
        self.publish(slot, version, tokens)
        return len(shared)

    def grow(self, slot: int, length: int) -> bool:
        """Pages for `length` positions; False, and none taken, where there are too few."""
        table = self._tables[slot]
        num_new = self.num_needed(length) - len(table)
        if num_new > self.num_available:
            return False
        for _ in range(num_new):
            if not self._free:
                self._hide(next(page for page in self._page_of.values() if not self._holders[page]))
                self.counts.num_pages_evicted += 1
            page = self._free.pop()
            self._holders[page] = 1
            table.append(page)
        return True

    def publish(self, slot: int, version: int, tokens: np.ndarray) -> None:
        """Makes the full pages of `slot` findable; `tokens` are what its first positions hold.

        Of two pages with the same tokens a held one is found, which cannot be evicted meanwhile.
        """
        for page, key in zip(self._tables[slot], self._keys(version, tokens), strict=False):
            if page in self._name_of:
                continue
            other = self._page_of.get(key)
            if other is not None:
                if self._holders[other]:
                    continue
                self._hide(other)
            self._page_of[key] = page
            self._name_of[page] = version, key

    def release(self, slot: int) -> None:
        """The slot holds nothing more; a slot that holds nothing is left alone."""
        # From the last page on, so that eviction takes the ends of sequences first.
        for page in reversed(self._tables.pop(slot, [])):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._name_of:
                self._num_kept += 1
                self._page_of.move_to_end(self._name_of[page][1])
            else:
                self._free.append(page)

    def forget(self, version: int) -> None:
        """Pages of a version that is gone are not found any more."""
        for page, (of, _) in list(self._name_of.items()):
            if of == version:
                self._hide(page)

    def _hide(self, page: int) -> None:
        """It is not found any more, and free where no slot holds it."""
        _, key = self._name_of.pop(page)
        del self._page_of[key]
        if not self._holders[page]:
            self._num_kept -= 1
            self._free.append(page)

    def _keys(self, version: int, tokens: np.ndarray):
        """One key per full page, of everything up to its end: 16 bytes, so none meets another."""
        digest = hashlib.blake2b(str(version).encode(), digest_size=16)
        size = self.page_size
        for first in range(0, len(tokens) // size * size, size):
            digest.update(np.ascontiguousarray(tokens[first : first + size], np.int32).tobytes())
            yield digest.copy().digest()


Pool = Cache  # arrays [*, *, P, page, *]


def view(pool: Pool, table: Int[Array, "W pages"]) -> Cache:
    """The pages of each row of `table` end to end; entries past the last one mean nothing."""

    def lay(pages):
        laid = pages.at[:, :, table].get(mode="clip")
        return laid.reshape(*laid.shape[:3], laid.shape[3] * laid.shape[4], *laid.shape[5:])

    return jax.tree.map(lay, pool)


def write_back(
    pool: Pool,
    cache: Cache,
    table: Int[Array, "W pages"],
    start: Int[Array, "W"],
    num_written: Int[Array, "W"],
    most: int,
) -> Pool:
    """Copies `num_written` entries of each row, at most `most`, from a view to their pages."""
    step_1K = jnp.arange(most)[None]
    position_WK = start[:, None] + step_1K

    def put(pages, rows):
        num_pages, size = pages.shape[2:4]
        row_W1 = jnp.arange(table.shape[0])[:, None]
        page_WK = table.at[row_W1, position_WK // size].get(mode="clip")
        page_WK = jnp.where(step_1K < num_written[:, None], page_WK, num_pages)
        entry = rows.at[:, :, row_W1, position_WK].get(mode="clip")
        return pages.at[:, :, page_WK, position_WK % size].set(entry, mode="drop")

    return jax.tree.map(put, pool, cache)


def store(
    prefix: Prefix,
    state: DecodeState,
    slots: Int[Array, "members"],
    full: Int[Array, "rows pages"],
    tail_of: Int[Array, "members"],
    tail: Int[Array, "members"],
) -> DecodeState:
    """Puts prompts into pages and members into slots.

    Page i of row b goes to `full[b, i]`, page `tail_of[m]` of the row of member m to `tail[m]`;
    numbers past the last page or slot drop what they stand for.
    """

    def put(pages, rows):
        size = pages.shape[3]
        missing = -rows.shape[3] % size
        rows = jnp.pad(rows, ((0, 0),) * 3 + ((0, missing), (0, 0)))
        cut = rows.reshape(*rows.shape[:3], -1, size, *rows.shape[4:])
        pages = pages.at[:, :, full].set(cut, mode="drop")
        return pages.at[:, :, tail].set(cut[:, :, prefix.row, tail_of], mode="drop")

    pool = jax.tree.map(put, state.cache, prefix.cache)
    return state._replace(cache=pool, slot=slot_rows.put_slots(state.slot, prefix.slot, slots))


def take_out(state: DecodeState, slot: Int[Array, "1"], table: Int[Array, "1 pages"]) -> Prefix:
    """The sample of a slot as a prefix of one member."""
    rows = slot_rows.take(state.slot, slot)
    return Prefix(view(state.cache, table), jnp.zeros(1, jnp.int32), rows)


def decode(
    programs: Programs,
    params: Weights,
    state: DecodeState,
    slots: Int[Array, "W"],
    table: Int[Array, "W pages"],
) -> tuple[DecodeState, ResultTokens]:
    """A block of steps of `slots`, whose pages `table` holds; past the last slot there is none."""
    part = state._replace(cache=view(state.cache, table), slot=slot_rows.take(state.slot, slots))
    start = part.slot.position
    part, result = programs.decode_block(params, part)
    written, most = part.slot.position - start, programs.block_tokens
    if programs.config.speculation:
        # A step also writes the two drafts before its token, where pages of the slot hold them.
        size = jax.tree.leaves(state.cache.draft)[0].shape[3]
        first = jnp.maximum(start - 2, part.slot.prompt_length // size * size)
        num_rows = jnp.where(written > 0, part.slot.position - first, 0)
        pool = DraftedCache(
            write_back(state.cache.main, part.cache.main, table, start, written, most),
            write_back(state.cache.draft, part.cache.draft, table, first, num_rows, most + 2),
        )
    else:
        pool = write_back(state.cache, part.cache, table, start, written, most)
    rows = slot_rows.put_slots(state.slot, part.slot, slots)
    return DecodeState(pool, rows, part.num_drafts), result
