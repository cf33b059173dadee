"""The engine that settings ask for."""

from flax import nnx

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.models.families import ModelConfig
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.paged_engine import PagedEngine
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.sharding import ShardingRules


def engine_for(
    graphdef: nnx.GraphDef,
    model: ModelConfig,
    tokenizer: Tokenizer,
    config: EngineSettings,
    rules: ShardingRules | None = None,
) -> SlotEngine:
    """The engine of a model as `config` says: with slots that own their cache, or over pages."""
    if config.pages is None:
        return SlotEngine.for_model(graphdef, model, tokenizer, config, rules)
    return PagedEngine.for_model(graphdef, model, tokenizer, config, rules)
