"""The published form of LongCat-Flash: its config.json, its tensors, facts that only values tell.

A missing key of config.json has the default that transformers gives it, the published 560B model's.
Keys that would change what the model computes in a way that is not built here are refused; all
others are kept aside and written again. What config.json has no key for lives under the key
`loong_jax`. Zero-computation experts have no tensors. Source: the published checkpoints;
transformers' LongcatFlashConfig.
"""

import functools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from loong_jax.errors import CheckpointError, ConfigError
from loong_jax.models.hf import config_json, publication
from loong_jax.models.hf.config_json import Json, Rotary
from loong_jax.models.hf.files import Opened
from loong_jax.models.hf.publication import Place, Publication, Table, Tensors
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.moe.model import abstract_weights

_log = logging.getLogger(__name__)

# Field of MoEConfig -> (published key, default where it is missing).
_KEYS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 131_072),
    "hidden_size": ("hidden_size", 6144),
    "num_layers": ("num_layers", 28),
    "num_heads": ("num_attention_heads", 64),
    "q_lora_rank": ("q_lora_rank", 1536),
    "kv_lora_rank": ("kv_lora_rank", 512),
    "qk_nope_head_dim": ("qk_nope_head_dim", 128),
    "qk_rope_head_dim": ("qk_rope_head_dim", 64),
    "v_head_dim": ("v_head_dim", 128),
    "ffn_hidden_size": ("ffn_hidden_size", 12_288),
    "expert_ffn_hidden_size": ("expert_ffn_hidden_size", 2048),
    "num_experts": ("n_routed_experts", 512),
    "num_zero_experts": ("zero_expert_num", 256),
    "num_chosen": ("moe_topk", 12),
    "gate_scale": ("routed_scaling_factor", 6.0),
    "rms_norm_eps": ("rms_norm_eps", 1e-5),
    "max_position": ("max_position_embeddings", 131_072),
}
# Another name that transformers knows -> published key.
_ALIASES = {
    "num_local_experts": "n_routed_experts",
    "num_experts_per_tok": "moe_topk",
    "intermediate_size": "ffn_hidden_size",
    "moe_intermediate_size": "expert_ffn_hidden_size",
}
ARCHITECTURES = ("LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM")
MODEL_TYPES = ("longcat_flash", "longcat_flash_ngram")
# Key -> the values under which the model is the one that is built here, the published first.
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "model_type": MODEL_TYPES,
    "attention_method": ("MLA",),
    "hidden_act": ("silu",),
    "n_shared_experts": (0,),
    "scoring_func": ("softmax",),
    "first_k_dense_replace": (0,),
    **dict.fromkeys(("mla_scale_q_lora", "mla_scale_kv_lora", "rope_interleave"), (True,)),
    **dict.fromkeys(("attention_bias", "router_bias", "norm_topk_prob"), (False,)),
    **dict.fromkeys(("tie_word_embeddings", "is_encoder_decoder"), (False,)),
    **dict.fromkeys(("mla_use_output_gate", "attention_output_gate"), (False,)),
    **dict.fromkeys(("attn_output_gate", "qk_norm", "use_qk_norm"), (False,)),
    **dict.fromkeys(("grouped_moe_norm_scale", "moe_layer_freq", "logit_scale"), (1,)),
    **dict.fromkeys(("n_group", "topk_group", "moe_group_size"), (1, 0)),
    **dict.fromkeys(("sliding_window", "final_logit_softcapping"), (None,)),
    **dict.fromkeys(("attn_logit_softcapping",), (None,)),
    **dict.fromkeys(("quantization_config", "compression_config"), (None, {})),
}
_WRITTEN = (
    "hidden_act", "mla_scale_q_lora", "mla_scale_kv_lora", "norm_topk_prob", "router_bias",
    "tie_word_embeddings",
)  # fmt: skip
# Beginnings of keys that belong to other members of the family.
_FOREIGN = ("index_", "ngram_", "emb_", "oe_", "linear_", "kda_")
_NGRAM_KEYS = ("ngram_vocab_size_ratio", "emb_neighbor_num", "emb_split_num")
OWN = "loong_jax"
_OWN_FIELDS = ("target_ffn_experts", "lora_norm_eps", "chunk_tokens", "residual_gain")
_MAY_BE_NULL = ("zero_expert_num", "chunk_tokens")


