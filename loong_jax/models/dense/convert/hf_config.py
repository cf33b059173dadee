"""config.json of Llama, Qwen2 and Qwen3, read into a DenseConfig and written back.

A missing key has the default that transformers gives it for the architecture. Keys that would
change what the model computes in a way that is not built here are refused; all others are kept
aside and written again. Source: transformers' LlamaConfig, Qwen2Config and Qwen3Config.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.typing import DTypeLike

from loong_jax.errors import ConfigError
from loong_jax.models.dense.config import DenseConfig
from loong_jax.models.hf import rotary, values
from loong_jax.models.hf.rotary import Rotary
from loong_jax.models.hf.values import Json


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
_FLAGS = ("attention_bias", "mlp_bias", "tie_word_embeddings")
_KINDS: tuple[rotary.Kind, ...] = ("linear", "llama3", "yarn")
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
    _refuse_other_models(record)
    found: Json = {}
    for field, (key, default) in _KEYS.items():
        default = architecture.defaults.get(key, default)
        value = record.get(key, default)
        if key in _FLAGS:
            _check_flag(key, value)
        elif key == "rms_norm_eps":
            values.check_number(key, value)
        elif not (value is None and default is None) and not (
            value is None and key in ("num_key_value_heads", "head_dim")
        ):
            values.check_whole(key, value)
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
    found["rope_theta"], found["rope"] = rotary.read(record, _KINDS, theta=1e4, length=length)
    found |= _biases(architecture, record)
    try:
        return DenseConfig(**(found | changes))
    except ConfigError as error:
        called = [f"{f} is {key} there" for f, (key, _) in _KEYS.items() if f in str(error)]
        known_as = f" ({'; '.join(called)})" if called else ""
        raise ConfigError(f"config.json: {error}{known_as}") from error


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
        return record | {"hidden_act": "silu"} | rotary.write(_rotary(config))
    record, known = dict(original), read_config(original)
    if changes_kind := _kind_of(config) != _kind_of(known):
        record |= _kind_of(config)
    for field, (key, _) in _KEYS.items():  # another architecture has other defaults
        if changes_kind or getattr(config, field) != getattr(known, field):
            record[key] = getattr(config, field)
    if _rotary(config) != _rotary(known):
        for key in rotary.KEYS:
            record.pop(key, None)
        record |= rotary.write(_rotary(config))
    if stored_dtype is None or np.dtype(stored_dtype) != np.dtype(config.param_dtype):
        for key in ("torch_dtype", "dtype"):
            if record.get(key) is not None:
                record[key] = np.dtype(config.param_dtype).name
    return record


def _rotary(config: DenseConfig) -> Rotary:
    return Rotary(config.rope_theta, config.rope)


def _architecture(record: Mapping[str, Any]) -> Architecture:
    """Of `architectures`, or of `model_type` where there is none; both must agree."""
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


def _refuse_other_models(record: Mapping[str, Any]) -> None:
    for key, allowed in _REQUIRED.items():
        value = record.get(key)
        if value is not None and value not in allowed:
            raise ConfigError(
                f"config.json has {key}={value!r}; only {allowed[0]!r} is built here. Choose a "
                "checkpoint without it, or remove the key if it is wrong."
            )
    if slides := _sliding_window(record):
        raise ConfigError(
            f"config.json has {slides}: some layers see the last tokens only, which is not built "
            "here. Choose a checkpoint without sliding windows, or remove the keys if they are "
            "wrong."
        )


def _sliding_window(record: Mapping[str, Any]) -> str | None:
    """What says that a window is shorter than the sequences that some layer may meet."""
    window, kinds = record.get("sliding_window"), record.get("layer_types")
    if odd := [kind for kind in kinds or () if kind != "full_attention"]:
        return f"{odd[0]!r} among its layer_types"
    qwen = str(record.get("model_type", "qwen")).startswith("qwen")
    in_use = record.get("use_sliding_window", not qwen)
    if kinds or window is None or not in_use:
        return None
    values.check_whole("sliding_window", window)
    num_layers = record.get("num_hidden_layers", 32)
    first = record.get("max_window_layers", 28) if qwen else 0
    if window >= record.get("max_position_embeddings", 2048) or first >= num_layers:
        return None
    return f"sliding_window={window}"
