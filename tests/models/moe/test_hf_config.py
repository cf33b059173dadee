"""config.json in all its spellings: what is read from it, what is refused, what is written back."""

import dataclasses
import json
import math

import jax.numpy as jnp
import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import hf
from tests.doubles import tiny

PLAIN = dict(
    vocab_size=40, hidden_size=32, num_layers=3, num_attention_heads=2, q_lora_rank=8,
    kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, ffn_hidden_size=16,
    expert_ffn_hidden_size=8, n_routed_experts=4, zero_expert_num=2, moe_topk=3,
)  # fmt: skip


def read(**changes):
    return hf.read_config({k: v for k, v in (PLAIN | changes).items() if v != "absent"})


def test_missing_keys_have_the_published_values():
    config = read()
    assert (config.gate_scale, config.rms_norm_eps, config.lora_norm_eps) == (6.0, 1e-5, 1e-6)
    assert (config.rope_theta, config.max_position, config.yarn) == (1e7, 131_072, None)
    assert config.target_ffn_experts == 2.0  # K E / (E + Z)
    assert hf.read_config({}) == dataclasses.replace(
        moe.MoEConfig.flash(), dtype=jnp.float32, param_dtype=jnp.float32
    )
    assert read(zero_expert_num=None).num_zero_experts == 0


@pytest.mark.parametrize(
    "changes",
    [
        dict(intermediate_size=None, moe_intermediate_size=None),
        dict(num_local_experts=None, num_experts_per_tok=None),
        dict(moe_topk=None, num_experts_per_tok=3),
        dict(num_layers=None, num_hidden_layers=6),
        dict(rope_theta=None, rope_parameters={"rope_theta": 1e7}),
        dict(rope_theta=1e7, rope_parameters={"rope_theta": None}),
        dict(quantization_config={}),
        dict(quantization_config=None, rope_scaling=None),
    ],
    ids=str,
)
def test_null_is_no_second_value(changes):
    record = {key: value for key, value in (PLAIN | changes).items() if value != "absent"}
    assert hf.read_config(record) == read()
    assert hf.write_config(read(), record) == record


@pytest.mark.parametrize("kind", ["", None])
def test_no_zero_experts_need_no_type(kind):
    record = PLAIN | dict(zero_expert_num=0, zero_expert_type=kind)
    config = hf.read_config(record)
    assert config.num_zero_experts == 0
    more = dataclasses.replace(config, num_zero_experts=1)
    assert hf.read_config(hf.write_config(more, record)).num_zero_experts == 1


@pytest.mark.parametrize("value", [None, "1e-5", "3", [1], {}, True, float("nan")])
@pytest.mark.parametrize(
    "key", ["rope_theta", "rms_norm_eps", "routed_scaling_factor", "moe_topk", "num_layers"]
)
def test_refuses_what_is_no_number(key, value):
    with pytest.raises(ConfigError, match=key):
        read(**{key: value})


def test_keys_have_several_names():
    assert read(num_layers="absent", num_hidden_layers=6) == read()
    assert read(num_hidden_layers=6) == read(num_hidden_layers=3) == read()
    aliases = dict(num_local_experts=4, num_experts_per_tok=3, intermediate_size=16)
    gone = dict(n_routed_experts="absent", moe_topk="absent", ffn_hidden_size="absent")
    assert read(**aliases, **gone) == read()
    assert read(rope_theta=5.0) == read(rope_parameters={"rope_theta": 5.0, "rope_type": "default"})
    assert read(rope_scaling=None, rope_theta=1e7, head_dim=64, use_cache=True) == read()
    yarn = dict(factor=4, original_max_position_embeddings=16, mscale=1, mscale_all_dim=1)
    old = read(rope_theta=5.0, rope_scaling=yarn | {"type": "yarn"})
    new = read(rope_parameters=yarn | {"rope_type": "yarn", "rope_theta": 5.0})
    assert old == new
    assert old.yarn == moe.YarnScaling(
        factor=4.0, original_max_position=16, mscale=1.0, mscale_all_dim=1.0
    )


