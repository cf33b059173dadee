"""The grouped product for Hopper around emulated kernels: masks, gradients, meshes, choice."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe.kernels import expert_gemm, hopper
from loong_jax.sharding import ShardingRules, make_mesh
from tests.models.moe import hopper_kernels
from tests.sweeps import thinned


def test_rows_past_the_groups_are_zero_and_so_are_their_gradients(monkeypatch):
    """The kernels leave NaN there, which must reach nothing; one group is empty."""
    hopper_kernels.emulate(monkeypatch)
    random = np.random.default_rng(0)
    size = np.array([5, 0, 7, 3])
    x, grad = random.normal(size=(20, 6)), random.normal(size=(20, 4))
    weight = random.normal(size=(4, 6, 4))
    arguments = jnp.asarray(x, jnp.float32), jnp.asarray(weight, jnp.float32)
    made, pull = jax.vjp(lambda x, w: hopper.ragged_dot(x, w, jnp.asarray(size)), *arguments)
    grad_x, grad_weight = pull(jnp.asarray(grad, jnp.float32).at[15:].set(jnp.nan))
    expected, expected_x = np.zeros((20, 4)), np.zeros((20, 6))
    expected_weight, start = np.zeros((4, 6, 4)), 0
    for expert, count in enumerate(size):
        rows = slice(start, start + count)
        expected[rows] = x[rows] @ weight[expert]
        expected_x[rows] = grad[rows] @ weight[expert].T
        expected_weight[expert] = x[rows].T @ grad[rows]
        start += count
    pairs = (made, expected), (grad_x, expected_x), (grad_weight, expected_weight)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("capability", "dtype", "widths", "fits"),
    [
        ((9, 0), jnp.bfloat16, (2048, 768), True),
        ((9, 0), jnp.float16, (64,), True),
        ((9, 0), jnp.float32, (2048, 768), False),
        ((9, 0), jnp.bfloat16, (2048, 700), False),
        ((8, 0), jnp.bfloat16, (2048, 768), False),  # Ampere
        ((10, 0), jnp.bfloat16, (2048, 768), False),  # Blackwell
        (None, jnp.bfloat16, (2048, 768), False),
    ],
)
def test_it_fits_hopper_in_sixteen_bits_and_whole_blocks(capability, dtype, widths, fits):
    assert hopper.fits(capability, dtype, *widths) is fits


@pytest.mark.parametrize(("width", "columns"), [(1536, 192), (2048, 128), (320, 64), (10, 64)])
def test_blocks_are_the_widest_that_divide_and_fit_into_registers(width, columns):
    assert hopper._block(width) == columns


def model_of(mesh, **changes):
    config = moe.MoEConfig.tiny(
        **(dict(num_layers=1, chunk_tokens=None, expert_gemm="hopper") | changes)
    )
    return moe.LongcatFlash(config, rngs=nnx.Rngs(0), rules=ShardingRules(mesh=mesh))


def loss(model, tokens):
    return jnp.mean(model(tokens).logits ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", thinned([dict(expert=4, fsdp=2), dict(expert=2, tensor=2, data=2)], 1)
)
def test_a_mesh_gives_the_loss_and_gradients_of_one_device(monkeypatch, sizes):
    hopper_kernels.emulate(monkeypatch)
    tokens = jnp.asarray(np.random.default_rng(0).integers(3, 128, (8, 16)))
    expected = jax.jit(nnx.value_and_grad(loss, graph=False))(
        model_of(None, expert_gemm="blocked"), tokens
    )
    mesh = make_mesh(**sizes)
    with jax.set_mesh(mesh):
        found = jax.jit(nnx.value_and_grad(loss, graph=False))(model_of(mesh), tokens)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=2e-5)


@pytest.mark.parametrize(
    "sizes", [None, pytest.param(dict(expert=2, fsdp=4), marks=pytest.mark.slow)]
)
def test_the_kernels_themselves_can_be_traced_there_and_back(monkeypatch, sizes):
    """So their arguments are what JAX's functions take, and their types fit a mesh."""
    mesh = sizes and make_mesh(**sizes)
    tokens = jnp.zeros((8, 16), jnp.int32)
    with ShardingRules(mesh=mesh).scope():
        model = model_of(mesh, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
        hopper_kernels.pretend_a_gpu(monkeypatch)
        with jax.numpy_rank_promotion("allow"):  # JAX's own kernels rely on it
            text = str(jax.make_jaxpr(nnx.grad(loss, graph=False))(model, tokens))
    assert len(re.findall(r"kernel|mosaic|mpmd_map", text)) >= 6


def test_asked_for_where_it_does_not_fit_it_is_refused():
    model = model_of(None, dtype=jnp.float32)
    with pytest.raises(ConfigError, match=r"expert_gemm='hopper'.*float32.*Use 'auto'"):
        model(jnp.zeros((1, 4), jnp.int32))


def test_on_hopper_rows_beyond_a_tile_are_grouped_and_fewer_meet_each_expert():
    choose = expert_gemm.choose
    sizes: dict = dict(num_experts=64, on_hopper=True)
    assert choose("auto", "gpu", num_rows=4096, num_choices=24_576, **sizes) == "hopper"
    assert choose("auto", "gpu", num_rows=128, num_choices=768, **sizes) == "each"
    assert choose("auto", "gpu", num_rows=4, num_choices=24, **sizes) == "hopper"
    sizes = dict(num_experts=64, on_hopper=False)
    assert choose("auto", "gpu", num_rows=4096, num_choices=24_576, **sizes) == "blocked"
    assert choose("auto", "gpu", num_rows=4, num_choices=24, **sizes) == "each"
