"""Fusing experts in parameter space, as pure functions over pytrees."""

from loong_jax.merge.fuse import fuse
from loong_jax.merge.methods import (
    Dare,
    Linear,
    LongcatFusion,
    Method,
    Sce,
    TaskArithmetic,
    Ties,
)
from loong_jax.merge.tree import PathRules

__all__ = [
    "Dare",
    "Linear",
    "LongcatFusion",
    "Method",
    "PathRules",
    "Sce",
    "TaskArithmetic",
    "Ties",
    "fuse",
]
