"""The families that are published, told apart by what a config.json names and by their configs."""

from collections.abc import Mapping
from typing import Any

from loong_jax.errors import ConfigError
from loong_jax.models.hf.publication import Publication


def publications() -> tuple[Publication, ...]:
    """The publications of all families; the first is meant where config.json names nothing."""
    from loong_jax.models.dense import hf as dense  # late: the package of each exports `load_hf`
    from loong_jax.models.moe import hf as longcat

    return longcat.PUBLICATION, dense.PUBLICATION


def publication_of(record: Mapping[str, Any]) -> Publication:
    """The publication of the model that a config.json names.

    `architectures` tells, and `model_type` where there is none. Raises ConfigError for a model that
    is not built here.
    """
    named, kind = record.get("architectures"), record.get("model_type")
    if not named and kind is None:
        return publications()[0]
    key, value = ("architectures", named) if named else ("model_type", kind)
    names = named if isinstance(named, list) and named else [kind]
    for one in publications():
        if all(name in (one.architectures if named else one.model_types) for name in names):
            return one
    built = [name for one in publications() for name in getattr(one, key.removesuffix("s") + "s")]
    raise ConfigError(
        f"config.json has {key}={value!r}, and the models built here are {', '.join(built)}. "
        "Choose a checkpoint of one of them."
    )


def published_as(config: Any) -> Publication:
    """The publication of a config's family."""
    return next(one for one in publications() if isinstance(config, one.config_type))
