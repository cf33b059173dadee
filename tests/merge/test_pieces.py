"""Pieces: kept memory is never seen by two readers, sums are those of NumPy."""

import concurrent.futures

import ml_dtypes
import numpy as np
import pytest

from loong_jax.merge import pieces
from loong_jax.merge.methods import method
from loong_jax.merge.methods.method import Piece


class Stored:
    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, start, stop, into=None):
        part = self.array.reshape(-1)[start:stop]
        if into is None:
            return part.copy()
        into[:] = part
        return into


@pytest.mark.parametrize("wrap", [np.asarray, Stored])
def test_pieces_are_padded_with_zeros_whatever_was_read_before(wrap):
    array = np.arange(1, 6001, dtype=np.float32)
    read = pieces.PieceReader(wrap(array))
    for start, stop in ((0, 4096), (4096, 6000), (10, 20), (0, 6000), (5, 1029)):
        found = read(start, stop)
        assert len(found) == pieces.padded_length(stop - start) >= stop - start
        np.testing.assert_array_equal(found[: stop - start], array[start:stop])
        assert not found[stop - start :].any()


def test_stored_pieces_share_memory_within_a_thread_and_not_between_threads():
    array = np.arange(4096, dtype=np.float32)
    read = pieces.PieceReader(Stored(array))
    first = read(0, 2048)
    assert np.shares_memory(first, read(2048, 4096))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(read, 0, 2048).result()
    assert not np.shares_memory(first, other)
    assert first.ctypes.data % 64 == other.ctypes.data % 64 == 0  # XLA reads it in place


@pytest.mark.parametrize("length", [1024, 4096, 1 << 17])
def test_products_add_up_as_in_float64(length):
    draw = np.random.default_rng(length)
    base, *experts = (
        pieces.padded((1 + draw.standard_normal(length)).astype(ml_dtypes.bfloat16))
        for _ in range(4)
    )
    wide = [np.asarray(x, np.float64) - np.asarray(base, np.float64) for x in experts]
    found = np.asarray(method.products(Piece(base, tuple(experts))), np.float64).sum(-1)
    pairs = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    np.testing.assert_allclose(found, [wide[i] @ wide[j] for i, j in pairs], rtol=1e-6)
