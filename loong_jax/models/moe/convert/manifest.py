"""What a checkpoint must hold: names, shapes and dtypes, checked before any tensor is loaded."""

import collections
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from loong_jax.errors import CheckpointError
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.convert.files import CODES, DTYPES, StoredTensor
from loong_jax.models.moe.convert.names import EMBEDDING, EMBEDDING_COPY, Place

FLOATS = tuple(DTYPES[code] for code in ("F32", "BF16", "F16"))


def check(
    expected: Sequence[Place], found: Mapping[str, StoredTensor], config: MoEConfig
) -> dict[str, np.dtype]:
    """The dtype of every leaf, by path. Raises CheckpointError where `found` is not `expected`."""
    _check_names([place.name for place in expected], found, config)
    for place in expected:
        shape = found[place.name].shape
        if shape != place.shape:
            raise CheckpointError(
                f"{place.name} has the shape {list(shape)}, and by config.json it is "
                f"{list(place.shape)}. Take config.json and weights from the same checkpoint."
            )
    common, _ = collections.Counter(found[place.name].dtype for place in expected).most_common(1)[0]
    dtypes: dict[str, np.dtype] = {}
    for place in expected:
        dtype, allowed = found[place.name].dtype, _allowed(place, common)
        if dtype not in allowed or dtypes.setdefault(place.leaf, dtype) != dtype:
            wanted = dtypes.get(place.leaf, allowed[-1])
            raise CheckpointError(
                f"{place.name} is {CODES[dtype]} and must be {CODES[wanted]}: routers and their "
                "biases are float32, and all other tensors of one floating dtype, norms perhaps "
                "float32. Take the tensor from the published checkpoint, or export the model again "
                "with routers in float32."
            )
    return dtypes


def _allowed(place: Place, common: np.dtype) -> tuple[np.dtype, ...]:
    if place.leaf.startswith("layers/router/"):
        return (FLOATS[0],)
    norms = (FLOATS[0],) if len(place.shape) == 1 else ()
    return (*norms, common if common in FLOATS else FLOATS[0])


def _check_names(
    expected: Sequence[str], found: Mapping[str, StoredTensor], config: MoEConfig
) -> None:
    missing, extra = set(expected) - set(found), set(found) - set(expected)
    fused = [name for name in extra if re.search(r"experts\.(gate_up_proj|down_proj)$", name)]
    scales = [name for name in extra if name.endswith("weight_scale_inv")]
    dummies = [name for name in extra if _expert_of(name) >= config.num_experts]
    if scales:
        what = f"{scales[0]} is the scale of an fp8 weight"
        remedy = "Import the bf16 checkpoint."
    elif fused:
        what = f"{fused[0]} holds all experts of a layer, as transformers does in memory"
        remedy = "Write one tensor per expert and projection, as in the published checkpoints."
    elif dummies:
        what = (
            f"{sorted(dummies)[0]} belongs to an expert past the {config.num_experts} with weights "
            f"(n_routed_experts={config.num_experts}): transformers' save_pretrained writes such "
            "tensors for zero-computation experts, which have none"
        )
        remedy = "Delete them, or set n_routed_experts to what the files hold."
    elif missing:
        what = f"{_some(missing)} missing"
        remedy = "Fetch the checkpoint again, or correct the sizes in config.json."
    elif extra:
        what = f"{_some(extra)} not in the published layout at these sizes"
        remedy = "Correct the sizes in config.json, or delete what does not belong to the model."
    else:
        return
    raise CheckpointError(f"{what}. {remedy}")


def _expert_of(name: str) -> int:
    found = re.match(r"model\.layers\.\d+\.mlp\.experts\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{rest} {'is' if len(names) == 1 else 'are'}"


# --- what only the values tell -----------------------------------------------------------------

_Mapped = dict[Path, np.memmap]


def check_copy(found: Mapping[str, StoredTensor], mapped: _Mapped, rows: int = 4096) -> None:
    """Raises CheckpointError where the drafting head's copy of the embedding is not one."""
    a, b = (found[name].view(mapped).view(np.uint8) for name in (EMBEDDING, EMBEDDING_COPY))
    starts = range(0, len(a), rows)
    if any(not np.array_equal(a[at : at + rows], b[at : at + rows]) for at in starts):
        raise CheckpointError(
            f"{EMBEDDING_COPY} differs from {EMBEDDING}, and the drafting head shares the model's "
            "embedding. Take both from the same checkpoint, or delete model.mtp.* to leave the "
            "head out."
        )


def refuse_folded_alphas(
    expected: Sequence[Place],
    found: Mapping[str, StoredTensor],
    config: MoEConfig,
    mapped: _Mapped,
) -> None:
    """Raises CheckpointError where alpha_q or alpha_kv is already in the norms on latents.

    Serving engines put them there when they load; here they are applied in every call, and a
    checkpoint saved from such an engine would be scaled twice. A fold is told by the mean weight
    of these norms, which is near 1 otherwise: within a quarter of the way from 1 to alpha, in
    logarithms, from alpha. An alpha between 0.78 and 1.28 tells nothing.
    """
    norms = (
        ("query_norm", "q_a_layernorm", config.q_scale),
        ("latent_norm", "kv_a_layernorm", config.kv_scale),
    )
    folded: list[tuple[str, float, float]] = []
    for leaf, name, alpha in norms:
        own = [found[place.name] for place in expected if place.leaf.endswith(leaf)]
        mean = float(np.mean([tensor.view(mapped).astype(np.float64).mean() for tensor in own]))
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
