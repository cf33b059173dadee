"""Fusing experts in parameter space, as pure functions over pytrees.

Knows: data, errors, models, own, remote, rl.
"""

from loong_jax.merge.fusion import fuse
from loong_jax.merge.methods import (
    METHODS,
    Breadcrumbs,
    Dare,
    Della,
    Fisher,
    FisherDeltas,
    Karcher,
    Linear,
    LongcatFusion,
    Method,
    NuSlerp,
    Ram,
    Sce,
    Slerp,
    TaskArithmetic,
    Ties,
)
from loong_jax.merge.methods.method import FusedLeaf
from loong_jax.merge.methods.sums import diagonal_fisher
from loong_jax.merge.report import fuse_with_report
from loong_jax.merge.search import (
    CoefficientSearch,
    SearchResult,
    coefficient_search,
    grid_search,
    mean_score,
    worst_score,
)
from loong_jax.merge.tree import PathRules

__all__ = [
    "METHODS", "Breadcrumbs", "CoefficientSearch", "Dare", "Della", "Fisher", "FisherDeltas",
    "FusedLeaf", "Karcher", "Linear", "LongcatFusion", "Method", "NuSlerp", "PathRules", "Ram",
    "Sce", "SearchResult", "Slerp", "TaskArithmetic", "Ties", "coefficient_search",
    "diagonal_fisher", "fuse", "fuse_with_report", "grid_search", "mean_score", "worst_score",
]  # fmt: skip
