"""Settings that are refused, and the sizes derived from them."""

import dataclasses
import math

import jax.numpy as jnp
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models.moe import GatherExchange, MoEConfig, NgramEmbedding


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
