"""Dense decoders: Llama, Qwen2 and Qwen3."""

from loong_jax.models.dense.attention import KeyValueCache
from loong_jax.models.dense.config import SHAPES, DenseConfig
from loong_jax.models.dense.model import DenseDecoder, DenseOutput, abstract_weights, init_weights

__all__ = [
    "SHAPES",
    "DenseConfig",
    "DenseDecoder",
    "DenseOutput",
    "KeyValueCache",
    "abstract_weights",
    "init_weights",
]
