"""LongCat-Flash: latent attention, zero-computation experts, shortcut-connected layers."""

from loong_jax.models.moe.cache import LatentCache
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.controller import BiasController, ControllerMemory
from loong_jax.models.moe.growth import stack_config, stack_layers
from loong_jax.models.moe.model import LongcatFlash, ModelOutput, Weights, init_weights
from loong_jax.models.moe.mtp import mtp_loss
from loong_jax.models.moe.parameters import is_controller_state
from loong_jax.models.moe.router import update_bias

__all__ = [
    "BiasController",
    "ControllerMemory",
    "LatentCache",
    "LongcatFlash",
    "MoEConfig",
    "ModelOutput",
    "Weights",
    "init_weights",
    "is_controller_state",
    "mtp_loss",
    "stack_config",
    "stack_layers",
    "update_bias",
]
