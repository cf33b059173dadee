"""What the model takes as arguments, what it refuses by name, and how often it is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loong_jax.models import moe
from loong_jax.models.moe.model import LongcatFlash
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny

CONFIG = tiny.smallest_config(num_layers=1)
TOKENS = np.arange(56).reshape(8, 7)


@pytest.fixture(scope="module")
def model() -> LongcatFlash:
    return LongcatFlash(CONFIG, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "given",
    [
        dict(tokens=TOKENS.tolist()),
        dict(tokens=TOKENS.astype(np.uint8)),
        dict(tokens=TOKENS, mask=np.ones(TOKENS.shape, int)),
        dict(tokens=TOKENS, mask=np.ones(TOKENS.shape).tolist()),
        dict(tokens=TOKENS, positions=np.arange(7)),
        dict(tokens=TOKENS, positions=[list(range(7))]),
        dict(tokens=TOKENS, score_shift=np.zeros((1, CONFIG.num_targets))),
    ],
    ids=str,
)
def test_lists_numbers_of_any_width_and_positions_for_all_rows_are_taken(model, given):
    np.testing.assert_allclose(model(**given).logits, model(TOKENS).logits, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(tokens=TOKENS[0]), r"tokens of shape \(7,\) should be \[B, T\]"),
        (dict(tokens=TOKENS + 0.5), "tokens is of float32"),
        (dict(tokens=[[1, 2], [3]]), "tokens=.* is no array"),
        (dict(tokens=TOKENS, mask=np.ones(7)), r"mask .* \[B=8, T=7\]"),
        (dict(tokens=TOKENS, segment_ids=TOKENS[:1]), r"segment_ids .* \[B=8, T=7\]"),
        (dict(tokens=TOKENS, positions=np.arange(6)), "positions"),
        (dict(tokens=TOKENS, forced_target=np.zeros((8, 7, 3), int)), "forced_target"),
        (dict(tokens=TOKENS, score_shift=np.zeros((2, 6))), r"\[L=1, A=6\]"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_does_not_fit_is_refused_by_name(model, given, said):
    with pytest.raises(ValueError, match=said):
        model(**given)
    with pytest.raises(ValueError, match=said):
        jax.jit(lambda: model(**given))()


def test_one_number_places_all_sequences_in_a_cache(model):
    cache = moe.LatentCache.zeros(CONFIG, 8, 16)
    _, cache = model.prefill(TOKENS[:, :4], cache=cache, start=0)
    _, _, cache = model.extend(TOKENS[:, 4:6], 4, cache)
    logits, cache = model.decode(TOKENS[:, 6], 6, cache)
    np.testing.assert_allclose(logits, model(TOKENS).logits[:, 6], atol=1e-5)
    with pytest.raises(ValueError, match=r"cache.latent of shape .* B=7"):
        model.decode(TOKENS[:7, 6], 6, cache)
    with pytest.raises(ValueError, match="cache is of NoneType"):
        model.decode(TOKENS[:, 6], 6, None)


def test_outside_of_jit_a_shape_is_compiled_once(model, monkeypatch):
    first = model(TOKENS).logits

    def traced_again(*_):
        raise AssertionError("traced again")

    monkeypatch.setattr(LongcatFlash, "_whole", traced_again)
    np.testing.assert_array_equal(model(TOKENS).logits, first)
    with pytest.raises(AssertionError, match="traced again"):
        model(TOKENS[:, :6])


def test_weights_that_changed_are_seen(model):
    other = nnx.clone(model)
    other.head[...] = 2 * other.head[...]
    np.testing.assert_allclose(other(TOKENS).logits, 2 * model(TOKENS).logits, rtol=1e-5)
    gradient = nnx.jit(nnx.grad(lambda model: jnp.sum(model(TOKENS).logits ** 2)))(model)
    assert float(jnp.max(jnp.abs(gradient["head"][...]))) > 0


@pytest.mark.slow
def test_a_model_is_made_on_a_mesh_by_its_class_too(model):
    rules = ShardingRules(mesh=make_mesh(data=2, expert=4))
    on_mesh = LongcatFlash(CONFIG, rngs=nnx.Rngs(0), rules=rules)
    np.testing.assert_allclose(on_mesh(TOKENS).logits, model(TOKENS).logits, atol=2e-5)
