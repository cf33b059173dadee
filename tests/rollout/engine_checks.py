"""Properties of an engine: compiled once, and no slot, page or sample lost between steps."""


def num_compiled(engine):
    """Programs by name, shapes counted apart."""
    return {
        name: program._cache_size()
        for name, program in vars(engine).items()
        if hasattr(program, "_cache_size")
    }


def check(replica):
    """No slot, page or sample is lost."""
    table = replica._slots
    occupied = set(table.occupied())
    assert sorted([*table._free, *occupied]) == list(range(replica.engine.config.slots_per_replica))
    state = table._state
    if hasattr(state, "allocator"):
        check_pages(state.allocator)
        assert set(state.samples) == occupied
        assert {
            slot for slot in range(len(table._attempts)) if state.allocator.table(slot)
        } == occupied
        assert not replica.is_empty or state.allocator.num_held == 0


def check_pages(allocator):
    """Every page is free, held or kept, in one way, as the allocator counts it."""
    held = [page for table in allocator._tables.values() for page in table]
    holders = [held.count(page) for page in range(allocator.num_pages)]
    assert allocator._holders == holders, "holders"
    assert all(len(set(t)) == len(t) for t in allocator._tables.values()), "a page twice in a slot"
    kept = {page for page in allocator._name_of if not holders[page]}
    assert len(kept) == allocator._num_kept, "kept pages"
    free = set(allocator._free)
    assert len(free) == len(allocator._free), "a page twice free"
    assert set(held) | kept | free == set(range(allocator.num_pages)), "a lost page"
    assert not free & (set(held) | kept), "a free page is in use"
    names = {key: page for page, (_, key) in allocator._name_of.items()}
    assert names == allocator._page_of, "names"
