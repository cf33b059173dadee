"""LongCat-Flash: latent attention, zero-computation experts, shortcut-connected layers."""

from loong_jax.models.moe.cache import LatentCache
from loong_jax.models.moe.config import MoEConfig
from loong_jax.models.moe.convert import load_hf, save_hf
from loong_jax.models.moe.model import (
    LongcatFlash,
    ModelOutput,
    Weights,
    abstract_weights,
    init_weights,
)
from loong_jax.models.moe.parameters import is_controller_state
from loong_jax.models.moe.router import update_bias

__all__ = [
    "LatentCache",
    "LongcatFlash",
    "MoEConfig",
    "ModelOutput",
    "Weights",
    "abstract_weights",
    "init_weights",
    "is_controller_state",
    "load_hf",
    "save_hf",
    "update_bias",
]
