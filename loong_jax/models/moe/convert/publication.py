"""How LongCat-Flash checkpoints are published: their names, and what only values tell."""

import logging
import math
import re
from collections.abc import Sequence

import numpy as np

from loong_jax.errors import CheckpointError
from loong_jax.models.hf.files import Opened
from loong_jax.models.hf.places import Place
from loong_jax.models.hf.publication import Json, Publication, Tensors
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.convert import hf_config, names
from loong_jax.models.moe.convert.names import EMBEDDING, EMBEDDING_COPY
from loong_jax.models.moe.model import abstract_weights

_log = logging.getLogger(__name__)


def _select(found: Tensors, opened: Opened, _: Json) -> tuple[Json, Tensors]:
    """The drafting head is a part of the model where it shares the model's embedding.

    One that was published, or has grown apart, with an embedding of its own is left out: it drafts
    tokens and changes none.
    """
    if not any(name.startswith(names.MTP) for name in found):
        return {"num_mtp_layers": 0}, found
    if not _embeddings_differ(found, opened):
        return {"num_mtp_layers": 1}, found
    _log.warning(
        "%s differs from %s: the drafting head is left out, and decoding drafts nothing",
        EMBEDDING_COPY,
        EMBEDDING,
    )
    kept = {name: tensor for name, tensor in found.items() if not name.startswith(names.MTP)}
    return {"num_mtp_layers": 0}, kept


def _embeddings_differ(found: Tensors, opened: Opened, rows: int = 4096) -> bool:
    """Whether the drafting head brings an embedding that is another than the model's."""
    if not (EMBEDDING in found and EMBEDDING_COPY in found):
        return False
    a, b = found[EMBEDDING], found[EMBEDDING_COPY]
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return True
    for at in range(0, a.shape[0], rows):
        end = min(at + rows, a.shape[0])
        ours, theirs = (x.rows(opened, at, end).view(np.uint8) for x in (a, b))
        if not np.array_equal(ours, theirs):
            return True
    return False


def _explain(missing: set[str], extra: set[str], config: MoEConfig) -> str | None:
    """What is wrong with names that are missing or too many, and the remedy."""
    fused = [name for name in extra if re.search(r"experts\.(gate_up_proj|down_proj)$", name)]
    dummies = [name for name in extra if _expert_of(name) >= config.num_experts]
    if fused:
        return (
            f"{fused[0]} holds all experts of a layer, as transformers does in memory. Write one "
            "tensor per expert and projection, as in the published checkpoints."
        )
    if dummies:
        return (
            f"{sorted(dummies)[0]} belongs to an expert past the {config.num_experts} with weights "
            f"(n_routed_experts={config.num_experts}): transformers' save_pretrained writes such "
            "tensors for zero-computation experts, which have none. Delete them, or set "
            "n_routed_experts to what the files hold."
        )
    return None


def _expert_of(name: str) -> int:
    found = re.match(r"model\.layers\.\d+\.mlp\.experts\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _refuse_folded_alphas(
    expected: Sequence[Place], found: Tensors, opened: Opened, record: Json, config: MoEConfig
) -> None:
    """Raises CheckpointError where alpha_q or alpha_kv is already in the norms on latents.

    Serving engines put them there when they load; here they are applied in every call, and a
    checkpoint saved from such an engine would be scaled twice. A fold is told by the mean weight
    of these norms, which is near 1 otherwise: within a quarter of the way from 1 to alpha, in
    logarithms, from alpha. An alpha between 0.78 and 1.28 tells nothing.
    """
    if (record.get(hf_config.OWN) or {}).get("alpha_folded") is False:
        return
    norms = (
        ("query_norm", "q_a_layernorm", config.q_scale),
        ("latent_norm", "kv_a_layernorm", config.kv_scale),
    )
    folded: list[tuple[str, float, float]] = []
    for leaf, name, alpha in norms:
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
    architectures=hf_config.ARCHITECTURES,
    model_types=hf_config.MODEL_TYPES,
    config_type=MoEConfig,
    read_config=hf_config.read_config,
    write_config=hf_config.write_config,
    abstract_weights=abstract_weights,
    places=names.places,
    embedding=EMBEDDING,
    select=_select,
    is_float32=lambda leaf: leaf.startswith("layers/router/"),
    explain=_explain,
    check_values=_refuse_folded_alphas,
)
