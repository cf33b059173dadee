"""Loading holds no more memory than the arrays that it makes and a part of one leaf.

Devices of a mesh are made of the CPU, so their memory is the host's: what a load takes at its peak
is the arrays and whatever else it holds beside them.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from flax import nnx

from loong_jax.models import save_hf
from loong_jax.models.dense import DenseConfig, DenseDecoder

SLACK = 48e6  # bytes, of what is compiled and read on the way; every file is larger
FILE_BYTES = 120_000_000
SIZES: dict[str, Any] = dict(  # 269 million bytes of weights, the largest leaf 67
    vocab_size=16_384,
    hidden_size=1024,
    ffn_hidden_size=4096,
    num_layers=2,
    num_heads=8,
    num_kv_heads=8,
    head_dim=128,
    max_position=64,
    tied=False,
)
LOAD = """
import json, sys
import jax
from flax import nnx
from loong_jax.models import load_hf
from loong_jax.sharding import ShardingRules, make_mesh

rules = ShardingRules(mesh=make_mesh(fsdp=4, tensor=2))

for directory in sys.argv[1:]:  # a small one first, so that all is imported
    print("begins", flush=True)
    sys.stdin.readline()
    state = nnx.split(load_hf(directory, rules=rules), graph=False)[1]
    arrays = jax.block_until_ready(jax.tree.leaves(nnx.to_pure_dict(state)))
print(json.dumps([a.nbytes for a in arrays]), flush=True)
"""


def resident_bytes(pid: int) -> int:
    """Without the pages of mapped files, which the kernel takes back as it likes."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(found[1]) if found else 0


def save(directory: Path, **changes) -> str:
    model = DenseDecoder(DenseConfig(**(SIZES | changes)), rngs=nnx.Rngs(0))
    save_hf(model, directory, max_shard_bytes=FILE_BYTES)
    return str(directory)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_load_holds_its_arrays_and_a_part_of_a_leaf(tmp_path):
    small = save(tmp_path / "small", vocab_size=64, hidden_size=64, ffn_hidden_size=64)
    large = save(tmp_path / "large")
    child = subprocess.Popen(
        [sys.executable, "-c", LOAD, small, large],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    before = peak = 0
    for _ in range(2):
        assert child.stdout.readline() == "begins\n"
        before = peak = resident_bytes(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
    while child.poll() is None:
        peak = max(peak, resident_bytes(child.pid))
        time.sleep(0.001)
    sizes = json.loads(child.stdout.readline())
    assert sum(sizes) > 2 * FILE_BYTES
    assert peak - before < sum(sizes) + max(sizes) / 8 + SLACK
