"""The allocator of pages, against a model that lists what every slot should hold."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from loong_jax.rollout.pages import OutOfPages, PageAllocator
from tests.rollout.engine_checks import check_pages

SIZE, PAGES, SLOTS = 4, 9, 4


class Allocations(RuleBasedStateMachine):
    """Any sequence of fills, growth, ends and forgotten versions.

    `contents` is an array as the device would have it: what was written into each page last.
    """

    def __init__(self):
        super().__init__()
        self.allocator = PageAllocator(PAGES, SIZE)
        self.contents = [None] * PAGES
        self.slots: dict[int, tuple[int, list[int], int]] = {}  # version, tokens, capacity

    def write(self, slot, first):
        """What a slot does with its positions from `first` on."""
        version, tokens, _ = self.slots[slot]
        for i, page in enumerate(self.allocator.table(slot)):
            if (i + 1) * SIZE > first:
                self.contents[page] = (version, tuple(tokens[: (i + 1) * SIZE]))

    @rule(
        slot=st.integers(0, SLOTS - 1),
        version=st.integers(0, 1),
        length=st.integers(1, 14),
        kind=st.integers(0, 1),
        more=st.integers(0, 5),
    )
    def fill(self, slot, version, length, kind, more):
        tokens = [kind] * length
        if slot in self.slots:
            with pytest.raises(AssertionError, match="release"):
                self.allocator.fill(slot, version, np.array(tokens), length)
            return
        before = self.allocator.num_available
        try:
            num_shared = self.allocator.fill(slot, version, np.array(tokens), length + more)
        except OutOfPages:
            assert self.allocator.num_available == before
            assert self.allocator.num_needed(length + more) > 0
            return
        self.slots[slot] = version, tokens, length + more
        for i in range(num_shared):  # what is shared is there already
            expected = (version, tuple(tokens[: (i + 1) * SIZE]))
            assert self.contents[self.allocator.table(slot)[i]] == expected
        self.write(slot, num_shared * SIZE)

    @rule(slot=st.integers(0, SLOTS - 1), num_new=st.integers(1, 6), token=st.integers(0, 1))
    def decode(self, slot, num_new, token):
        if slot not in self.slots:
            return
        version, tokens, capacity = self.slots[slot]
        length = len(tokens) + num_new
        if self.allocator.grow(slot, length):
            self.slots[slot] = version, tokens + [token] * num_new, max(capacity, length)
            self.write(slot, len(tokens))

    @rule(slot=st.integers(0, SLOTS - 1), publish=st.booleans())
    def end(self, slot, publish):
        if slot in self.slots and publish:
            version, tokens, _ = self.slots[slot]
            self.allocator.publish(slot, version, np.array(tokens))
        self.allocator.release(slot)
        self.allocator.release(slot)  # once more changes nothing
        self.slots.pop(slot, None)

    @rule(version=st.integers(0, 1))
    def forget(self, version):
        self.allocator.forget(version)
        assert self.allocator.match(version, np.zeros(12, np.int32)) == ()

    @invariant()
    def balances(self):
        check_pages(self.allocator)
        for slot in range(SLOTS):
            table = self.allocator.table(slot)
            if slot not in self.slots:
                assert table == ()
                continue
            version, tokens, capacity = self.slots[slot]
            assert len(table) == self.allocator.num_needed(capacity)
            for i, page in enumerate(table):  # nobody wrote over what this slot has written
                written = tuple(tokens[: (i + 1) * SIZE])
                if len(tokens) > i * SIZE:
                    assert self.contents[page] == (version, written)

    def teardown(self):
        for slot in range(SLOTS):
            self.allocator.release(slot)
        check_pages(self.allocator)
        assert self.allocator.num_available == PAGES


TestAllocations = Allocations.TestCase
TestAllocations.settings = settings(max_examples=60, stateful_step_count=30)


def tokens(length, kind=7):
    return np.full(length, kind, np.int32)


def test_the_least_recently_used_page_goes_first():
    allocator = PageAllocator(4, SIZE)
    allocator.fill(0, 0, tokens(8, 1), 8)
    allocator.release(0)
    allocator.fill(0, 0, tokens(8, 2), 8)
    allocator.release(0)
    assert allocator.num_available == 4
    assert len(allocator.match(0, tokens(8, 1))) == 2  # which makes it the more recent
    allocator.fill(1, 0, tokens(8, 3), 8)
    assert len(allocator.match(0, tokens(8, 1))) == 2
    assert allocator.match(0, tokens(8, 2)) == ()
    assert allocator.counts.num_pages_evicted == 2


def test_a_prompt_that_is_kept_does_not_count_as_room_for_itself():
    allocator = PageAllocator(3, SIZE)
    allocator.fill(0, 0, tokens(8), 8)
    allocator.release(0)
    allocator.fill(0, 0, tokens(8), 12)
    allocator.release(0)
    with pytest.raises(OutOfPages, match="1 more pages"):
        allocator.fill(0, 0, tokens(8), 16)
    check_pages(allocator)
