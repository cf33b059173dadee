"""Which tensor of the published layout belongs where in the weights, and how it is turned.

Published matrices are stored (out, in), ours (in, out) with heads as axes of their own and layers
and experts stacked. So a tensor is one slice of a leaf, transposed. Zero-computation experts have
no tensors. Source: the published checkpoints.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from loong_jax.models.moe.config import MoEConfig

# Published name -> (ours, leading axes that are inputs; 0 where a tensor is stored as we hold it).
_Table = dict[str, tuple[str, int]]

_ATTENTION: _Table = {
    "q_a_proj.weight": ("query_down", 1),
    "q_a_layernorm.weight": ("query_norm", 0),
    "q_b_proj.weight": ("query_up", 1),
    "kv_a_proj_with_mqa.weight": ("latent_down", 1),
    "kv_a_layernorm.weight": ("latent_norm", 0),
    "kv_b_proj.weight": ("latent_up", 1),
    "o_proj.weight": ("out", 2),
}
_DENSE: _Table = {
    "gate_proj.weight": ("gate", 1),
    "up_proj.weight": ("up", 1),
    "down_proj.weight": ("down", 1),
}
_ROUTER: _Table = {
    "classifier.weight": ("kernel", 1),
    "e_score_correction_bias": ("bias", 0),
}
_MTP: _Table = {
    "norm.weight": ("final_norm", 0),
    "layers.0.enorm.m.weight": ("embedding_norm", 0),
    "layers.0.hnorm.m.weight": ("hidden_norm", 0),
    "layers.0.eh_proj.weight": ("projection", 1),
    "layers.0.input_layernorm.weight": ("attention_norm", 0),
    "layers.0.post_attention_layernorm.weight": ("ffn_norm", 0),
}
MTP = "model.mtp."
EMBEDDING = "model.embed_tokens.weight"
EMBEDDING_COPY = "model.mtp.embed_tokens.weight"

Region = tuple[tuple[int, int], ...]  # start and stop along every axis of a leaf


class Place(NamedTuple):
    """One tensor of the published layout and the slice of a leaf that it is."""

    name: str
    leaf: str  # path in the weights, "layers/experts/gate_up"
    region: Region
    shape: tuple[int, ...]  # as stored
    stacked: tuple[int, ...]  # axes of the leaf that the tensor has not

    def turn(self, stored: np.ndarray) -> np.ndarray:
        """The stored tensor, without a copy, as the leaf's region holds it."""
        region_shape = tuple(stop - start for start, stop in self.region)
        return (stored if stored.shape == self._kept() else stored.T).reshape(region_shape)

    def turn_back(self, region: np.ndarray) -> np.ndarray:
        """The contents of the region as they are stored."""
        kept = region.reshape(self._kept())
        if len(self.shape) == 1 or not self._is_turned():
            return kept
        return kept.reshape(self.shape[::-1]).T


def weights_by_path(weights: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a weights tree by path, {"layers/experts/down": leaf}."""
    found = {}
    for key, value in weights.items():
        path = prefix + key
        found |= weights_by_path(value, path + "/") if isinstance(value, Mapping) else {path: value}
    return found
