"""The published form of Llama, Qwen2 and Qwen3: their config.json and names of tensors.

A missing key has the default that transformers gives it for the architecture. Keys that would
change what the model computes in a way that is not built here are refused; all others are kept
aside and written again. Source: transformers' LlamaConfig, Qwen2Config and Qwen3Config.
"""

import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError
from loong_jax.models.dense.config import DenseConfig
from loong_jax.models.dense.model import abstract_weights
from loong_jax.models.hf import config_json, publication
from loong_jax.models.hf.config_json import Json, Rotary
from loong_jax.models.hf.files import Opened
from loong_jax.models.hf.publication import Place, Publication, Table, Tensors


class Architecture(NamedTuple):
    """One that transformers has; `defaults` are values of keys that are missing."""

    name: str
    model_type: str
    defaults: dict[str, Any]


_QWEN: Json = {"vocab_size": 151_936, "intermediate_size": 22_016, "num_key_value_heads": 32}
_QWEN |= {"max_position_embeddings": 32_768}
ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture("LlamaForCausalLM", "llama", {}),
        Architecture("Qwen2ForCausalLM", "qwen2", _QWEN),
        Architecture("Qwen3ForCausalLM", "qwen3", _QWEN | {"head_dim": 128}),
    )
}
# Field of DenseConfig -> (published key, default where it is missing).
_KEYS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 32_000),
    "hidden_size": ("hidden_size", 4096),
    "num_layers": ("num_hidden_layers", 32),
    "num_heads": ("num_attention_heads", 32),
    "num_kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "ffn_hidden_size": ("intermediate_size", 11_008),
    "tied": ("tie_word_embeddings", False),
    "rms_norm_eps": ("rms_norm_eps", 1e-6),
    "max_position": ("max_position_embeddings", 2048),
}
_FULL = "full_attention"  # of a layer that sees all tokens before
_FLAGS = ("attention_bias", "mlp_bias", "tie_word_embeddings")
_KINDS: tuple[config_json.Kind, ...] = ("linear", "llama3", "yarn")
# Key -> the values under which the model is the one that is built here.
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "quantization_config": (None, {}),
    "compression_config": (None, {}),
    "is_encoder_decoder": (False,),
    "use_bidirectional_attention": (False,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "logit_scale": (1,),
    "num_experts": (0,),
    "num_local_experts": (0,),
}


def read_config(record: Mapping[str, Any], **changes: Any) -> DenseConfig:
    """The DenseConfig that a config.json means; `changes` are fields that it does not decide.

    Raises ConfigError where a value is none, contradicts another, or changes the model into one
    that is not built here.
    """
    architecture = _architecture(record)
    config_json.refuse_values(record, _REQUIRED)
    found: Json = {}
    for field, (key, default) in _KEYS.items():
        default = architecture.defaults.get(key, default)
        value = record.get(key, default)
        if key in _FLAGS:
            _check_flag(key, value)
        elif key == "rms_norm_eps":
            config_json.check_number(key, value)
        elif value is not None or key not in ("num_key_value_heads", "head_dim"):
            config_json.check_whole(key, value)
        found[field] = value
    if found["num_kv_heads"] is None:
        found["num_kv_heads"] = found["num_heads"]
    if found["head_dim"] is None:
        if found["hidden_size"] % found["num_heads"]:
            raise ConfigError(
                f"config.json has hidden_size={found['hidden_size']} and no head_dim, and "
                f"num_attention_heads={found['num_heads']} does not divide it. Give head_dim."
            )
        found["head_dim"] = found["hidden_size"] // found["num_heads"]
    length = found["max_position"]
    _refuse_sliding_window(record, found["num_layers"], length)
    found["rope_theta"], found["rope"] = config_json.read_rotary(
        record, _KINDS, theta=1e4, length=length
    )
    found |= _biases(architecture, record)
    return config_json.built(DenseConfig, found | changes, _KEYS)