@pytest.mark.parametrize(
    "changes",
    [
        dict(rope_scaling={"rope_type": "linear", "factor": 2.0}),
        dict(rope_scaling={"rope_type": "yarn", "factor": 2.0, "truncate": "no"}),
        dict(rope_scaling={"rope_type": "yarn", "factor": 2.0, "surprise": 1}),
        dict(rope_theta=5.0, rope_parameters={"rope_theta": 6.0}),
        dict(rope_parameters={"partial_rotary_factor": 0.5}),
        dict(router_bias=True),
        dict(attention_bias=True),
        dict(tie_word_embeddings=True),
        dict(norm_topk_prob=True),
        dict(hidden_act="gelu"),
        dict(zero_expert_type="constant"),
        dict(model_type="deepseek_v3"),
        dict(mla_scale_q_lora=False),
        dict(num_key_value_heads=1),
        dict(qk_head_dim=13),
        dict(index_topk=2048),
        dict(ngram_vocab_size_ratio=3),
        dict(quantization_config={"bits": 8}),
        dict(intermediate_size=17),
        dict(num_hidden_layers=5),
        dict(num_layers="absent", num_hidden_layers=5),
        dict(moe_topk=99),
        dict(zero_expert_type="", zero_expert_num=2),
        dict(num_hidden_layers="6"),
        dict(qk_nope_head_dim=None, qk_head_dim=12),
        dict(rope_scaling=[]),
        dict(rope_theta=float("inf")),
        dict(num_layers=[3], num_hidden_layers=6),
        dict(rope_scaling={"rope_type": "yarn", "factor": "4"}),
        dict(rope_scaling={"rope_type": "yarn", "factor": [4]}),
        dict(loong_jax=3),
        dict(loong_jax={"target_ffn_experts": "2"}),
        dict(ngram_vocab_size_ratio="3", emb_neighbor_num=3, emb_split_num=2),
        dict(ngram_vocab_size_ratio=3, emb_neighbor_num=3, emb_split_num=2, eos_token_id=[]),
        dict(hidden_size=0),
        dict(rope_scaling={"rope_type": "yarn", "factor": 0}),
        dict(rope_theta=1.0, rope_scaling={"rope_type": "yarn", "factor": 2.0}),
        dict(
            original_max_position_embeddings=32,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 2.0,
                "original_max_position_embeddings": 64,
            },
        ),
        dict(
            rope_scaling={"rope_type": "yarn", "factor": math.e, "mscale": 1, "mscale_all_dim": -10}
        ),
    ],
    ids=str,
)
def test_refuses_models_that_are_not_built_here(changes):
    with pytest.raises(ConfigError):
        read(**changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("routed_scaling_factor", -1.5),
        ("moe_topk", 99),
        ("rope_interleave", False),
        ("scoring_func", "sigmoid"),
        ("n_group", 4),
        ("topk_group", 2),
        ("moe_group_size", 4),
        ("grouped_moe_norm_scale", 2),
        ("mla_use_output_gate", True),
        ("final_logit_softcapping", 30.0),
        ("use_qk_norm", True),
    ],
)
def test_what_is_refused_has_the_name_that_the_file_gives_it(key, value):
    with pytest.raises(ConfigError, match=key):
        read(**{key: value})


def test_a_yarn_record_names_its_type():
    rope = {"factor": 8.0, "original_max_position_embeddings": 32}
    with pytest.raises(ConfigError, match=r"factor=8\.0.*no rope_type"):
        read(rope_scaling=rope)


def test_the_original_length_may_stand_beside_the_rotary_parameters():
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    beside = read(rope_theta=None, rope_parameters=yarn, original_max_position_embeddings=32)
    inside = read(rope_theta=None, rope_parameters=yarn | {"original_max_position_embeddings": 32})
    assert beside == inside
    record = {k: v for k, v in PLAIN.items() if v != "absent"}
    record |= dict(rope_theta=None, rope_parameters=yarn, original_max_position_embeddings=32)
    longer = dataclasses.replace(beside.yarn, original_max_position=64)
    changed = dataclasses.replace(beside, yarn=longer)
    assert hf.read_config(hf.write_config(changed, record)).yarn == longer


def test_configs_survive_their_json():
    yarn = moe.YarnScaling(factor=2.0, original_max_position=64, mscale=0.5, beta_fast=20.0)
    for config in (
        moe.MoEConfig.flash(),
        moe.MoEConfig.lite(),
        moe.MoEConfig.tiny(yarn=yarn, lora_norm_eps=1e-5),
        tiny.smallest_config(chunk_tokens=None, residual_gain=0.5),
    ):
        record = json.loads(json.dumps(hf.write_config(config)))
        back = hf.read_config(record, dtype=config.dtype, param_dtype=config.param_dtype)
        assert back == config
        assert hf.write_config(back, record) == record


def test_a_changed_config_changes_its_own_keys_only():
    record = PLAIN | dict(eos_token_id=2, rope_parameters={"rope_theta": 1e4}, mystery=[1])
    config = hf.read_config(record)
    changed = dataclasses.replace(config, gate_scale=2.0, num_layers=6, rope_theta=2e4)
    written = hf.write_config(changed, record)
    assert hf.read_config(written) == changed
    assert (written["mystery"], written["eos_token_id"]) == ([1], 2)
    assert "rope_parameters" not in written
