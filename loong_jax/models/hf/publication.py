"""How checkpoints of a model family are published: names of architectures, config, tensors."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loong_jax.errors import ConfigError
from loong_jax.models.hf.files import Opened
from loong_jax.models.hf.places import Place
from loong_jax.models.hf.quantised import Tensor

Json = dict[str, Any]
Tensors = Mapping[str, Tensor]


def _nothing(*_: Any) -> None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Publication:
    """What tells the checkpoints of a family from others, and what their files mean.

    `dtype` and `param_dtype` are fields of its configs. Leaves are by path, with shapes.
    """

    architectures: tuple[str, ...]  # in config.json
    model_types: tuple[str, ...]  # there, where it names no architecture
    config_type: type
    read_config: Callable[..., Any]  # (config.json, **fields it does not decide) -> config
    write_config: Callable[[Any, Json | None, Any], Json]  # (config, imported one, stored dtype)
    abstract_weights: Callable[..., Any]  # (config, rules=None) -> graph, tree of shapes
    places: Callable[[Any, Mapping[str, Any]], Iterator[Place]]  # (config, leaves)
    embedding: str  # the tensor whose dtype is that of the activations
    # (tensors, files, config.json) -> fields of the config that tensors tell, tensors of the model
    select: Callable[[Tensors, Opened, Json], tuple[Json, Tensors]]
    is_float32: Callable[[str], bool] = lambda leaf: False  # a leaf that is, whatever is stored
    # (names missing, names extra, config) -> what is wrong and the remedy, where there is a reason
    explain: Callable[[set[str], set[str], Any], str | None] = _nothing
    # (places, tensors, files, config.json, config); raises CheckpointError
    check_values: Callable[[Sequence[Place], Tensors, Opened, Json, Any], None] = _nothing


def publications() -> tuple[Publication, ...]:
    """Of every family; the first is meant where config.json names nothing."""
    from loong_jax.models.dense import convert as dense  # they are made of this package
    from loong_jax.models.moe import convert as longcat

    return longcat.PUBLICATION, dense.PUBLICATION


def publication_of(record: Mapping[str, Any]) -> Publication:
    """How the model that a config.json names is published.

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
    """How models of a config are published."""
    return next(one for one in publications() if isinstance(config, one.config_type))
