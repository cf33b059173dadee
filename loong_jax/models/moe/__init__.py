"""LongCat-Flash: latent attention, zero-computation experts, shortcut-connected layers."""

from loong_jax.models.hf.checkpoint import load_hf
from loong_jax.models.hf.writing import save_hf
from loong_jax.models.moe.attention import LatentCache
from loong_jax.models.moe.balance import BiasController, ControllerMemory
from loong_jax.models.moe.config import MoEConfig, NgramEmbedding
from loong_jax.models.moe.exchange import GatherExchange, PaddedExchange, RaggedExchange
from loong_jax.models.moe.model import LongcatFlash, ModelOutput, abstract_weights, init_weights
from loong_jax.models.moe.router import update_bias
from loong_jax.models.moe.scaling import num_active_params, num_params, stack_config, stack_layers
from loong_jax.models.parameters import Weights, is_controller_state
from loong_jax.models.rope import YarnScaling

__all__ = [
    "BiasController",
    "ControllerMemory",
    "GatherExchange",
    "LatentCache",
    "LongcatFlash",
    "MoEConfig",
    "ModelOutput",
    "NgramEmbedding",
    "PaddedExchange",
    "RaggedExchange",
    "Weights",
    "YarnScaling",
    "abstract_weights",
    "init_weights",
    "is_controller_state",
    "load_hf",
    "num_active_params",
    "num_params",
    "save_hf",
    "stack_config",
    "stack_layers",
    "update_bias",
]