def read_config(record: Mapping[str, Any], **changes: Any) -> MoEConfig:
    """The MoEConfig that a config.json means; `changes` are fields that it does not decide.

    `target_ffn_experts` is the published ratio K E / (E + Z), the LoRA-norm epsilon 1e-6 and
    `chunk_tokens` None unless the key `loong_jax` says otherwise.

    Raises:
      ConfigError: a value contradicts another, or changes the model into one not built here.
    """
    record = _published_names(record)
    _check_numbers(record)
    _refuse_other_models(record)
    fields = {field: record.get(key, default) for field, (key, default) in _KEYS.items()}
    fields["num_zero_experts"] = fields["num_zero_experts"] or 0
    length = fields["max_position"]
    fields["rope_theta"], fields["yarn"] = config_json.read_rotary(
        record, ("yarn",), theta=1e7, length=length
    )
    fields["ngram"] = _read_ngram(record, fields["vocab_size"])
    own = config_json.json_object(record, OWN)
    _check_own(own)
    targets = max(fields["num_experts"] + fields["num_zero_experts"], 1)
    fields["target_ffn_experts"] = fields["num_chosen"] * fields["num_experts"] / targets
    fields |= {name: own[name] for name in _OWN_FIELDS if name in own}
    return config_json.built(MoEConfig, fields | changes, _KEYS)


def write_config(
    config: MoEConfig,
    original: Mapping[str, Any] | None = None,
    stored_dtype: DTypeLike | None = None,
) -> Json:
    """A config.json that `read_config` reads as the sizes of `config`.

    How the model is run is not written: dtypes of activations, exchange, remat and the like.
    `original`, the record that was imported, is kept as it is but for what has changed since. What
    it says of dtypes, true or not, is kept if the weights beside it were of `stored_dtype` and
    `config.param_dtype` is that one.
    """
    record: Json = dict(_new_record(config) if original is None else original)
    known = read_config(record)
    for field, (key, _) in _KEYS.items():
        if original is None or getattr(config, field) != getattr(known, field):
            for alias in [alias for alias, name in _ALIASES.items() if name == key]:
                record.pop(alias, None)
            record[key] = getattr(config, field)
    if config.num_layers != known.num_layers:
        record.pop("num_hidden_layers", None)
    if original is None or (config.rope_theta, config.yarn) != (known.rope_theta, known.yarn):
        for key in config_json.KEYS:
            record.pop(key, None)
        record |= config_json.write_rotary(Rotary(config.rope_theta, config.yarn))
    if config.ngram != known.ngram:
        for key in _NGRAM_KEYS:
            record.pop(key, None)
        record |= _write_ngram(config)
    if config.num_zero_experts and record.get("zero_expert_type") == "":
        record["zero_expert_type"] = "identity"
    if _own_fields_that_differ(config, record):
        own = _own_fields_that_differ(config, record | {OWN: None})
        kept = {k: v for k, v in (record.get(OWN) or {}).items() if k not in _OWN_FIELDS}
        record.pop(OWN, None)
        if kept | own:
            record[OWN] = kept | own
    config_json.write_dtype(record, config.param_dtype, stored_dtype)
    return record


def _own_fields_that_differ(config: MoEConfig, record: Json) -> Json:
    """The fields of `config` that `record` does not give."""
    known = read_config(record)
    fields = {name: getattr(config, name) for name in _OWN_FIELDS}
    return {name: value for name, value in fields.items() if value != getattr(known, name)}


def _new_record(config: MoEConfig) -> Json:
    lite = config.ngram is not None
    name = "LongcatFlashNgramForCausalLM" if lite else "LongcatFlashForCausalLM"
    return {
        "architectures": [name],
        "model_type": "longcat_flash_ngram" if lite else "longcat_flash",
        **{key: _REQUIRED[key][0] for key in ("attention_method", "attention_bias")},
        "head_dim": config.qk_rope_head_dim,  # transformers builds its rotary table from it
        **{key: _REQUIRED[key][0] for key in _WRITTEN},
        "zero_expert_type": "identity",
        "torch_dtype": np.dtype(config.param_dtype).name,
        **_write_ngram(config),
        **{key: getattr(config, field) for field, (key, _) in _KEYS.items()},
    }


