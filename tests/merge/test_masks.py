"""Dropout masks: what they depend on, written again with Python integers."""

import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.merge import tree

SIZE = 2**32


def mix(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B % SIZE
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % SIZE
    return x ^ (x >> 16)


def bits(key, position):
    return mix((mix(position ^ key[0]) + key[1]) % SIZE)


def fold(key, index):
    return bits(key, 2 * index), bits(key, 2 * index + 1)


def by_hand(key, shape, batch_axes, rate):
    kept = np.zeros(shape, bool)
    for place in np.ndindex(shape):
        own = key
        for index in place[:batch_axes]:
            own = fold(own, index)
        position = 0
        for index, size in zip(place[batch_axes:], shape[batch_axes:], strict=True):
            position = position * size + index
        kept[place] = (bits(own, position) >> 8) * 2.0**-24 < rate
    return kept


def drawn(key, rate, shape, batch_axes):
    """The mask of every matrix of a stack, in two runs."""
    found = np.zeros(shape, bool)
    for place in np.ndindex(shape[:batch_axes]):
        size = found[place].size
        own, cut = jnp.asarray(tree.matrix_key(key, place)), size // 3
        runs = [tree.keep_run(own, rate, 0, cut), tree.keep_run(own, rate, cut, size - cut)]
        found[place] = np.concatenate(runs).reshape(shape[batch_axes:])
    return found


@pytest.mark.parametrize("batch_axes", [0, 1, 2])
def test_mask_by_hand(batch_axes):
    key, shape = tree.leaf_key(7, "layers/up", "code"), (2, 3, 4, 5)
    found = drawn(key, 0.3, shape, batch_axes)
    assert np.array_equal(found, by_hand(tuple(map(int, key)), shape, batch_axes, 0.3))


def test_integer_keys_of_a_path_are_places_in_a_stack():
    key = tuple(map(int, tree.leaf_key(7, "layers/up", "code")))
    assert tuple(tree.leaf_key(7, "layers/3/up", "code")) == fold(key, 3)


def test_key_is_the_same_in_every_release():
    assert tree.leaf_key(0, "layers/experts/up", "stem").tolist() == [4007134399, 4109671532]


def test_masks_are_independent_and_of_the_right_rate():
    found = [
        drawn(tree.leaf_key(seed, path, name), 0.25, (4, 200, 250), 1)
        for seed, path, name in ((0, "a", "x"), (1, "a", "x"), (0, "b", "x"), (0, "a", "y"))
    ]
    rows = np.stack([matrix.ravel() for mask in found for matrix in mask]).astype(float)
    # Sixteen masks of 50,000 entries: five standard errors of a mean and of a correlation.
    assert np.abs(rows.mean(axis=1) - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 50_000)
    correlation = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlation).max() < 5 / np.sqrt(50_000)
    neighbours = [np.corrcoef(row[:-step], row[step:])[0, 1] for row in rows for step in (1, 250)]
    assert np.abs(neighbours).max() < 5 / np.sqrt(50_000)


def test_rate_of_one_keeps_everything():
    assert drawn(tree.leaf_key(0, "a", "x"), 1.0, (300, 300), 0).all()


def test_fingerprint_sees_values_and_places_but_not_stacking():
    draw = np.random.default_rng(0)
    stacked = {"layers/up": draw.normal(size=(2, 3, 4)).astype(np.float32)}
    apart = {f"layers/{i}/up": stacked["layers/up"][i] for i in range(2)}
    name = tree.fingerprint(stacked, 1)
    assert name == tree.fingerprint(apart, 0)
    assert name != tree.fingerprint({"layers/up": stacked["layers/up"][::-1]}, 1)
    assert name != tree.fingerprint({"layers/up": stacked["layers/up"][:, ::-1]}, 1)
    assert name != tree.fingerprint({"layers/up": np.nextafter(stacked["layers/up"], 9)}, 1)
