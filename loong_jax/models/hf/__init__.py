"""The published layout of models, in and out: config.json and safetensors files.

What is common to all families. A family says how it is published in a `Publication`.
"""

from loong_jax.models.hf.checkpoint import HfCheckpoint, load_hf, read_config_json, read_weights
from loong_jax.models.hf.publication import Publication
from loong_jax.models.hf.published import publication_of
from loong_jax.models.hf.writing import save_hf, save_weights_hf

__all__ = [
    "HfCheckpoint",
    "Publication",
    "load_hf",
    "publication_of",
    "read_config_json",
    "read_weights",
    "save_hf",
    "save_weights_hf",
]
