import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loong_jax.data import packing
from tests.doubles.unpacking import unpack

LENGTHS = st.lists(st.integers(1, 16), min_size=1, max_size=40)


def sequences(lengths):
    """Each token names its sequence and its place, so a round trip can be read off."""
    return [
        {
            "tokens": np.arange(1, n + 1, dtype=np.int32) + 100 * i,
            "weight": np.full(n, i + 0.5, np.float32),
        }
        for i, n in enumerate(lengths)
    ]


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 5))
def test_round_trip(lengths, rows):
    batches = packing.pack(sequences(lengths), 16, rows)
    found = {}
    for batch in batches:
        assert all(array.shape == (rows, 16) for array in batch.values())
        padding = batch["segment_ids"] == 0
        assert not batch["tokens"][padding].any()
        assert not batch["weight"][padding].any()
        pieces = zip(
            unpack(batch, "tokens"),
            unpack(batch, "weight"),
            unpack(batch, "positions"),
            strict=True,
        )
        for tokens, weight, positions in pieces:
            number = int(tokens[0]) // 100
            np.testing.assert_array_equal(tokens, np.arange(1, len(tokens) + 1) + 100 * number)
            np.testing.assert_array_equal(weight, number + 0.5)
            np.testing.assert_array_equal(positions, np.arange(len(tokens)))
            assert number not in found
            found[number] = len(tokens)
    assert [found[i] for i in range(len(lengths))] == lengths


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(1, 4))
def test_prefixes_cover_the_stream_in_order(lengths, rows):
    given_sequences = sequences(lengths)
    remaining, covered = given_sequences, 0
    while remaining:
        batch, taken, left_over = packing.pack_prefix(iter(remaining), 16, rows)
        assert batch["tokens"].shape == (rows, 16)
        numbers = sorted(int(t[0]) // 100 for t in unpack(batch, "tokens"))
        assert numbers == list(range(covered, covered + taken))
        covered += taken
        remaining = given_sequences[covered:]
        assert left_over is (remaining[0] if remaining else None)
    assert covered == len(lengths)


def test_first_fit_fills_the_first_row_with_room():
    (batch,) = packing.pack(sequences([6, 5, 3, 2, 4]), 8, 3)
    rows = [[int(t) // 100 for t in row if t] for row in batch["tokens"]]
    assert rows == [[0] * 6 + [3] * 2, [1] * 5 + [2] * 3, [4] * 4]


def test_nothing_packs_to_nothing():
    assert packing.pack([], 8, 2) == []


@pytest.mark.parametrize("length", [0, 9])
def test_a_sequence_that_no_row_holds_is_refused(length):
    with pytest.raises(ValueError, match="1 to 8"):
        packing.pack(sequences([length]), 8, 2)
