"""How each case of mergekit is written with our methods."""

from typing import Any

from loong_jax import merge

LONGCAT = {"normalise": "global", "rescale": "l1"}

SETTINGS: dict[str, merge.Method] = {
    "linear": merge.Linear(),
    "linear_sum": merge.Linear(normalise=False),
    "task_arithmetic": merge.TaskArithmetic(scale=0.7),
    "task_arithmetic_mean": merge.TaskArithmetic(normalise=True),
    "ties": merge.Ties(density=0.2, scale=1.3),
    "ties_sum": merge.Ties(density=0.55, normalise=False),
    "dare_linear": merge.Dare(keep_rate=0.4, scale=0.9, rescale="l1"),
    "dare_ties": merge.Dare(keep_rate=0.4, rescale="l1", combine="ties"),
    "dare_ties_mean": merge.Dare(keep_rate=0.6, rescale="l1", combine="ties", normalise=True),
    "sce": merge.Sce(floor=1e-6),
    "sce_select": merge.Sce(select_rate=0.3, floor=1e-6),
    "longcat": merge.LongcatFusion(keep_rate=0.5, scale=1.5, **LONGCAT),
    "longcat_mean": merge.LongcatFusion(keep_rate=1.0, combine="disjoint_mean", **LONGCAT),
}


def fuse(
    name: str, base: Any, experts: list[Any], masks: list[Any] | None, weights: list[float]
) -> Any:
    """Our fusion of a case; nothing in it is a router, norm or embedding."""
    method = SETTINGS[name]
    is_linear, takes_none = isinstance(method, merge.Linear), isinstance(method, merge.Sce)
    if isinstance(method, merge.LongcatFusion) and method.keep_rate == 1:
        masks = None
    return merge.fuse(
        None if is_linear else base,
        experts,
        method=method,
        weights=None if takes_none else weights,
        masks=masks,
    )
