"""Fusing experts in parameter space, as pure functions over pytrees."""

from loong_jax.merge.fusion import fuse
from loong_jax.merge.methods import METHODS, Method
from loong_jax.merge.methods.fisher import Fisher, FisherDeltas, diagonal_fisher
from loong_jax.merge.methods.longcat import LongcatFusion
from loong_jax.merge.methods.means import Linear, TaskArithmetic
from loong_jax.merge.methods.selecting import Ram, Sce
from loong_jax.merge.methods.sphere import Karcher, NuSlerp, Slerp
from loong_jax.merge.methods.thinning import Dare, Della
from loong_jax.merge.methods.trimming import Breadcrumbs, Ties
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
    "METHODS",
    "Breadcrumbs",
    "CoefficientSearch",
    "Dare",
    "Della",
    "Fisher",
    "FisherDeltas",
    "Karcher",
    "Linear",
    "LongcatFusion",
    "Method",
    "NuSlerp",
    "PathRules",
    "Ram",
    "Sce",
    "SearchResult",
    "Slerp",
    "TaskArithmetic",
    "Ties",
    "coefficient_search",
    "diagonal_fisher",
    "fuse",
    "fuse_with_report",
    "grid_search",
    "mean_score",
    "worst_score",
]
