"""What a checkpoint must hold: names, shapes and dtypes, checked before any tensor is loaded."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from loong_jax.errors import CheckpointError
from loong_jax.models.hf.files import CODES
from loong_jax.models.hf.places import Place
from loong_jax.models.hf.publication import Publication, Tensors
from loong_jax.models.hf.quantised import FLOATS


def check(
    expected: Sequence[Place], found: Tensors, config: Any, publication: Publication
) -> dict[str, np.dtype]:
    """The dtype of every leaf, by path. Raises CheckpointError where `found` is not `expected`.

    All tensors are of one floating dtype, vectors perhaps float32, and leaves that a family keeps
    in float32 of any.
    """
    _check_names({place.name for place in expected}, set(found), config, publication)
    for place in expected:
        shape = found[place.name].shape
        if shape != place.shape:
            raise CheckpointError(
                f"{place.name} has the shape {list(shape)}, and by config.json it is "
                f"{list(place.shape)}. Take config.json and weights from the same checkpoint."
            )
    matrices = [place for place in expected if not publication.is_float32(place.leaf)]
    common, _ = collections.Counter(found[place.name].dtype for place in matrices).most_common(1)[0]
    dtypes: dict[str, np.dtype] = {}
    for place in expected:
        dtype = found[place.name].dtype
        if publication.is_float32(place.leaf):
            allowed, kept = FLOATS, FLOATS[0]
        else:
            norms = (FLOATS[0],) if len(place.shape) == 1 else ()
            allowed, kept = (*norms, common if common in FLOATS else FLOATS[0]), dtype
        if dtype not in allowed or dtypes.setdefault(place.leaf, kept) != kept:
            wanted = dtypes.get(place.leaf, allowed[-1])
            raise CheckpointError(
                f"{place.name} is {CODES[dtype]} and must be {CODES[wanted]}: all tensors are of "
                "one floating dtype, norms perhaps float32. Take the tensor from the published "
                "checkpoint, or export the model again in one dtype."
            )
    return dtypes


def _check_names(
    expected: set[str], found: set[str], config: Any, publication: Publication
) -> None:
    missing, extra = expected - found, found - expected
    reason = publication.explain(missing, extra, config) if missing or extra else None
    if reason is not None:
        raise CheckpointError(reason)
    if missing:
        raise CheckpointError(
            f"{_some(missing)} missing. Fetch the checkpoint again, or correct the sizes in "
            "config.json."
        )
    if extra:
        raise CheckpointError(
            f"{_some(extra)} not in the published layout at these sizes. Correct the sizes in "
            "config.json, or delete what does not belong to the model."
        )


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{rest} {'is' if len(names) == 1 else 'are'}"
