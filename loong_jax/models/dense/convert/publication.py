"""How dense decoders are published: the names of their tensors."""

import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from loong_jax.models.dense.config import DenseConfig
from loong_jax.models.dense.convert import hf_config
from loong_jax.models.dense.model import abstract_weights
from loong_jax.models.hf import places as place_room
from loong_jax.models.hf.files import Opened
from loong_jax.models.hf.places import Place, Table
from loong_jax.models.hf.publication import Json, Publication, Tensors

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
_FFN: Table = {
    "gate_proj.weight": ("gate", 1),
    "up_proj.weight": ("up", 1),
    "down_proj.weight": ("down", 1),
}
_FFN_VECTORS = {f"{name}_proj.bias": f"{name}_bias" for name in ("gate", "up", "down")}
_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}

_log = logging.getLogger(__name__)


def places(config: DenseConfig, leaves: Mapping[str, Any]) -> Iterator[Place]:
    """Every tensor of the published layout, in its order; `leaves` is by path, with shapes."""
    yield place_room.place(leaves, EMBEDDING, "embedding", 0)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for room, leaf, matrices, vectors in (
            ("self_attn", "layers/attention", _ATTENTION, _ATTENTION_VECTORS),
            ("mlp", "layers/ffn", _FFN, _FFN_VECTORS),
        ):
            yield from place_room.table(leaves, f"{prefix}.{room}", leaf, matrices, layer)
            for name, ours in vectors.items():
                if f"{leaf}/{ours}" in leaves:
                    yield _vector(leaves, f"{prefix}.{room}.{name}", f"{leaf}/{ours}", layer)
        for name, ours in _NORMS.items():
            yield place_room.place(leaves, f"{prefix}.{name}.weight", f"layers/{ours}", 0, layer)
    yield place_room.place(leaves, "model.norm.weight", "final_norm", 0)
    if not config.tied:
        yield place_room.place(leaves, HEAD, "head", 1)


def _vector(leaves: Mapping[str, Any], name: str, leaf: str, layer: int) -> Place:
    """A bias or norm, which is published without axes for its heads."""
    place = place_room.place(leaves, name, leaf, 0, layer)
    return place._replace(shape=(math.prod(place.shape),))


def _select(found: Tensors, opened: Opened, record: Json) -> tuple[Json, Tensors]:
    """Without tables that older files hold, and with one tensor where embedding and head are one.

    A head that differs from the embedding is a head of its own, whatever config.json says.
    """
    kept = {name: t for name, t in found.items() if not re.search(r"rotary_emb\.inv_freq$", name)}
    if record.get("tie_word_embeddings") is not True or HEAD not in kept:
        return {}, kept
    if EMBEDDING in kept and _differ(kept, opened):
        _log.warning(
            "%s differs from %s, and config.json has tie_word_embeddings=true: the model is loaded "
            "with both",
            HEAD,
            EMBEDDING,
        )
        return {"tied": False}, kept
    head = kept.pop(HEAD)
    return {}, {EMBEDDING: head} | kept


def _differ(found: Tensors, opened: Opened, rows: int = 4096) -> bool:
    a, b = found[EMBEDDING], found[HEAD]
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return True
    ends = ((at, min(at + rows, a.shape[0])) for at in range(0, a.shape[0], rows))
    bits = ([x.rows(opened, *end).view(np.uint8) for x in (a, b)] for end in ends)
    return any(not np.array_equal(first, second) for first, second in bits)


PUBLICATION = Publication(
    architectures=tuple(hf_config.ARCHITECTURES),
    model_types=tuple(one.model_type for one in hf_config.ARCHITECTURES.values()),
    config_type=DenseConfig,
    read_config=hf_config.read_config,
    write_config=hf_config.write_config,
    abstract_weights=abstract_weights,
    places=places,
    embedding=EMBEDDING,
    select=_select,
)
