"""config.json of dense decoders: read, refused by name, written back."""

import dataclasses

import pytest

from loong_jax.errors import ConfigError
from loong_jax.models import rope
from loong_jax.models.dense import DenseConfig, hf
from loong_jax.models.hf import publication_of

PLAIN = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=60, hidden_size=24,
    intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    rms_norm_eps=1e-5, rope_theta=1e4, hidden_act="silu",
)  # fmt: skip
WINDOWED = dict(
    architectures=["Qwen2ForCausalLM"], model_type="qwen2", sliding_window=512,
    use_sliding_window=True,
)  # fmt: skip
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)


def read(**changes) -> DenseConfig:
    return hf.read_config(PLAIN | changes)


def test_missing_keys_have_the_defaults_of_the_architecture():
    assert (read().head_dim, read().tied, read(num_key_value_heads=None).num_kv_heads) == (
        6,
        False,
        4,
    )
    qwen2 = read(architectures=["Qwen2ForCausalLM"], model_type="qwen2")
    qwen3 = read(architectures=None, model_type="qwen3")
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.max_position) == (True, False, 32_768)
    assert (qwen3.qk_norm, qwen3.qkv_bias, qwen3.head_dim) == (True, False, 128)
    assert read(attention_bias=True, mlp_bias=True).ffn_bias


def test_rotary_positions_are_read_in_both_layouts():
    old = read(rope_scaling=YARN, max_position_embeddings=128)
    new = read(rope_theta=None, rope_parameters=YARN | {"rope_theta": 1e4})
    assert old.rope == new.rope
    assert isinstance(old.rope, rope.YarnScaling)
    assert old.rope.pair_scale == pytest.approx(1.1386294361119891)
    assert read(rope_scaling={"type": "linear", "factor": 2}).rope == rope.LinearScaling(factor=2.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(architectures=["MistralForCausalLM"], model_type="mistral"), "MistralForCausalLM"),
        (dict(architectures=["Qwen2MoeForCausalLM"], model_type="qwen2_moe"), "Qwen2Moe"),
        (dict(architectures=None, model_type="gemma2"), "gemma2"),
        (dict(architectures=["LlamaForSequenceClassification"]), "SequenceClassification"),
    ],
)
def test_models_of_other_architectures_are_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        publication_of(PLAIN | changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(model_type="qwen2"), "qwen2"),
        (dict(hidden_act="gelu"), "gelu"),
        (dict(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "dynamic"),
        (dict(rope_scaling={"rope_type": "llama3"}), "factor"),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
        (dict(sliding_window=512), "sliding_window"),
        (dict(layer_types=["full_attention", "sliding_attention"]), "sliding_attention"),
        (dict(layer_types=3), "layer_types=3, and it is a list"),
        (dict(sliding_window=512, max_position_embeddings="x"), "max_position_embeddings='x'"),
        (WINDOWED | dict(max_window_layers="x"), "max_window_layers='x'"),
        (WINDOWED | dict(max_window_layers=1), "sliding_window=512"),
        (dict(num_key_value_heads=3), "num_key_value_heads"),
        (dict(hidden_size=26), "head_dim"),
        (dict(head_dim=7), "head_dim"),
        (dict(vocab_size="60"), "vocab_size"),
        (dict(tie_word_embeddings="yes"), "tie_word_embeddings"),
        (dict(rms_norm_eps=0), "rms_norm_eps"),
        (dict(num_hidden_layers=None), "num_hidden_layers"),
    ],
)
def test_what_is_not_built_or_no_value_is_refused_by_name(changes, named):
    with pytest.raises(ConfigError, match=named):
        read(**changes)


def test_windows_that_are_not_in_use_are_fine():
    qwen = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", sliding_window=512)
    read(**qwen)
    read(**qwen, use_sliding_window=True, max_window_layers=2)
    read(sliding_window=4096, max_position_embeddings=4096)
    read(layer_types=["full_attention"] * 2)


@pytest.mark.parametrize(
    "config",
    [
        DenseConfig.smollm2(),
        DenseConfig.tiny(qk_norm=True, out_bias=True, tied=False),
        DenseConfig.tiny(
            rope=rope.YarnScaling(factor=2.0, original_max_position=64, truncate=False)
        ),
        DenseConfig.tiny(
            qkv_bias=False, rope=rope.Llama3Scaling(factor=2.0, original_max_position=8)
        ),
        DenseConfig.tiny(out_bias=True, ffn_bias=True, rope=rope.LinearScaling(factor=2.0)),
    ],
)
def test_what_is_written_is_read_again(config):
    assert hf.read_config(hf.write_config(config)) == config


def test_an_imported_record_is_kept_but_for_what_changed():
    record = PLAIN | dict(eos_token_id=[1, 2], mystery={"a": 1}, dtype="bfloat16")
    config = hf.read_config(record)
    assert hf.write_config(config, record, "float32") == record
    changed = dataclasses.replace(config, num_layers=3, qkv_bias=True, rope_theta=2.0)
    written = hf.write_config(changed, record)
    assert hf.read_config(written) == changed
    assert written["architectures"] == ["Qwen2ForCausalLM"]
    assert (written["eos_token_id"], written["dtype"]) == ([1, 2], "float32")


def test_biases_that_no_architecture_has_are_refused():
    with pytest.raises(ConfigError, match="qk_norm"):
        hf.write_config(DenseConfig.tiny(qk_norm=True))
