"""The published layout of LongCat-Flash, in and out: config.json and safetensors files."""

from loong_jax.models.moe.convert.hf_config import read_config, write_config
from loong_jax.models.moe.convert.hf_load import HfCheckpoint, load_hf
from loong_jax.models.moe.convert.hf_save import save_hf, save_weights_hf

__all__ = [
    "HfCheckpoint",
    "load_hf",
    "read_config",
    "save_hf",
    "save_weights_hf",
    "write_config",
]
