"""Fusing sharded weights on the eight CPU devices of the tests."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from loong_jax import merge
from loong_jax.sharding import make_mesh
from tests.merge import examples

METHODS = {
    name: method
    for name, method in examples.METHODS.items()
    if name not in ("linear", "task_arithmetic", "dare", "nuslerp", "fisher_deltas")
} | {"ram": merge.Ram(threshold=5e-3, boost=0.1)}  # deltas are smaller here


def place(weights):
    mesh = make_mesh(fsdp=4, expert=2)
    sharding = NamedSharding(mesh, PartitionSpec(None, "expert", "fsdp", None))
    return {name: jax.device_put(leaf, sharding) for name, leaf in weights.items()}


@pytest.fixture(scope="module")
def models():
    draw = np.random.default_rng(0)
    base = draw.normal(size=(2, 4, 8, 6)).astype(np.float32)
    deltas = {name: 0.01 * draw.normal(size=base.shape) for name in "abc"}
    return {"up": base}, {n: {"up": (base + d).astype(np.float32)} for n, d in deltas.items()}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_sharded_equals_whole(method, models):
    base, experts = models
    whole = merge.fuse(base, experts, method=method, batch_axes=2)
    sharded = place(base)
    found, report = merge.fuse_with_report(
        sharded, {n: place(e) for n, e in experts.items()}, method=method, batch_axes=2
    )
    assert found["up"].sharding == sharded["up"].sharding
    differs = np.abs(np.asarray(found["up"]) - whole["up"]) > 1e-6
    # Two variances that differ by rounding alone may change places at the cut of SCE's selection.
    assert differs.sum() <= (1 if isinstance(method, merge.Sce) else 0)
    assert 0 < report["global"]["gain"] < 3


def test_names_of_unnamed_experts_do_not_depend_on_the_mesh(models):
    base, experts = models
    whole = merge.fuse(base, list(experts.values()), batch_axes=2)
    found = merge.fuse(place(base), [place(e) for e in experts.values()][::-1], batch_axes=2)
    np.testing.assert_allclose(np.asarray(found["up"]), whole["up"], rtol=0, atol=1e-6)
