"""The table of model families: how weights, caches and histories of each are made.

Whoever serves a model of any family looks its config up with `family_of` and takes the functions
from there; nothing else tells families apart.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from flax import nnx

from loong_jax.errors import ConfigError
from loong_jax.models import dense, moe
from loong_jax.models.dense import DenseConfig
from loong_jax.models.moe import MoEConfig

ModelConfig: TypeAlias = MoEConfig | DenseConfig
Made = tuple[nnx.GraphDef, dict[str, Any]]  # a graph and a nested dict of weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Functions of a config of this family; see the module of each for what they make.

    init_weights(config, key, rules=None) -> the graph and fresh weights, sharded from birth;
    abstract_weights(config, rules=None) -> the same with `jax.ShapeDtypeStruct` as leaves;
    make_cache(config, batch, capacity) -> an empty cache, all leaves [*, *, B, S, *];
    num_before(config) -> tokens before the one to decode that the model is given as `history`;
    drafts(config) -> true for a model with a head that drafts one more token;
    routes -> true for models with routers, whose choices can be recorded and replayed.
    """

    name: str
    config_type: type
    init_weights: Callable[..., Made]
    abstract_weights: Callable[..., Made]
    make_cache: Callable[[Any, int, int], Any]
    num_before: Callable[[Any], int] = lambda config: 0
    drafts: Callable[[Any], bool] = lambda config: False
    routes: bool = False


FAMILIES = (
    Family(
        name="longcat",
        config_type=MoEConfig,
        init_weights=moe.init_weights,
        abstract_weights=moe.abstract_weights,
        make_cache=moe.LatentCache.zeros,
        num_before=lambda config: 0 if config.ngram is None else config.ngram.max_order - 1,
        drafts=lambda config: config.num_mtp_layers > 0,
        routes=True,
    ),
    Family(
        name="dense",
        config_type=DenseConfig,
        init_weights=dense.init_weights,
        abstract_weights=dense.abstract_weights,
        make_cache=dense.KeyValueCache.zeros,
    ),
)


def family_of(config: ModelConfig) -> Family:
    """The family that a model config is of. Raises ConfigError where there is none."""
    for family in FAMILIES:
        if isinstance(config, family.config_type):
            return family
    known = ", ".join(family.config_type.__name__ for family in FAMILIES)
    raise ConfigError(f"{type(config).__name__} is no config of a model. Pass one of {known}.")