def _published_names(record: Mapping[str, Any]) -> Json:
    """The record with aliases under their published names; refuses two values for one size."""
    named = dict(record)
    for alias, key in _ALIASES.items():
        value = record.get(alias)
        if value is None:
            continue
        if named.get(key) is None:
            named[key] = value
        if named[key] != value:
            raise ConfigError(
                f"config.json has {key}={named[key]!r} and {alias}={record[alias]!r}, two names of "
                "one size. Remove the wrong one."
            )
    sub_layers = named.get("num_hidden_layers")  # each logical layer holds two attentions
    if sub_layers is None:
        return named
    config_json.check_whole("num_hidden_layers", sub_layers)
    if named.get("num_layers") is None:
        if sub_layers % 2:
            raise ConfigError(
                f"config.json has num_hidden_layers={sub_layers} and no num_layers. Attentions are "
                "counted there, two to a layer. Give num_layers."
            )
        named["num_layers"] = sub_layers // 2
    layers = named["num_layers"]
    config_json.check_whole("num_layers", layers)
    if sub_layers not in (layers, 2 * layers):
        raise ConfigError(
            f"config.json has num_layers={layers} and num_hidden_layers={sub_layers}, which must "
            "be as many or twice as many. Remove num_hidden_layers."
        )
    return named


def _check_numbers(record: Json) -> None:
    """Raises ConfigError where a key that decides a size or a factor is null or no number."""
    for key, default in _KEYS.values():
        value = record.get(key, default)
        if value is None and key in _MAY_BE_NULL:
            continue
        if isinstance(default, int):
            config_json.check_whole(key, value, smallest=int(key not in _MAY_BE_NULL))
        else:
            config_json.check_number(key, value)


def _check_own(own: Json) -> None:
    for name in _OWN_FIELDS:
        if name in own and not (name in _MAY_BE_NULL and own[name] is None):
            check = config_json.check_whole if name == "chunk_tokens" else config_json.check_number
            check(f"{OWN}.{name}", own[name])


def _refuse_other_models(record: Json) -> None:
    zero_experts = record.get("zero_expert_num", _KEYS["num_zero_experts"][1])
    kinds = {"zero_expert_type": ("identity",) if zero_experts else ("identity", "")}
    config_json.refuse_values(record, _REQUIRED | kinds)
    for key, value in record.items():
        is_foreign = key.startswith(_FOREIGN) and key not in _NGRAM_KEYS
        if is_foreign and value not in (None, False):
            raise ConfigError(
                f"config.json has {key}={value!r}, a part of another member of the family that is "
                "not built here. Choose a checkpoint without it."
            )
    heads = record.get("num_attention_heads", _KEYS["num_heads"][1])
    parts = [record.get(k, _KEYS[k][1]) for k in ("qk_nope_head_dim", "qk_rope_head_dim")]
    for key, wanted, rule in (
        ("num_key_value_heads", heads, "latent attention gives each head its own keys"),
        ("qk_head_dim", sum(parts), f"its unrotated and its rotary part are {parts}"),
    ):
        if record.get(key) not in (None, wanted):
            raise ConfigError(
                f"config.json has {key}={record[key]}, and {rule}. Make it {wanted} or remove it."
            )


def _read_ngram(record: Json, vocab_size: int) -> NgramEmbedding | None:
    given = [key for key in _NGRAM_KEYS if record.get(key) is not None]
    is_ngram = record.get("model_type") == "longcat_flash_ngram"
    if not given and not is_ngram:
        return None
    if len(given) < len(_NGRAM_KEYS):
        missing = next(key for key in _NGRAM_KEYS if key not in given)
        raise ConfigError(
            f"config.json lacks {missing}, and an n-gram embedding needs {_NGRAM_KEYS}. Add it."
        )
    eos: Any = record.get("eos_token_id", 2)
    eos = eos[0] if isinstance(eos, list) and eos else eos
    config_json.check_whole("eos_token_id", eos, smallest=0)
    config_json.check_number("ngram_vocab_size_ratio", record["ngram_vocab_size_ratio"])
    for key in ("emb_neighbor_num", "emb_split_num"):
        config_json.check_whole(key, record[key])
    return NgramEmbedding(
        max_order=record["emb_neighbor_num"],
        num_splits=record["emb_split_num"],
        base_rows=int(record["ngram_vocab_size_ratio"] * vocab_size),
        eos_token=eos,
    )


