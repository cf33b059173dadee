"""The published layout of LongCat-Flash: its config.json and the names of its tensors."""

from loong_jax.models.moe.convert.hf_config import read_config, write_config
from loong_jax.models.moe.convert.publication import PUBLICATION

__all__ = ["PUBLICATION", "read_config", "write_config"]
