"""GGUF files of Llama, Qwen2 and Qwen3 models as directories in the published layout.

Matrices are dequantised one at a time; what quantisation lost stays lost. GGUF stores the query and
key matrices of Llama with the two halves of each head interleaved, which is undone. Source of names
and of that order: llama.cpp, convert_hf_to_gguf.py.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from jax.typing import DTypeLike
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as cutting

from loong_jax.errors import CheckpointError, ConfigError, LoongError
from loong_jax.models.hf import files, reading, unfinished, writing
from loong_jax.models.hf.checkpoint import HfCheckpoint, weight_dtype
from loong_jax.models.rope import Llama3Scaling, frequencies

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"  # llama3 scaling, one factor for each frequency


def import_gguf(source: Path, destination: Path, *, dtype: DTypeLike = "float32") -> None:
    """Writes config.json, weights in `dtype` and the tokenizer of a GGUF file to `destination`.

    Raises CheckpointError where the file is damaged, of another kind of model or tokenizer, or has
    values that `dtype` cannot hold, and where `destination` already holds a model.
    """
    try:
        _import(source, destination, weight_dtype(dtype))
    except (LoongError, MemoryError):
        raise
    except Exception as error:  # a field of another kind or size; tokenizers raise bare Exceptions
        raise CheckpointError(
            f"{source} is damaged, or has what is not read here: {error!r:.200}. Fetch it again, "
            "or take the model's own safetensors files."
        ) from error


def _import(source: Path, destination: Path, chosen: np.dtype) -> None:
    fields, tensors = _opened(source)
    config = _config(fields, tensors) | {"torch_dtype": chosen.name}
    beside = _tokenizer_files(fields)
    config |= beside["generation_config.json"]
    text = (json.dumps(config, indent=2) + "\n").encode()
    named = dict(_named(tensors, config))
    entries = {
        name: (name, chosen, tuple(int(n) for n in reversed(tensor.shape)))
        for name, (tensor, _) in named.items()
    }

    def read(name: str) -> np.ndarray:
        tensor, turn = named[name]
        stored = turn(_dequantised(tensor)).reshape(entries[name][2])
        with np.errstate(over="ignore"):
            values = stored.astype(chosen)
        if not reading.is_finite(values):
            reading.refuse_values(tensor.name, stored, chosen)
        return values

    plans, index = writing.divided(entries, writing.MAX_SHARD_BYTES)
    with unfinished.begun(destination, text) as export:
        for file, held, metadata in plans:
            files.write_file(export.aside / file, held, read, metadata)
        written = [plan.name for plan in plans]
        texts = {name: json.dumps(content, indent=2) + "\n" for name, content in beside.items()}
        for name, content in (texts | ({files.INDEX: index} if index else {})).items():
            (export.aside / name).write_text(content, encoding="utf-8")
            written.append(name)
        (export.aside / "config.json").write_bytes(text)
        HfCheckpoint(export.aside)  # raises where tensors and config do not fit
        unfinished.finish(export, [*written, "config.json"])


def _opened(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields and the tensors of a GGUF file, by name."""
    try:
        opened = gguf.GGUFReader(source)
        fields = {name: field.contents() for name, field in opened.fields.items()}
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"{source} is no GGUF file: {error}. Fetch it again.") from error
    return fields, {tensor.name: tensor for tensor in opened.tensors}


def _dequantised(tensor: Any) -> np.ndarray:
    try:
        return gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise CheckpointError(
            f"{tensor.name} is {tensor.tensor_type.name}, which the package gguf does not "
            "dequantise. Take a file of another quantisation."
        ) from error