def write_config(
    config: DenseConfig,
    original: Mapping[str, Any] | None = None,
    stored_dtype: DTypeLike | None = None,
) -> Json:
    """A config.json that `read_config` reads as the sizes of `config`.

    How the model is run is not written: dtypes of activations, remat and the like. `original`, the
    record that was imported, is kept as it is but for what has changed since. What it says of
    dtypes, true or not, is kept if the weights beside it were of `stored_dtype` and
    `config.param_dtype` is that one. Raises ConfigError where no architecture has these biases and
    norms.
    """
    if original is None:
        record = {"torch_dtype": np.dtype(config.param_dtype).name, **_kind_of(config)}
        record |= {key: getattr(config, field) for field, (key, _) in _KEYS.items()}
        return record | {"hidden_act": "silu"} | config_json.write_rotary(_rotary(config))
    record, known = dict(original), read_config(original)
    if changes_kind := _kind_of(config) != _kind_of(known):
        record |= _kind_of(config)
    for field, (key, _) in _KEYS.items():  # another architecture has other defaults
        if changes_kind or getattr(config, field) != getattr(known, field):
            record[key] = getattr(config, field)
    if _rotary(config) != _rotary(known):
        for key in config_json.KEYS:
            record.pop(key, None)
        record |= config_json.write_rotary(_rotary(config))
    config_json.write_dtype(record, config.param_dtype, stored_dtype)
    return record


def _rotary(config: DenseConfig) -> Rotary:
    return Rotary(config.rope_theta, config.rope)


def _architecture(record: Mapping[str, Any]) -> Architecture:
    """The architecture by `architectures`, or `model_type` where there is none; both must agree."""
    named, kind = record.get("architectures"), record.get("model_type")
    for one in ARCHITECTURES.values():
        fits = named in ([one.name], None, []) and kind in (one.model_type, None)
        if fits and (named or kind):
            return one
    known = ", ".join(f"{one.name} of {one.model_type}" for one in ARCHITECTURES.values())
    raise ConfigError(
        f"config.json has architectures={named!r} and model_type={kind!r}; the dense decoders "
        f"built here are {known}. Choose a checkpoint of one of them, or correct the two."
    )


def _biases(architecture: Architecture, record: Mapping[str, Any]) -> Json:
    if architecture.name == "Qwen2ForCausalLM":
        return {"qkv_bias": True}
    flags = {key: record.get(key, False) for key in ("attention_bias", "mlp_bias")}
    for key, value in flags.items():
        _check_flag(key, value)
    both = {"qkv_bias": flags["attention_bias"], "out_bias": flags["attention_bias"]}
    if architecture.name == "Qwen3ForCausalLM":
        return both | {"qk_norm": True}
    return both | {"ffn_bias": flags["mlp_bias"]}


def _kind_of(config: DenseConfig) -> Json:
    """The keys that say which architecture has the biases and norms of `config`."""
    biases = config.qkv_bias, config.out_bias
    if config.qk_norm and len(set(biases)) == 1 and not config.ffn_bias:
        name, flags = "Qwen3ForCausalLM", {"attention_bias": config.qkv_bias}
    elif not config.qk_norm and len(set(biases)) == 1:
        name = "LlamaForCausalLM"
        flags = {"attention_bias": config.qkv_bias, "mlp_bias": config.ffn_bias}
    elif not config.qk_norm and biases == (True, False) and not config.ffn_bias:
        name, flags = "Qwen2ForCausalLM", {}
    else:
        raise ConfigError(
            f"qkv_bias={config.qkv_bias}, out_bias={config.out_bias}, ffn_bias={config.ffn_bias} "
            f"and qk_norm={config.qk_norm} are together in none of {', '.join(ARCHITECTURES)}, so "
            "the model cannot be exported. Choose the biases and norms of one of them."
        )
    return {"architectures": [name], "model_type": ARCHITECTURES[name].model_type, **flags}


def _check_flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"config.json has {key}={value!r}, and it is true or false. Correct it.")


