"""The published layout of LongCat-Flash, in and out: config.json and safetensors files."""

from loong_jax.models.moe.convert.hf_load import load_hf
from loong_jax.models.moe.convert.hf_save import save_hf, save_weights_hf

__all__ = ["load_hf", "save_hf", "save_weights_hf"]
