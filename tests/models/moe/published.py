"""The fixture in the published layout, as a model and as tensors.

It is written by tests/peers/make_longcat_fixture.py.
"""

import functools
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy
from flax import nnx

from loong_jax.models import moe, parameters
from loong_jax.models.hf import reading

PUBLISHED = Path(__file__).parent / "fixtures" / "published"


def tensors_of(directory) -> dict[str, np.ndarray]:
    """Every tensor by safetensors' own reader, and its dtype."""
    found = {}
    for file in sorted(Path(directory).glob("*.safetensors")):
        found |= safetensors.numpy.load_file(file)
    return found


def assert_same_bytes(a: dict[str, np.ndarray], b: dict[str, np.ndarray]):
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].dtype, a[name].shape) == (b[name].dtype, b[name].shape), name
        assert a[name].tobytes() == b[name].tobytes(), name


def leaves_of(model) -> dict[str, jax.Array]:
    return parameters.by_path(nnx.to_pure_dict(nnx.split(model, graph=False)[1]))


def watch_reads(monkeypatch) -> list[tuple]:
    """Leaf, region and bytes of every block that is read from now on."""
    blocks, read = [], reading.Reader.read

    def watched(self, leaf, region, dtype):
        block = read(self, leaf, region, dtype)
        blocks.append((leaf, region, block.nbytes))
        return block

    monkeypatch.setattr(reading.Reader, "read", watched)
    return blocks


@functools.cache
def published():
    return moe.load_hf(PUBLISHED)