def _refuse_sliding_window(record: Mapping[str, Any], num_layers: int, length: int) -> None:
    """Raises ConfigError where a window is shorter than a possible sequence in some layer."""
    window, kinds = record.get("sliding_window"), record.get("layer_types")
    if not isinstance(kinds or [], list):
        raise ConfigError(f"config.json has layer_types={kinds!r}, and it is a list. Correct it.")
    slides = [f"{kind!r} among its layer_types" for kind in kinds or () if kind != _FULL]
    qwen = str(record.get("model_type", "qwen")).startswith("qwen")
    in_use = record.get("use_sliding_window", not qwen)
    if not kinds and window is not None and in_use:
        config_json.check_whole("sliding_window", window)
        first = record.get("max_window_layers", 28) if qwen else 0
        config_json.check_whole("max_window_layers", first, smallest=0)
        if window < length and first < num_layers:
            slides.append(f"sliding_window={window}")
    if slides:
        raise ConfigError(
            f"config.json has {slides[0]}: some layers see the last tokens only, which is not "
            "built here. Choose a checkpoint without sliding windows, or remove the keys if they "
            "are wrong."
        )


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

_ATTENTION: Table = {
    "q_proj.weight": ("query", 1),
    "k_proj.weight": ("key", 1),
    "v_proj.weight": ("value", 1),
    "o_proj.weight": ("out", 3),
}
_ATTENTION_VECTORS = {
    "q_proj.bias": "query_bias",
    "k_proj.bias": "key_bias",
    "v_proj.bias": "value_bias",
    "o_proj.bias": "out_bias",
    "q_norm.weight": "query_norm",
    "k_norm.weight": "key_norm",
}
_FFN_VECTORS = {f"{name}_proj.bias": f"{name}_bias" for name in ("gate", "up", "down")}
_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}

_log = logging.getLogger(__name__)


def places(config: DenseConfig, leaves: Mapping[str, Any]) -> Iterator[Place]:
    """Every tensor of the published layout, in its order; `leaves` is by path, with shapes."""
    yield publication.place(leaves, EMBEDDING, "embedding", 0)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for room, leaf, matrices, vectors in (
            ("self_attn", "layers/attention", _ATTENTION, _ATTENTION_VECTORS),
            ("mlp", "layers/ffn", publication.FFN, _FFN_VECTORS),
        ):
            yield from publication.table(leaves, f"{prefix}.{room}", leaf, matrices, layer)
            for name, ours in vectors.items():
                if f"{leaf}/{ours}" in leaves:
                    yield _vector(leaves, f"{prefix}.{room}.{name}", f"{leaf}/{ours}", layer)
        for name, ours in _NORMS.items():
            yield publication.place(leaves, f"{prefix}.{name}.weight", f"layers/{ours}", 0, layer)
    yield publication.place(leaves, "model.norm.weight", "final_norm", 0)
    if not config.tied:
        yield publication.place(leaves, HEAD, "head", 1)


def _vector(leaves: Mapping[str, Any], name: str, leaf: str, layer: int) -> Place:
    """A bias or norm, which is published without axes for its heads."""
    place = publication.place(leaves, name, leaf, 0, layer)
    return place._replace(shape=(math.prod(place.shape),))


def _select(found: Tensors, opened: Opened, record: Json) -> tuple[Json, Tensors]:
    """Without tables that older files hold, and with one tensor where embedding and head are one.

    A head that differs from the embedding is a head of its own, whatever config.json says.
    """
    kept = {name: t for name, t in found.items() if not re.search(r"rotary_emb\.inv_freq$", name)}
    if record.get("tie_word_embeddings") is not True or HEAD not in kept:
        return {}, kept
    if EMBEDDING in kept and publication.bits_differ(kept, opened, EMBEDDING, HEAD):
        _log.warning(
            "%s differs from %s, and config.json has tie_word_embeddings=true: the model is loaded "
            "with both",
            HEAD,
            EMBEDDING,
        )
        return {"tied": False}, kept
    head = kept.pop(HEAD)
    return {}, {EMBEDDING: head} | kept


PUBLICATION = Publication(
    architectures=tuple(ARCHITECTURES),
    model_types=tuple(one.model_type for one in ARCHITECTURES.values()),
    config_type=DenseConfig,
    read_config=read_config,
    write_config=write_config,
    abstract_weights=abstract_weights,
    places=places,
    embedding=EMBEDDING,
    select=_select,
)
