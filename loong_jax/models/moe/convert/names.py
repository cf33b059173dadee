"""Which tensor of the published LongCat-Flash belongs where in the weights.

Zero-computation experts have no tensors. Source: the published checkpoints.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from loong_jax.models.hf import places as place_room
from loong_jax.models.hf.places import Place, Table
from loong_jax.models.moe.config import MoEConfig

_ATTENTION: Table = {
    "q_a_proj.weight": ("query_down", 1),
    "q_a_layernorm.weight": ("query_norm", 0),
    "q_b_proj.weight": ("query_up", 1),
    "kv_a_proj_with_mqa.weight": ("latent_down", 1),
    "kv_a_layernorm.weight": ("latent_norm", 0),
    "kv_b_proj.weight": ("latent_up", 1),
    "o_proj.weight": ("out", 2),
}
_DENSE: Table = {
    "gate_proj.weight": ("gate", 1),
    "up_proj.weight": ("up", 1),
    "down_proj.weight": ("down", 1),
}
_ROUTER: Table = {
    "classifier.weight": ("kernel", 1),
    "e_score_correction_bias": ("bias", 0),
}
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
    place = functools.partial(place_room.place, leaves)
    table = functools.partial(place_room.table, leaves)
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
            yield from table(f"{prefix}.mlps.{i}", f"layers/ffn_{i}", _DENSE, layer)
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
        yield from table(f"{MTP}layers.0.transformer_layer.mlp", "mtp/ffn", _DENSE, 0)