def _write_ngram(config: MoEConfig) -> Json:
    ngram = config.ngram
    if ngram is None:
        return {}
    ratio = ngram.base_rows / config.vocab_size
    if int(ratio * config.vocab_size) < ngram.base_rows:  # as it is read again
        ratio = math.nextafter(ratio, math.inf)
    return {
        "ngram_vocab_size_ratio": int(ratio) if ratio == int(ratio) else ratio,
        "emb_neighbor_num": ngram.max_order,
        "emb_split_num": ngram.num_splits,
        "eos_token_id": ngram.eos_token,
    }


_ATTENTION: Table = {
    "q_a_proj.weight": ("query_down", 1),
    "q_a_layernorm.weight": ("query_norm", 0),
    "q_b_proj.weight": ("query_up", 1),
    "kv_a_proj_with_mqa.weight": ("latent_down", 1),
    "kv_a_layernorm.weight": ("latent_norm", 0),
    "kv_b_proj.weight": ("latent_up", 1),
    "o_proj.weight": ("out", 2),
}
_ROUTER: Table = {"classifier.weight": ("kernel", 1), "e_score_correction_bias": ("bias", 0)}
_MTP: Table = {
    "norm.weight": ("final_norm", 0),
    "layers.0.enorm.m.weight": ("embedding_norm", 0),
    "layers.0.hnorm.m.weight": ("hidden_norm", 0),
    "layers.0.eh_proj.weight": ("projection", 1),
    "layers.0.input_layernorm.weight": ("attention_norm", 0),
    "layers.0.post_attention_layernorm.weight": ("ffn_norm", 0),
}
MTP = "model.mtp."
EMBEDDING = "model.embed_tokens.weight"
EMBEDDING_COPY = "model.mtp.embed_tokens.weight"


def places(config: MoEConfig, leaves: Mapping[str, Any]) -> Iterator[Place]:
    """Every tensor of the published layout, in its order; `leaves` is by path, with shapes.

    The copy of the embedding that comes with a drafting head has the same region as the embedding.
    """
    place = functools.partial(publication.place, leaves)
    table = functools.partial(publication.table, leaves)
    yield place(EMBEDDING, "embedding", 0)
    if config.ngram is not None:
        first = 0
        for index, rows in enumerate(config.ngram.rows):
            prefix = "model.ngram_embeddings"
            among = slice(first, first + rows)
            yield place(f"{prefix}.embedders.{index}.weight", "ngram/table", 0, among)
            yield place(f"{prefix}.post_projs.{index}.weight", "ngram/projection", 1, index)
            first += rows
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for i in (0, 1):
            for norm, leaf in (("input", "attention"), ("post_attention", "ffn")):
                name = f"{prefix}.{norm}_layernorm.{i}.weight"
                yield place(name, f"layers/{leaf}_norm_{i}", 0, layer)
            yield from table(f"{prefix}.self_attn.{i}", f"layers/attention_{i}", _ATTENTION, layer)
            yield from table(f"{prefix}.mlps.{i}", f"layers/ffn_{i}", publication.FFN, layer)
        yield from table(f"{prefix}.mlp.router", "layers/router", _ROUTER, layer)
        for expert in range(config.num_experts):
            own, among = f"{prefix}.mlp.experts.{expert}", slice(None)
            for half, name in enumerate(("gate_proj", "up_proj")):
                at = (layer, expert, among, half)
                yield place(f"{own}.{name}.weight", "layers/experts/gate_up", 1, *at)
            yield place(f"{own}.down_proj.weight", "layers/experts/down", 1, layer, expert)
    yield place("model.norm.weight", "final_norm", 0)
    yield place("lm_head.weight", "head", 1)
    if config.num_mtp_layers:
        yield place(EMBEDDING_COPY, "embedding", 0)
        yield from table(MTP[:-1], "mtp", _MTP)
        yield from table(f"{MTP}layers.0.self_attn", "mtp/attention", _ATTENTION, 0)
        yield from table(f"{MTP}layers.0.transformer_layer.mlp", "mtp/ffn", publication.FFN, 0)


