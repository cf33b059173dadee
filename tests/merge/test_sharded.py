"""Fusing sharded weights on eight forced CPU devices, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from loong_jax import merge
from loong_jax.sharding import make_mesh

assert len(jax.devices()) == 8
mesh = make_mesh(fsdp=4, expert=2)
spec = P(None, "expert", "fsdp", None)
draw = np.random.default_rng(0)
base = {"up": draw.normal(size=(2, 4, 8, 6)).astype(np.float32)}
experts = {
    name: {"up": base["up"] + 0.01 * draw.normal(size=(2, 4, 8, 6)).astype(np.float32)}
    for name in "abc"
}
place = lambda tree: {"up": jax.device_put(tree["up"], NamedSharding(mesh, spec))}
for method in (
    merge.LongcatFusion(keep_rate=0.5, rescale="l1", normalise="per_tensor"),
    merge.LongcatFusion(),
    merge.Ties(density=0.3),
    merge.Sce(select_rate=0.5),
):
    whole = merge.fuse(base, experts, method=method, batch_axes=2)
    sharded = place(base)
    found, report = merge.fuse_with_report(
        sharded, {n: place(e) for n, e in experts.items()}, method=method, batch_axes=2
    )
    assert found["up"].sharding == sharded["up"].sharding, found["up"].sharding
    np.testing.assert_allclose(np.asarray(found["up"]), whole["up"], rtol=0, atol=1e-6)
    assert 0 < report["global"]["gain"] < 2
a, b = ([place(e) for e in list(experts.values())[::s]] for s in (1, -1))
one, other, plain = (merge.fuse(*x)["up"] for x in (
    (sharded, a), (sharded, b), (base, list(experts.values()))))
assert np.array_equal(one, other)
np.testing.assert_allclose(np.asarray(one), plain, rtol=0, atol=1e-6)
print("same")
"""


def test_sharded_equals_whole():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout.strip() == "same", done.stderr
