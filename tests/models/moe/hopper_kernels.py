"""JAX's grouped kernels for Hopper in plain JAX: what they promise, and NaN where they do not."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu, transposed_ragged_dot_mgpu

from loong_jax.models.moe.kernels import hopper


def emulate(monkeypatch):
    """Puts these in the place of the kernels, and says that any matrix fits."""
    monkeypatch.setattr(hopper, "fits", lambda *_: True)
    monkeypatch.setattr(ragged_dot_mgpu, "ragged_dot", product)
    monkeypatch.setattr(transposed_ragged_dot_mgpu, "transposed_ragged_dot", transposed_product)


def pretend_a_gpu(monkeypatch):
    """So that a program with the kernels themselves can be traced, though not compiled."""
    monkeypatch.setattr(hopper, "fits", lambda *_: True)
    monkeypatch.setattr(jax, "devices", lambda *_: [SimpleNamespace(core_count=132)])


def product(x, weight, *, group_sizes, transpose_rhs, block_m, block_n, block_k, **_):
    width = weight.shape[1 if transpose_rhs else 2]
    assert (block_m, block_k) == (128, 64)
    assert len(x) >= block_m
    assert len(x) % 8 == 0  # else it does not lower
    assert block_n in (64, 128, 192)
    assert width % block_n == 0 or width % 64  # widths of tests may be smaller than a block
    if transpose_rhs:
        weight = jnp.swapaxes(weight, 1, 2)
    is_of_RE = _is_of(group_sizes, len(x))
    made = jnp.einsum("RK,EKN,RE->RN", x, weight, is_of_RE.astype(x.dtype))
    return jnp.where(is_of_RE.any(1)[:, None], made, jnp.nan)


def transposed_product(x, grad, *, group_sizes, **_):
    """Of rows outside a group the real kernel reads some, and only those of `x` does it mask."""
    assert len(x) % 8 == len(grad) % 8 == 0
    is_of_RE = _is_of(group_sizes, len(x)).astype(x.dtype)
    return jnp.einsum("RK,RN,RE->EKN", x, grad, is_of_RE)


def _is_of(size_E, num_rows):
    end_1E = jnp.cumsum(size_E)[None]
    row_R1 = jnp.arange(num_rows)[:, None]
    return (row_R1 >= end_1E - size_E[None]) & (row_R1 < end_1E)
