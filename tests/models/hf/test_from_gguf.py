"""Tiny GGUF files, as llama.cpp's converter writes them, made into published directories."""

import json

import gguf
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from loong_jax import cli
from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models.hf import from_gguf
from loong_jax.models.hf.from_gguf import import_gguf

WIDTH, HEADS, KV_HEADS, HEAD, FFN = 64, 4, 2, 16, 96
BYTES = [chr(n) for n in (*range(33, 127), *range(161, 173), *range(174, 256))]
LETTERS = [*BYTES, *(chr(256 + n) for n in range(256 - len(BYTES)))]
MERGES = ["h i", "Ġ hi", "1 2"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "hi", "Ġhi", "12"]
SHAPES = {
    "self_attn.q_proj": (HEADS * HEAD, WIDTH),
    "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
    "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
    "self_attn.o_proj": (WIDTH, HEADS * HEAD),
    "mlp.gate_proj": (FFN, WIDTH),
    "mlp.up_proj": (FFN, WIDTH),
    "mlp.down_proj": (WIDTH, FFN),
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
}
SHORT = dict(zip(SHAPES, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up",
                          "ffn_down", "attn_norm", "ffn_norm"), strict=True))  # fmt: skip
Q4_1 = gguf.GGMLQuantizationType.Q4_1


def weights_of(kind: str, random) -> dict[str, np.ndarray]:
    """A model of one layer under its published names."""
    shapes = {"model.embed_tokens.weight": (len(TOKENS), WIDTH), "model.norm.weight": (WIDTH,)}
    shapes |= {f"model.layers.0.{name}.weight": shape for name, shape in SHAPES.items()}
    if kind == "qwen2":
        names = [f"self_attn.{letter}_proj" for letter in "qkv"]
        shapes |= {f"model.layers.0.{name}.bias": SHAPES[name][:1] for name in names}
        shapes["lm_head.weight"] = (len(TOKENS), WIDTH)
    if kind == "qwen3":
        shapes |= {f"model.layers.0.self_attn.{letter}_norm.weight": (HEAD,) for letter in "qk"}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def permuted(weight, num_heads):
    """As convert_hf_to_gguf.py has it: halves of a head become alternating rows."""
    out = np.empty_like(weight)
    for head in range(num_heads):
        for i in range(HEAD // 2):
            out[head * HEAD + 2 * i] = weight[head * HEAD + i]
            out[head * HEAD + 2 * i + 1] = weight[head * HEAD + HEAD // 2 + i]
    return out


def write(path, kind="llama", weights=None, quantised=(), pre="smollm", **fields):
    """Returns what a reader must find, with the rounding of `quantised` matrices."""
    weights = weights or weights_of(kind, np.random.default_rng(0))
    writer, expected = gguf.GGUFWriter(path, kind), dict(weights)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    if kind == "qwen3":
        writer.add_key_length(HEAD)
    writer.add_tokenizer_model(fields.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(fields.get("add_bos", False))
    writer.add_chat_template("{{ messages[0]['content'] }}")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    more = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
    for name, weight in weights.items():
        base, _, ending = name.rpartition(".")
        short = base.removeprefix("model.layers.0.")
        stored = top.get(base) or f"blk.0.{(SHORT | more)[short]}"
        if kind == "llama" and short in ("self_attn.q_proj", "self_attn.k_proj"):
            weight = permuted(weight, HEADS if "q_" in short else KV_HEADS)
        if name in quantised:
            data = gguf.quantize(weight, Q4_1)
            writer.add_tensor(f"{stored}.{ending}", data, raw_dtype=Q4_1)
            expected[name] = gguf.dequantize(gguf.quantize(weights[name], Q4_1), Q4_1)
        else:
            writer.add_tensor(f"{stored}.{ending}", weight)
    for name, extra in fields.get("tensors", {}).items():
        writer.add_tensor(name, extra)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_weights_and_config_are_as_they_were_published(tmp_path, kind):
    quantised = [f"model.layers.0.{name}.weight" for name in ("self_attn.q_proj", "mlp.up_proj")]
    expected = write(tmp_path / "a.gguf", kind, quantised=quantised)
    assert cli.main(["import-gguf", str(tmp_path / "a.gguf"), str(tmp_path / "hf")]) == 0
    found = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name], weight, err_msg=name)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["model_type"] == kind
    assert config["tie_word_embeddings"] == (kind != "qwen2")
    assert (config["num_key_value_heads"], config["head_dim"]) == (KV_HEADS, HEAD)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (1e5, 1e-5)
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (
        1,
        [2, 0],
        2,
    )


def test_the_tokenizer_cuts_as_the_model_was_taught(tmp_path):
    write(tmp_path / "a.gguf")
    import_gguf(tmp_path / "a.gguf", tmp_path / "hf")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    assert read.encode("hi 12<|im_end|>").tokens == ["hi", "Ġ", "1", "2", "<|im_end|>"]
    text = "hi hi\n 日本 é 😀 12"
    assert read.decode(read.encode(text).ids) == text
    config = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages[0]['content'] }}"
    assert (config["add_bos_token"], config["eos_token"]) == (False, "<|im_end|>")
    ends = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert ends["eos_token_id"] == [2, 0]
    write(tmp_path / "b.gguf", pre="llama-bpe", add_bos=True)
    import_gguf(tmp_path / "b.gguf", tmp_path / "hf2")
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "hf2" / "tokenizer.json"))
    assert read.encode("hi 12").tokens == ["<|im_start|>", "hi", "Ġ", "12"]


