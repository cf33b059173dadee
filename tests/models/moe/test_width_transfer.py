"""Width transfer: the published rule, and a coordinate check that it holds and is needed."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import moe, parameters
from loong_jax.models.moe import scaling
from tests.doubles import tiny

WIDTHS = (32, 64, 128, 256)


def config_of(width):
    """All widths in proportion; heads grow in number, not in size."""
    return tiny.smallest_config(
        vocab_size=32,
        num_layers=1,
        hidden_size=width,
        num_heads=width // 16,
        q_lora_rank=width // 2,
        kv_lora_rank=width // 2,
        qk_nope_head_dim=12,
        qk_rope_head_dim=4,
        v_head_dim=16,
        ffn_hidden_size=2 * width,
        expert_ffn_hidden_size=width // 2,
        num_mtp_layers=1,
    )


def multipliers(weights, config, proxy):
    """That of every weight."""
    of = scaling.multiplier(config, proxy)
    rates = jax.tree_util.tree_map_with_path(lambda path, _: of(path), weights)
    leaves = parameters.by_path(rates).items()
    assert all(of(path.split("/")) == rate for path, rate in leaves)  # strings say the same
    return rates


def test_widths_in_proportion_give_the_published_rule():
    proxy, config = config_of(32), config_of(256)
    rates = multipliers(moe.abstract_weights(config)[1], config, proxy)
    found = {
        "/".join(entry.key for entry in path): rate
        for path, rate in jax.tree_util.tree_leaves_with_path(rates)
    }
    for name, rate in found.items():
        summed = not ("norm" in name or name.endswith("bias") or name == "embedding")
        assert rate == pytest.approx(1 / 8 if summed else 1), name


def test_each_matrix_follows_the_width_it_sums_over():
    proxy = config_of(32)
    config = dataclasses.replace(proxy, hidden_size=128, ffn_hidden_size=128)
    rates = multipliers(moe.abstract_weights(config)[1], config, proxy)
    layers = rates["layers"]
    assert layers["ffn_0"]["down"] == 1 / 2  # F from 64 to 128
    assert layers["experts"]["down"] == 1  # M as before
    assert layers["attention_0"]["query_up"] == 1 / 2  # rank as before, alpha_q doubled
    assert layers["attention_0"]["query_down"] == 1 / 4
    assert layers["attention_1"]["out"] == 1
    assert rates["mtp"]["projection"] == rates["head"] == 1 / 4


@functools.cache
def compiled(width):
    """Weights, and a function of learning rates per weight: what a few steps of Adam change."""
    config = dataclasses.replace(config_of(width), num_mtp_layers=0)
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 32, (4, 12)).astype(np.int32))

    def loss(weights):
        output = nnx.merge(graphdef, nnx.State(weights))(tokens)
        log_p = jax.nn.log_softmax(output.logits[:, :-1])
        picked = jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1)
        return -jnp.mean(picked), (output.hidden, output.logits)

    @jax.jit
    def changes(rates):
        optimizer = optax.chain(
            optax.scale_by_adam(b1=0.9, b2=0.95, eps=1e-16),
            optax.stateless(lambda grads, _: jax.tree.map(jnp.multiply, grads, rates)),
            optax.scale(-2e-3),
        )

        def step(carry, _):
            weights, state = carry
            gradient, seen = jax.grad(loss, has_aux=True)(weights)
            update, state = optimizer.update(gradient, state, weights)
            return (optax.apply_updates(weights, update), state), seen

        _, seen = jax.lax.scan(step, (weights, optimizer.init(weights)), length=5)
        return jax.tree.map(lambda a: jnp.sqrt(jnp.mean((a[-1] - a[0]) ** 2)), seen)

    return config, weights, changes


def change(width, transfers):
    """Root mean square by which the last states and the logits move."""
    config, weights, changes = compiled(width)
    proxy = config_of(WIDTHS[0]) if transfers else config
    rates = multipliers(weights, config, proxy)
    return np.array([float(a) for a in changes(jax.tree.map(jnp.float32, rates))])


@pytest.mark.release
@pytest.mark.parametrize(
    "widths", [WIDTHS[::3], pytest.param(WIDTHS, marks=pytest.mark.release)], ids=str
)
def test_steps_move_the_states_alike_at_every_width_with_the_rule_only(widths):
    with_rule = np.stack([change(width, True) for width in widths])
    without = np.stack([change(width, False) for width in widths])
    np.testing.assert_allclose(with_rule[0], without[0], rtol=1e-4)
    states, logits = with_rule.T
    assert states.max() / states.min() < 1.2
    assert logits.max() / logits.min() < 8**0.5  # see the module on what is left of growth
    states, logits = without.T
    assert states[-1] / states[0] > 2
    assert logits[-1] / logits[0] > 4


@pytest.mark.parametrize(
    "change",
    [
        dict(num_experts=2),
        dict(num_zero_experts=1),
        dict(num_chosen=2),
        dict(target_ffn_experts=1.5),
        dict(gate_scale=1.0),
        dict(ngram=moe.NgramEmbedding(max_order=2, num_splits=1, base_rows=30)),
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_proxy_that_differs_in_more_than_widths_is_refused(change):
    config = config_of(32)
    with pytest.raises(ConfigError, match=f"{next(iter(change))}=.* differs from the proxy's"):
        scaling.multiplier(config, dataclasses.replace(config, **change))
    deeper = dataclasses.replace(config, num_layers=3, residual_gain=0.5, num_mtp_layers=0)
    assert scaling.multiplier(config, deeper)(("head",)) == 1


@pytest.mark.parametrize(
    "path", [(), ("foo",), ("down",), ("layers", "ffn_0"), "layers/ffn_0/down", ("ngram", "table")]
)
def test_a_path_that_leads_to_no_weight_is_refused(path):
    of = scaling.multiplier(config_of(64), config_of(32))
    with pytest.raises(ValueError, match=re.escape(f"path={path!r} leads to no weight")):
        of(path)


def test_tables_of_n_grams_keep_their_rate_and_what_reads_them_does_not():
    ngram = moe.NgramEmbedding(max_order=3, num_splits=1, base_rows=30)
    wide, narrow = (dataclasses.replace(config_of(width), ngram=ngram) for width in (64, 32))
    of = scaling.multiplier(wide, narrow)
    assert of(("ngram", "table")) == 1
    assert of(("ngram", "projection")) == 0.5
