"""The decode kernels, interpreted, against float64, and in place of a decode's two products."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import decoder, moe
from loong_jax.models.moe.attention import AXES
from loong_jax.models.moe.kernels import latent_kernel, latent_split
from loong_jax.sharding import ShardingRules, make_mesh
from tests.sweeps import thinned


def exact(query, rope_query, latent, rope_key, position):
    """The attention in float64 over entries up to each query's position."""
    score = np.einsum("bntc,bsc->bnts", query, latent)
    score += np.einsum("bntr,bsr->bnts", rope_query, rope_key)
    hidden = np.arange(latent.shape[1])[None, None, None] > position[:, None, :, None]
    weight = np.exp(np.where(hidden, -np.inf, score - score.max(-1, keepdims=True)))
    return np.einsum("bnts,bsc->bntc", weight / weight.sum(-1, keepdims=True), latent)


def problem(dtype, heads, num_tokens, rank, rope, capacity, block):
    """Arguments of a kernel for one attention of a cache, and what it should make of them.

    Sequences end with their first tokens, in the middle and with the cache; whole blocks past
    their ends are NaN.
    """
    random = np.random.default_rng(0)
    batch, layer, sub_layer = 3, 1, 1

    def draw(*shape, scale=1.0):
        return jnp.asarray(scale * random.normal(size=shape), dtype)

    query = draw(batch, heads, num_tokens, rank, scale=3 * rank**-0.5)
    rope_query = draw(batch, heads, num_tokens, rope, scale=3 * rope**-0.5)
    latent, rope_key = (draw(2, 2, batch, capacity, width) for width in (rank, rope))
    last = np.array([num_tokens - 1, capacity // 2, capacity - 1])
    position = last[:, None] + jnp.arange(num_tokens)[None] - (num_tokens - 1)
    unseen = np.arange(capacity)[None] >= (last[:, None] // block + 1) * block
    poisoned = (jnp.where(unseen[..., None], jnp.nan, a) for a in (latent, rope_key))
    expected = exact(
        *(np.asarray(a, np.float64) for a in (query, rope_query)),
        *(np.asarray(a[layer, sub_layer], np.float64) for a in (latent, rope_key)),
        np.asarray(position),
    )
    return (query, rope_query, *poisoned, jnp.int32(layer), sub_layer, position), expected


def check(mixed, expected, tolerance):
    error = np.abs(np.asarray(mixed, np.float64) - expected).max()
    assert error < tolerance * np.abs(expected).max()


@pytest.mark.parametrize(
    ("dtype", "heads", "num_tokens", "rope", "capacity", "tolerance"),
    thinned([(jnp.float32, 2, 2, 6, 1280, 1e-6), (jnp.bfloat16, 64, 3, 64, 1664, 1e-2)], 0),
)
def test_equals_float64_and_reads_no_block_past_the_last_entry(
    dtype, heads, num_tokens, rope, capacity, tolerance
):
    rank = 128
    block = latent_kernel._block(capacity, heads * num_tokens)
    assert block < capacity
    arguments, expected = problem(dtype, heads, num_tokens, rank, rope, capacity, block)
    check(latent_kernel.attend(*arguments, interpret=True), expected, tolerance)


SPLITS = [
    (jnp.float32, 5, 2, 192, 1e-6),  # rows of one program, some of them of no query
    (jnp.float32, 16, 1, 96, 1e-6),  # blocks of 32
    (jnp.bfloat16, 24, 1, 1280, 1e-2),  # two programs for the rows of a sequence
]


@pytest.mark.parametrize(
    ("dtype", "heads", "num_tokens", "capacity", "tolerance"), thinned(SPLITS, 1, 2)
)
def test_the_kernel_for_gpus_equals_float64_and_joins_its_splits(
    dtype, heads, num_tokens, capacity, tolerance
):
    """Sequences that end in the first split, in the middle of one and with the cache."""
    rank, rope = 64, 16
    assert latent_split.fits((9, 0), dtype, capacity, rank, rope)
    block = 64 if capacity % 64 == 0 else 32
    programs = 3 * -(-heads * num_tokens // 16)
    assert latent_split._split_length(capacity, block, programs) < capacity
    arguments, expected = problem(dtype, heads, num_tokens, rank, rope, capacity, block)
    check(latent_split.attend(*arguments, interpret=True), expected, tolerance)


@pytest.mark.parametrize(
    ("capability", "dtype", "capacity", "rank", "rope", "fits"),
    [
        ((9, 0), jnp.bfloat16, 5120, 512, 64, True),
        ((8, 0), jnp.bfloat16, 5152, 512, 64, True),
        ((9, 0), jnp.bfloat16, 5130, 512, 64, False),
        ((9, 0), jnp.bfloat16, 5120, 384, 64, False),
        ((9, 0), jnp.bfloat16, 5120, 512, 8, False),
        ((7, 5), jnp.bfloat16, 5120, 512, 64, False),
        (None, jnp.bfloat16, 5120, 512, 64, False),
        # as compiled for H100, A100, L4 and RTX 5090
        ((9, 0), jnp.float32, 5120, 512, 64, True),
        ((9, 0), jnp.bfloat16, 5120, 1024, 64, True),
        ((9, 0), jnp.bfloat16, 5120, 2048, 64, False),
        ((8, 0), jnp.float32, 5120, 512, 64, False),
        ((8, 9), jnp.bfloat16, 5120, 512, 64, True),
        ((8, 9), jnp.float32, 5120, 512, 64, False),
        ((12, 0), jnp.bfloat16, 5120, 512, 64, True),
        ((12, 0), jnp.bfloat16, 5120, 1024, 64, False),
    ],
)
def test_the_kernel_for_gpus_wants_powers_of_two_whole_blocks_and_room(
    capability, dtype, capacity, rank, rope, fits
):
    assert latent_split.fits(capability, dtype, capacity, rank, rope) is fits


def test_without_pallas_triton_the_kernel_for_gpus_fits_nothing(monkeypatch):
    monkeypatch.setattr(latent_split, "_TRITON", "jax.experimental.pallas.no_such_module")
    assert not latent_split.fits((9, 0), jnp.bfloat16, 5120, 512, 64)


KERNELS = {"tpu": latent_kernel, "gpu": latent_split}
DECODES = [
    pytest.param({}, "gpu", marks=pytest.mark.slow),
    ({}, "tpu"),
    (dict(expert=2, tensor=2), "gpu"),
    (dict(expert=2, tensor=2), "tpu"),
]


@pytest.mark.parametrize(("sizes", "platform"), thinned(DECODES, 0))
def test_a_decode_goes_through_the_kernel_of_its_platform(monkeypatch, sizes, platform):
    """The same logits and cache as through two products, with heads and sequences cut or not."""
    kernel = KERNELS[platform]
    config = dataclasses.replace(
        moe.MoEConfig.tiny(), num_layers=2, kv_lora_rank=128, expert_gemm="blocked"
    )
    mesh = make_mesh(**sizes)
    rules, batch = ShardingRules(mesh=mesh), 4
    tokens = jnp.asarray(np.random.default_rng(1).integers(3, config.vocab_size, (batch, 3)))
    positions = jnp.array([0, 5, 60, 125])

    def extend():
        model = moe.LongcatFlash(config, rngs=nnx.Rngs(0), rules=rules)
        cache = moe.LatentCache.zeros(config, batch, 128)
        earlier = jnp.sin(jnp.arange(cache.latent.size)).reshape(cache.latent.shape)
        cache = decoder.placed(cache._replace(latent=earlier), AXES, rules)
        return model.extend(tokens, positions, cache)

    ran, attend = [], functools.partial(kernel.attend, interpret=True)
    with jax.set_mesh(mesh):
        expected = jax.jit(lambda: extend())()
        monkeypatch.setattr(ShardingRules, "platform", platform)
        capability = (9, 0) if platform == "gpu" else None
        monkeypatch.setattr(ShardingRules, "compute_capability", capability)
        monkeypatch.setattr(kernel, "attend", lambda *a: ran.append(a[5]) or attend(*a))
        found = jax.jit(lambda: extend())()
    assert ran == [0, 1]
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=3e-6, rtol=0)
