"""Loading holds no more memory than the arrays that it makes and a part of one leaf."""

import sys
from pathlib import Path
from typing import Any

import pytest
from flax import nnx

from loong_jax.models import save_hf
from loong_jax.models.dense import DenseConfig, DenseDecoder
from tests import host_memory

FILE_BYTES = 120_000_000  # of every file, more than the slack
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
from flax import nnx
from loong_jax.models import load_hf
from loong_jax.sharding import ShardingRules, make_mesh

def load(directory):
    rules = ShardingRules(mesh=make_mesh(fsdp=4, tensor=2))
    return nnx.to_pure_dict(nnx.split(load_hf(directory, rules=rules), graph=False)[1])
"""


def save(directory: Path, **changes) -> str:
    model = DenseDecoder(DenseConfig(**(SIZES | changes)), rngs=nnx.Rngs(0))
    save_hf(model, directory, max_shard_bytes=FILE_BYTES)
    return str(directory)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_load_holds_its_arrays_and_a_part_of_a_leaf(tmp_path):
    small = save(tmp_path / "small", vocab_size=64, hidden_size=64, ffn_hidden_size=64)
    taken, sizes = host_memory.of_load(LOAD, small, save(tmp_path / "large"))
    assert sum(sizes) > 2 * FILE_BYTES
    assert taken < sum(sizes) + max(sizes) / 8 + host_memory.SLACK