def _select(found: Tensors, opened: Opened, _: Json) -> tuple[Json, Tensors]:
    """The drafting head is a part of the model where it shares the model's embedding.

    One that was published, or has grown apart, with an embedding of its own is left out: it drafts
    tokens and changes none.
    """
    if not any(name.startswith(MTP) for name in found):
        return {"num_mtp_layers": 0}, found
    names = EMBEDDING, EMBEDDING_COPY
    if not set(names) <= set(found) or not publication.bits_differ(found, opened, *names):
        return {"num_mtp_layers": 1}, found
    _log.warning(
        "%s differs from %s: the drafting head is left out, and decoding drafts nothing",
        EMBEDDING_COPY,
        EMBEDDING,
    )
    kept = {name: tensor for name, tensor in found.items() if not name.startswith(MTP)}
    return {"num_mtp_layers": 0}, kept


def _explain(missing: set[str], extra: set[str], config: MoEConfig) -> str | None:
    """The fault behind missing or superfluous names, and its remedy; None for no known one."""
    for name in sorted(extra):
        if re.search(r"experts\.(gate_up_proj|down_proj)$", name):
            return (
                f"{name} holds all experts of a layer, as transformers does in memory. Write one "
                "tensor per expert and projection, as in the published checkpoints."
            )
        expert = re.match(r"model\.layers\.\d+\.mlp\.experts\.(\d+)\.", name)
        if expert and int(expert[1]) >= config.num_experts:
            return (
                f"{name} belongs to an expert past the {config.num_experts} with weights "
                f"(n_routed_experts={config.num_experts}): transformers' save_pretrained writes "
                "such tensors for zero-computation experts, which have none. Delete them, or set "
                "n_routed_experts to what the files hold."
            )
    return None


def _refuse_folded_alphas(
    expected: Sequence[Place], found: Tensors, opened: Opened, record: Json, config: MoEConfig
) -> None:
    """Raises CheckpointError where alpha_q or alpha_kv is already in the norms on latents.

    Serving engines put them there when they load; here they are applied in every call, and a
    checkpoint saved from such an engine would be scaled twice. A fold is told by the mean weight
    of these norms, which is near 1 otherwise: within a quarter of the way from 1 to alpha, in
    logarithms, from alpha. An alpha between 0.78 and 1.28 tells nothing.
    """
    if (record.get(OWN) or {}).get("alpha_folded") is False:
        return
    folded: list[tuple[str, float, float]] = []
    for leaf, name, alpha in (
        ("query_norm", "q_a_layernorm", config.q_scale),
        ("latent_norm", "kv_a_layernorm", config.kv_scale),
    ):
        own = [found[place.name] for place in expected if place.leaf.endswith(leaf)]
        mean = float(np.mean([tensor.view(opened).astype(np.float64).mean() for tensor in own]))
        way = math.log(alpha)
        if abs(way) > 0.25 and mean > 0 and abs(math.log(mean) - way) < abs(way) / 4:
            folded.append((name, mean, alpha))
    if folded:
        means = " and ".join(f"{n} have mean {m:.3g} with alpha {a:.3g}" for n, m, a in folded)
        raise CheckpointError(
            f"the weights of {means}: alpha is folded into them, as serving engines do when they "
            "load, and would be applied twice. Divide these weights by alpha, or take the "
            'published ones. If they were trained to this, add "loong_jax": {"alpha_folded": '
            "false} to config.json."
        )


PUBLICATION = Publication(
    architectures=ARCHITECTURES,
    model_types=MODEL_TYPES,
    config_type=MoEConfig,
    read_config=read_config,
    write_config=write_config,
    abstract_weights=abstract_weights,
    places=places,
    embedding=EMBEDDING,
    select=_select,
    is_float32=lambda leaf: leaf.startswith("layers/router/"),
    explain=_explain,
    check_values=_refuse_folded_alphas,
)
