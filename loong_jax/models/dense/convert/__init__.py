"""The published layout of dense decoders: config.json and the names of their tensors."""

from loong_jax.models.dense.convert.hf_config import read_config, write_config
from loong_jax.models.dense.convert.publication import PUBLICATION

__all__ = ["PUBLICATION", "read_config", "write_config"]
