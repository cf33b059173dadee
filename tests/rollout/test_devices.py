"""Rounded weights: against the formats that they stand for, and where they are used."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models.moe import init_weights
from loong_jax.rollout import devices
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.paged_engine import engine_for
from tests.doubles import tiny


@pytest.mark.parametrize(
    ("bits", "dtype"), [(7, ml_dtypes.bfloat16), (10, np.float16), (3, ml_dtypes.float8_e4m3fn)]
)
def test_rounds_like_the_format_of_so_many_bits(bits, dtype):
    values = np.random.default_rng(0).uniform(0.1, 4.0, (50, 40)).astype(np.float32)
    values[0, :4] = [1 + 2.0 ** -(bits + 1), 1 + 3 * 2.0 ** -(bits + 1), 1.0, 2.0]  # two ties
    found = devices.rounded({"ffn": jnp.asarray(values)}, bits)["ffn"]
    np.testing.assert_array_equal(found, values.astype(dtype).astype(np.float32))


def test_an_engine_loads_rounded_weights_and_routers_keep_theirs():
    config = tiny.smallest_config()
    graphdef, weights = init_weights(config, jax.random.key(0))
    weights = jax.tree.map(lambda a: a + 1e-3, weights)

    def loaded(bits):
        shapes = EngineSettings(
            slots_per_replica=2, cache_length=64, prefill_lengths=(32,), mantissa_bits=bits
        )
        engine = engine_for(graphdef, config, AsciiTokenizer(), shapes)
        return engine.load_params(weights)

    jax.tree.map(np.testing.assert_array_equal, loaded(None), weights)
    coarse_weights = loaded(7)
    for path, found in jax.tree_util.tree_leaves_with_path(coarse_weights):
        name, exact = jax.tree_util.keystr(path), weights
        for entry in path:
            exact = exact[entry.key]
        is_equal = bool((np.asarray(found) == np.asarray(exact)).all())
        assert is_equal == ("router" in name), name
        np.testing.assert_allclose(found, exact, rtol=2**-8)
