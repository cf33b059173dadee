"""Fusing experts in parameter space, as pure functions over pytrees."""

from loong_jax.merge.fusion import fuse
from loong_jax.merge.methods import (
    Dare,
    Linear,
    LongcatFusion,
    Method,
    Sce,
    TaskArithmetic,
    Ties,
)
from loong_jax.merge.report import fuse_with_report
from loong_jax.merge.search import SearchResult, grid_search, mean_score, worst_score
from loong_jax.merge.tree import PathRules

__all__ = [
    "Dare",
    "Linear",
    "LongcatFusion",
    "Method",
    "PathRules",
    "Sce",
    "SearchResult",
    "TaskArithmetic",
    "Ties",
    "fuse",
    "fuse_with_report",
    "grid_search",
    "mean_score",
    "worst_score",
]