def test_rope_factors_of_llama_3_are_named(tmp_path):
    """Wavelengths below a quarter of 8192 keep their frequency, above all of it get an eighth."""
    lengths = 2 * np.pi * 1e5 ** (np.arange(0, HEAD, 2) / HEAD)
    share = (8192 / lengths - 1) / 3
    factors = np.where(share > 1, 1, np.where(share < 0, 8, 1 / ((1 - share) / 8 + share)))
    tensors = {"rope_freqs.weight": factors.astype(np.float32)}
    write(tmp_path / "a.gguf", tensors=tensors)
    import_gguf(tmp_path / "a.gguf", tmp_path / "hf", dtype="bfloat16")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["rope_scaling"]["rope_type"], config["rope_scaling"]["factor"]) == ("llama3", 8)
    assert config["torch_dtype"] == "bfloat16"
    write(tmp_path / "b.gguf", tensors={"rope_freqs.weight": np.float32(factors * 2)})
    with pytest.raises(CheckpointError, match="factors that are not those of Llama"):
        import_gguf(tmp_path / "b.gguf", tmp_path / "hf2")


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
    path, out = tmp_path / "a.gguf", tmp_path / "hf"
    path.write_bytes(b"not a GGUF file")
    with pytest.raises(CheckpointError, match="is no GGUF file"):
        import_gguf(path, out)
    write(path, kind="gemma")
    with pytest.raises(ConfigError, match="of a 'gemma' model"):
        import_gguf(path, out)
    write(path, tokenizer="llama")
    with pytest.raises(CheckpointError, match="tokenizer of the kind 'llama'"):
        import_gguf(path, out)
    write(path, tensors={"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_sinks\.weight is no tensor"):
        import_gguf(path, out)
    weights = weights_of("llama", np.random.default_rng(0))
    weights["model.norm.weight"][3] = 1e5
    write(path, weights=weights)
    with pytest.raises(CheckpointError, match=r"output_norm\.weight holds 100000"):
        import_gguf(path, out, dtype="float16")
    weights["model.norm.weight"][3] = np.nan
    write(path, weights=weights)
    with pytest.raises(CheckpointError, match=r"output_norm\.weight holds 1 values that are not"):
        import_gguf(path, out)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("tokenizer.ggml.eos_token_id", 10**9, "is damaged"),
        ("llama.attention.head_count_kv", [2], "is damaged"),
        ("llama.embedding_length", 32, "has the shape"),
        ("llama.block_count", 2, "are missing"),
    ],
)
def test_a_damaged_file_leaves_nothing_to_load(tmp_path, monkeypatch, field, value, said):
    write(tmp_path / "a.gguf")
    fields, tensors = from_gguf._opened(tmp_path / "a.gguf")
    monkeypatch.setattr(from_gguf, "_opened", lambda _: (fields | {field: value}, tensors))
    with pytest.raises(CheckpointError, match=said):
        import_gguf(tmp_path / "a.gguf", tmp_path / "hf")
    assert not (tmp_path / "hf" / "config.json").exists()
