"""The drafting head against a NumPy reference, over a cache, packed, on a mesh, and its loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import mtp
from loong_jax.models.moe.attention import Latent
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny
from tests.models.moe import reference, test_model
from tests.models.moe.test_model import call, fresh
from tests.sweeps import thinned

CONFIG = tiny.smallest_config(num_mtp_layers=1, num_layers=1, vocab_size=40, lora_norm_eps=1e-2)


def random_tokens(*shape, seed=0):
    return test_model.random_tokens(*shape, seed=seed) % CONFIG.vocab_size


def draft_all(graphdef, weights, tokens, **kwargs):
    output = call(graphdef)(weights, tokens, **kwargs)
    next_tokens = mtp.shift_left(jnp.asarray(tokens))
    return output, *call(graphdef, "draft")(weights, output.hidden, next_tokens, **kwargs)


def test_drafts_follow_the_equations():
    graphdef, weights = fresh(CONFIG)
    tokens = random_tokens(2, 7)
    output, logits, _ = draft_all(graphdef, weights, tokens)
    for b, row in enumerate(tokens):
        hidden, _ = reference.states(weights, row, CONFIG)
        np.testing.assert_allclose(output.hidden[b], hidden, rtol=0, atol=2e-5)
        expected = reference.draft(weights, hidden, np.append(row[1:], 0), CONFIG)
        rms = np.sqrt((expected**2).mean())
        np.testing.assert_allclose(logits[b], expected, rtol=0, atol=2e-5 * max(1, rms))

    head = weights["mtp"]
    swapped = jnp.roll(head["projection"], CONFIG.hidden_size, axis=0)
    other = reference.draft(
        {**weights, "mtp": {**head, "projection": swapped}}, hidden, row, CONFIG
    )
    assert abs(other - expected).max() > 1


def test_the_head_is_absent_by_default_and_does_not_move_other_weights():
    _, weights = moe.init_weights(CONFIG, jax.random.key(1))
    _, without = moe.init_weights(
        tiny.smallest_config(num_layers=1, vocab_size=40), jax.random.key(1)
    )
    graphdef, other = fresh(tiny.smallest_config())
    with pytest.raises(ConfigError, match="num_mtp_layers=0"):
        call(graphdef, "draft")(other, jnp.zeros((1, 2, 32)), jnp.zeros((1, 2), jnp.int32))
    head = weights.pop("mtp")
    jax.tree.map(np.testing.assert_array_equal, weights, without)
    width = CONFIG.hidden_size
    assert head["projection"].shape == (2 * width, width)
    assert head["final_norm"].shape == head["embedding_norm"].shape == (width,)
    assert head["ffn"]["gate"].shape == (1, width, CONFIG.ffn_hidden_size)


def test_drafts_over_a_cache_equal_those_over_whole_rows_and_wrong_rows_are_overwritten():
    graphdef, weights = fresh(CONFIG)
    tokens = random_tokens(2, 7)
    output, expected, _ = draft_all(graphdef, weights, tokens)
    next_tokens = np.asarray(mtp.shift_left(jnp.asarray(tokens)))
    extend = call(graphdef, "draft_extend")
    cache = Latent(
        jnp.full((2, 8, CONFIG.kv_lora_rank), 1e3), jnp.full((2, 8, CONFIG.qk_rope_head_dim), 1e3)
    )
    start = np.zeros(2, np.int32)
    for kept in ([1, 2], [2, 1], [2, 2], [1, 1]):
        at = start[:, None] + np.arange(2)[None]
        rows = np.arange(2)[:, None]
        given = next_tokens[rows, at].copy()
        for b in range(2):
            if kept[b] == 1:
                given[b, 1] = (given[b, 1] + 1) % CONFIG.vocab_size  # rejected
        logits, cache = extend(weights, output.hidden[rows, at], given, start, cache)
        for b in range(2):
            for t in range(kept[b]):
                np.testing.assert_allclose(
                    logits[b, t], expected[b, start[b] + t], rtol=0, atol=5e-5
                )
        start = start + np.array(kept, np.int32)


@pytest.mark.slow
def test_drafts_of_packed_rows_equal_separate_ones():
    graphdef, weights = fresh(CONFIG)
    first, second = random_tokens(4), random_tokens(3, seed=1)
    tokens = np.concatenate([first, second])[None]
    segments = np.array([[1] * 4 + [2] * 3])
    _, packed, _ = draft_all(graphdef, weights, tokens, segment_ids=segments)
    _, alone, _ = draft_all(graphdef, weights, np.array([[*second, 0, 0, 0, 0]], np.int32))
    np.testing.assert_allclose(packed[0, 4:6], alone[0, :2], rtol=0, atol=5e-5)


MESHES = [
    pytest.param(dict(fsdp=2, tensor=2, expert=2), marks=pytest.mark.slow),
    dict(data=4, context=2),
]


@pytest.mark.parametrize("sizes", thinned(MESHES, 0), ids=str)
def test_sharded_drafts_equal_single_device(sizes):
    graphdef, weights = fresh(CONFIG)
    tokens = random_tokens(4, 6)
    _, expected, _ = draft_all(graphdef, weights, tokens)
    rules = ShardingRules(mesh=make_mesh(**sizes))
    sharded, placed = tiny.on_mesh(CONFIG, rules, weights)
    output, logits, _ = draft_all(sharded, placed, tokens)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=5e-5)
    rank = (CONFIG.kv_lora_rank, CONFIG.qk_rope_head_dim)
    cache = Latent(*(rules.place(jnp.zeros((4, 6, w)), "act_batch", None, None) for w in rank))
    hidden, positions = np.asarray(output.hidden)[:, :2], np.zeros(4, np.int32)
    logits, _ = call(sharded, "draft_extend")(placed, hidden, tokens[:, 1:3], positions, cache)
    np.testing.assert_allclose(logits, expected[:, :2], rtol=0, atol=5e-5)


def test_rows_count_whose_next_two_tokens_are_of_their_segment():
    segments = jnp.asarray([[1, 1, 1, 1, 2, 2], [1, 1, 2, 2, 2, 0]])
    counted = mtp.drafted_rows(segments)
    assert np.argwhere(np.asarray(counted)).tolist() == [[0, 0], [0, 1], [1, 2]]
    wanted = jnp.zeros((2, 6), bool).at[0, 3].set(True)  # the second of the two is under the mask
    assert np.argwhere(np.asarray(mtp.drafted_rows(segments, wanted))).tolist() == [[0, 1]]
