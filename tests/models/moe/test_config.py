"""Settings that are refused, sizes derived from them, parameter counts as published."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import moe, parameters
from loong_jax.models.moe import GatherExchange, MoEConfig, NgramEmbedding
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles import tiny


@pytest.mark.parametrize(
    "change",
    [
        dict(hidden_size=0),
        dict(num_layers=-1),
        dict(num_zero_experts=-1),
        dict(num_chosen=13),
        dict(target_ffn_experts=0.0),
        dict(target_ffn_experts=3.5),
        dict(qk_rope_head_dim=7),
        dict(gate_scale=0.0),
        dict(num_mtp_layers=2),
        dict(num_mtp_layers=-1),
        dict(residual_gain=0.0),
        dict(lora_norm_eps=0.0),
        dict(chunk_tokens=0),
        dict(remat="layers"),
        dict(remat=["residual"]),
        dict(remat=("residuals",)),
        dict(expert_gemm="raged_dot"),
        dict(hidden_size=True),
        dict(exchange="ring"),
        dict(exchange=GatherExchange),
        dict(attention="splash"),
        dict(yarn={"factor": 2.0}),
        dict(ngram=dataclasses.asdict(NgramEmbedding())),
        dict(dtype="float33"),
        dict(dtype=None),
        dict(param_dtype=jnp.int8),
    ],
    ids=str,
)
def test_a_setting_outside_its_rule_is_refused_by_name(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        MoEConfig.tiny(**change)


def test_however_a_dtype_is_named_the_config_is_the_same():
    named = (jnp.bfloat16, "bfloat16", jnp.dtype("bfloat16"))
    assert len({MoEConfig.tiny(dtype=one, param_dtype=one) for one in named}) == 1


def test_published_scales():
    config = MoEConfig.flash()
    assert config.q_scale == 2.0
    assert config.kv_scale == pytest.approx(math.sqrt(12))
    assert config.attention_scale == pytest.approx(1 / math.sqrt(192))
    assert config.num_targets == 768


@pytest.mark.parametrize(
    ("num_experts", "num_zero_experts", "wanted", "met"),
    [(8, 4, 2.0, 2.0), (8, 0, 2.0, 3), (8, 1, 1.0, 2), (2, 4, 3.0, 2)],
)
def test_so_many_experts_are_met_as_choices_can_meet(num_experts, num_zero_experts, wanted, met):
    config = MoEConfig.tiny(
        num_experts=num_experts, num_zero_experts=num_zero_experts, target_ffn_experts=wanted
    )
    assert config.mean_ffn_experts == met


def test_chunks_hold_whole_sequences():
    config = MoEConfig.tiny(chunk_tokens=512)
    assert [config.chunk_rows(t) for t in (128, 100, 600)] == [4, 5, 1]
    assert dataclasses.replace(config, chunk_tokens=None).chunk_rows(128) is None


def test_flash_has_560_billion_parameters_and_27_active():
    config = moe.MoEConfig.flash()
    assert moe.num_params(config) == pytest.approx(560.665e9, rel=1e-6)
    for experts, active in ((0, 18.69e9), (8, 27.15e9), (12, 31.38e9)):
        assert moe.num_active_params(config, experts) == pytest.approx(active, rel=3e-4)
    assert moe.num_active_params(config) == moe.num_active_params(config, 8)
    with_head = moe.MoEConfig.flash(num_mtp_layers=1)
    assert moe.num_params(with_head) - moe.num_params(config) == pytest.approx(0.3926e9, rel=1e-4)
    assert moe.num_active_params(with_head) == moe.num_active_params(config)
    no_identity = moe.MoEConfig.flash(num_zero_experts=0)  # all K choices meet weights
    assert moe.num_active_params(no_identity) == moe.num_active_params(no_identity, 12)


@pytest.mark.parametrize("experts", [-1, 4, 99, float("nan")])
def test_more_experts_than_a_token_can_meet_are_refused(experts):
    config = tiny.smallest_config()
    assert moe.num_active_params(config, 3) > moe.num_active_params(config, 0)
    with pytest.raises(ConfigError, match=rf"ffn_experts={experts} is not in 0\.\.3"):
        moe.num_active_params(config, experts)
    few = tiny.smallest_config(num_experts=2)
    with pytest.raises(ConfigError, match=r"is not in 0\.\.2"):
        moe.num_active_params(few, 3)


def test_lite_has_37_billion_parameters_and_31_in_its_tables():
    config = moe.MoEConfig.lite()
    _, weights = moe.abstract_weights(config)
    tables = sum(leaf.size for leaf in jax.tree.leaves(weights["ngram"]))
    assert tables == pytest.approx(31.42e9, rel=2e-4)
    assert moe.num_params(config) - tables == pytest.approx(37.15e9, rel=2e-4)
    for experts, active in ((0, 2.9e9), (12, 4.5e9)):
        assert moe.num_active_params(config, experts) == pytest.approx(active, rel=0.02)


def test_abstract_weights_are_like_fresh_ones():
    config = tiny.smallest_config(num_mtp_layers=1)
    rules = ShardingRules(mesh=make_mesh(fsdp=2, expert=2))
    _, abstract = moe.abstract_weights(config, rules)
    _, fresh = moe.init_weights(config, jax.random.key(0), rules)
    fresh = parameters.by_path(fresh)
    for path, leaf in parameters.by_path(abstract).items():
        assert (leaf.shape, leaf.dtype) == (fresh[path].shape, fresh[path].dtype)
        assert leaf.sharding.is_equivalent_to(fresh[path].sharding, leaf.ndim)
    assert parameters.as_tree(fresh).keys() == abstract.keys()
