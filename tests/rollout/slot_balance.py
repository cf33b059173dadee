"""What holds of a replica's slots and pages between any two steps."""


def check(replica):
    """No slot, page or sample is lost."""
    table = replica._slots
    occupied = set(table.occupied())
    assert sorted([*table._free, *occupied]) == list(range(replica.engine.config.slots_per_replica))
    state = table._state
    if hasattr(state, "allocator"):
        state.allocator.check()
        assert set(state.samples) == occupied
        assert {
            slot for slot in range(len(table._attempts)) if state.allocator.table(slot)
        } == occupied
        assert not replica.is_empty or state.allocator.num_held == 0