def _config(fields: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """config.json of the model."""
    kind = fields.get("general.architecture")
    if kind not in _ARCHITECTURES:
        raise ConfigError(
            f"the file is of a {kind!r} model, and {', '.join(_ARCHITECTURES)} are read. Choose a "
            "file of one of them."
        )

    def of(key: str, default: Any = None) -> Any:
        value = fields.get(f"{kind}.{key}", default)
        if value is None:
            raise CheckpointError(f"the file lacks {kind}.{key}. Fetch it again.")
        return value

    width, num_heads = of("embedding_length"), of("attention.head_count")
    config = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": width,
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": of("attention.head_count_kv", num_heads),
        "head_dim": of("attention.key_length", width // num_heads),
        "hidden_act": "silu",
        "max_position_embeddings": of("context_length"),
        "rms_norm_eps": float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),  # stored in float32
        "rope_theta": float(of("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if kind != "qwen2":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if kind == "llama":
        config["mlp_bias"] = False
    if scaling := _rope_scaling(fields, tensors, config):
        config["rope_scaling"] = scaling
    return config


def _rope_scaling(
    fields: dict[str, Any], tensors: dict[str, Any], config: dict[str, Any]
) -> dict[str, Any] | None:
    prefix = f"{config['model_type']}.rope.scaling."
    kind = fields.get(prefix + "type", "none")
    if _ROPE_FACTORS in tensors:
        stored = _dequantised(tensors[_ROPE_FACTORS]).reshape(-1)
        width, theta = config["head_dim"], config["rope_theta"]
        for factor in (8.0, 32.0):
            rotary = Llama3Scaling(factor=factor, original_max_position=8192)
            divisors = frequencies(width, theta) / frequencies(width, theta, rotary)
            if np.allclose(stored, divisors, rtol=1e-4):
                return {
                    "rope_type": "llama3",
                    "factor": factor,
                    "low_freq_factor": rotary.low_freq_factor,
                    "high_freq_factor": rotary.high_freq_factor,
                    "original_max_position_embeddings": rotary.original_max_position,
                }
        raise CheckpointError(
            f"{_ROPE_FACTORS} holds factors that are not those of Llama 3.1 or 3.2. Take the "
            "model's own config.json and safetensors files."
        )
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": float(fields.get(prefix + "factor", 1.0))}
    if original := fields.get(prefix + "original_context_length"):
        scaling["original_max_position_embeddings"] = original
    return scaling


Turn = Callable[[np.ndarray], np.ndarray]


def _named(
    tensors: dict[str, Any], config: dict[str, Any]
) -> Iterator[tuple[str, tuple[Any, Turn]]]:
    """The published name of every tensor, and what is done to its values."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in tensors.items():
        if name == _ROPE_FACTORS:
            continue
        *block, short, kind = name.split(".")
        published = _NAMES.get(short)
        is_plain = kind in ("weight", "bias") and (not block or block[0] == "blk")
        if published is None or not is_plain:
            raise CheckpointError(
                f"{name} is no tensor of a {config['model_type']} model that is read here. Take "
                "the model's own safetensors files."
            )
        is_mixed = config["model_type"] == "llama" and short in heads
        prefix = f"model.layers.{block[1]}." if block else ""
        turn = _halves(heads[short]) if is_mixed else np.asarray
        yield f"{prefix}{published}.{kind}", (tensor, turn)


def _halves(num_heads: int) -> Turn:
    """Rows of each head in two halves, from rows that alternate between them."""

    def turn(values: np.ndarray) -> np.ndarray:
        pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)

    return turn


_CONTROL, _OWN = 3, 4  # kinds of tokens: those without text, those that users added
# Tokens that end a turn or a text, whichever of them a file names as its end.
_ENDS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "</s>",
)  # fmt: skip
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_KEY = "tokenizer.ggml."


def _tokenizer_files(fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """tokenizer.json, tokenizer_config.json and generation_config.json, by name.

    Raises CheckpointError for a tokenizer that is no byte-level BPE of a known kind.
    """
    tokens, kinds = fields.get(_KEY + "tokens"), fields.get(_KEY + "token_type")
    model, before = fields.get(_KEY + "model"), fields.get(_KEY + "pre", "gpt-2")
    if model != "gpt2" or before not in _CUTS or not tokens or not kinds:
        raise CheckpointError(
            f"the file has a tokenizer of the kind {model!r} that cuts as {before!r}, and "
            f"'gpt2' with one of {', '.join(_CUTS)} is read. Take the model's own files."
        )
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise CheckpointError("the file's tokenizer has a token twice. Fetch the file again.")
    merges = [tuple(pair.split(" ", 1)) for pair in fields.get(_KEY + "merges", [])]
    built = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=before == "llama-bpe"))
    if before == "qwen2":
        built.normalizer = normalizers.NFC()  # type: ignore[assignment]
    built.pre_tokenizer = cutting.Sequence(_CUTS[before]())  # type: ignore[assignment]
    built.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            built.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _OWN:
            built.add_tokens([AddedToken(token, normalized=False)])
    begin, adds_begin = fields.get(_KEY + "bos_token_id"), fields.get(_KEY + "add_bos_token", False)
    if adds_begin and begin is not None:
        built.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
            single=f"{tokens[begin]} $A",
            pair=f"{tokens[begin]} $A {tokens[begin]} $B",
            special_tokens=[(tokens[begin], begin)],
        )
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(adds_begin),
        "clean_up_tokenization_spaces": False,
    }
    ids = {"bos": begin, "eos": fields.get(_KEY + "eos_token_id")}
    ids["pad"] = fields.get(_KEY + "padding_token_id")
    config |= {f"{name}_token": tokens[n] for name, n in ids.items() if n is not None}
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    named = [ids["eos"], fields.get(_KEY + "eot_token_id"), fields.get(_KEY + "eom_token_id")]
    known = [vocab[end] for end in _ENDS if end in vocab and kinds[vocab[end]] == _CONTROL]
    ends = [n for n in dict.fromkeys([*named, *known]) if n is not None]
    generation = {"bos_token_id": begin, "eos_token_id": ends, "pad_token_id": ids["pad"]}
    return {
        "tokenizer.json": json.loads(built.to_str()),
        "tokenizer_config.json": config,
        "generation_config.json": {k: v for k, v in generation.items() if v not in (None, [])},
    }


def _by_words(digits: str) -> list[Any]:
    cut = cutting.Split(Regex(_WORDS % digits), "isolated")
    return [cut, cutting.ByteLevel(add_prefix_space=False, use_regex=False)]


_CUTS = {
    "gpt-2": lambda: [cutting.ByteLevel(add_prefix_space=False)],
    "smollm": lambda: [
        cutting.Digits(individual_digits=True),
        cutting.ByteLevel(add_prefix_space=False),
    ],
    "qwen2": lambda: _by_words(""),
    "llama-bpe": lambda: _by_words("{1,3}"),
}
