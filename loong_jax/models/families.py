"""The table of model families: how weights, caches and histories of each are made.

Whoever serves a model of any family looks its config up with `family_of` and takes the functions
from there; nothing else tells families apart.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from flax import nnx
from jax.sharding import Mesh

from loong_jax.errors import ConfigError
from loong_jax.models import dense, moe
from loong_jax.models.dense import DenseConfig
from loong_jax.models.dense.attention import CACHE_AXES
from loong_jax.models.moe import MoEConfig
from loong_jax.models.moe.attention import AXES
from loong_jax.sharding import ShardingRules

ModelConfig: TypeAlias = MoEConfig | DenseConfig
Made = tuple[nnx.GraphDef, dict[str, Any]]  # a graph and a nested dict of weights


def _dense_rules(config: DenseConfig, mesh: Mesh) -> ShardingRules:
    return ShardingRules(mesh=mesh, act_vocab="tensor")


def _moe_rules(config: MoEConfig, mesh: Mesh) -> ShardingRules:
    """Dense weights rest cut over the expert axis as well as over fsdp, as far as they divide.

    They are gathered over both just before use. Those of FFNs, the embedding and the head are cut
    along F and V: over 512 devices a part is whole tiles of TPU memory, and their gradients are
    scattered as they are summed, where 12 of 6144 rows are summed whole.
    """
    over, tensor = ("fsdp", "expert"), mesh.shape["tensor"]
    tables = () if config.ngram is None else (config.hidden_size // len(config.ngram.orders),)
    return ShardingRules(
        mesh=mesh,
        ngram_width=_dividing(("fsdp", "expert", "tensor"), mesh, *tables),
        embed=_dividing(over, mesh, config.hidden_size),
        rank=_dividing(over, mesh, config.q_lora_rank, config.kv_lora_rank),
        ffn=("tensor", *_dividing(over, mesh, config.ffn_hidden_size // tensor)),
        vocab=("tensor", *_dividing(over, mesh, config.vocab_size // tensor)),
        ffn_embed=None,
        vocab_embed=None,
        act_vocab="tensor",
        gathered_at_use=over,
    ).cutting()


def _dividing(axes: tuple[str, ...], mesh: Mesh, *widths: int) -> tuple[str, ...]:
    """The last of these mesh axes that cut every width into equal parts, as many as can."""
    while axes and any(width % math.prod(mesh.shape[a] for a in axes) for width in widths):
        axes = axes[1:]
    return axes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Functions of a config of this family; see the module of each for what they make.

    init_weights(config, key, rules=None) -> the graph and fresh weights, sharded from birth;
    abstract_weights(config, rules=None) -> the same with `jax.ShapeDtypeStruct` as leaves;
    make_cache(config, batch, capacity, rules=None) -> an empty cache, all leaves [*, *, B, S, *];
    cache_axes -> the logical axes of these leaves;
    num_before(config) -> tokens before the one to decode that the model is given as `history`;
    drafts(config) -> true for a model with a head that drafts one more token;
    experts_met(config) -> the mean number of experts with weights that a token meets in a layer;
    routes -> true for models with routers, whose choices can be recorded and replayed;
    training_rules(config, mesh) -> the sharding of a policy that trains on a mesh.
    """

    name: str
    config_type: type
    init_weights: Callable[..., Made]
    abstract_weights: Callable[..., Made]
    make_cache: Callable[..., Any]
    cache_axes: tuple[str | None, ...]
    training_rules: Callable[[Any, Mesh], ShardingRules]
    num_before: Callable[[Any], int] = lambda config: 0
    drafts: Callable[[Any], bool] = lambda config: False
    experts_met: Callable[[Any], float] = lambda config: 0.0
    routes: bool = False


FAMILIES = (
    Family(
        name="longcat",
        config_type=MoEConfig,
        init_weights=moe.init_weights,
        abstract_weights=moe.abstract_weights,
        make_cache=moe.LatentCache.zeros,
        cache_axes=AXES,
        training_rules=_moe_rules,
        num_before=lambda config: 0 if config.ngram is None else config.ngram.max_order - 1,
        drafts=lambda config: config.num_mtp_layers > 0,
        experts_met=lambda config: config.mean_ffn_experts,
        routes=True,
    ),
    Family(
        name="dense",
        config_type=DenseConfig,
        init_weights=dense.init_weights,
        abstract_weights=dense.abstract_weights,
        make_cache=dense.KeyValueCache.zeros,
        cache_axes=CACHE_AXES,
        training_rules=_dense_rules,
    ),
)


def family_of(config: ModelConfig) -> Family:
    """The family that a model config is of. Raises ConfigError where there is none."""
    for family in FAMILIES:
        if isinstance(config, family.config_type):
            return family
    known = ", ".join(family.config_type.__name__ for family in FAMILIES)
    raise ConfigError(f"{type(config).__name__} is no config of a model. Pass one of {known}.")
