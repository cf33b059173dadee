"""From settings to an equation: what a program takes as numbers, and what is compiled into it."""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from loong_jax.merge.methods import equations, settings
from loong_jax.merge.methods.equations import Deltas, FusedLeaf, Marks, Numbers
from loong_jax.merge.methods.settings import Method

Kind = type[Method]
_LEAVES_OUT = (  # entries of deltas
    settings.LongcatFusion,
    settings.Ties,
    settings.Dare,
    settings.Della,
    settings.Breadcrumbs,
    settings.Sce,
    settings.Ram,
)


def split(method: Method) -> tuple[dict[str, float], dict[str, Any]]:
    """The settings by name: numbers, which are traced, and choices, which are compiled in."""
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    fields.pop("seed", None)
    numbers = {name: float(value) for name, value in fields.items() if type(value) in (float, int)}
    choices = {name: value for name, value in fields.items() if name not in numbers}
    if isinstance(method, settings.Sce):
        choices["selects"] = method.select_rate < 1
    return numbers, choices


def evaluate(
    kind: Kind,
    base: Array,
    models: Deltas,
    deltas: Deltas,
    masks: Marks | None,
    importances: Deltas | None,
    weights: Numbers,
    known: Mapping[str, Any],
    *,
    of_deltas: bool,
) -> FusedLeaf:
    """The equation of `kind`, NaN where a delta is not finite: a mask, a threshold or an election
    would leave such an entry out and the merge look sound.

    `known` holds settings and statistics by name.
    """
    if kind in _LEAVES_OUT:
        is_finite = functools.reduce(operator.and_, map(jnp.isfinite, deltas))
        base = jnp.where(is_finite, base, jnp.nan)  # to which all of these add
    pick = lambda *names: {name: known[name] for name in names}  # noqa: E731
    if kind is settings.LongcatFusion:
        chosen = pick("scale", "erase", "zero_sum", "combine")
        return equations.longcat(base, deltas, masks, known["multipliers"], weights, **chosen)
    if kind is settings.Linear:
        return equations.linear(models, weights, **pick("normalise"))
    if kind is settings.TaskArithmetic:
        return equations.task_arithmetic(base, deltas, weights, **pick("scale", "normalise"))
    if kind is settings.Ties:
        chosen = pick("scale", "normalise")
        return equations.ties(base, deltas, known["smallest"], weights, **chosen)
    if kind in (settings.Dare, settings.Della):
        chosen = pick("scale", "combine", "normalise")
        return equations.dare(base, deltas, masks, known["multipliers"], weights, **chosen)
    if kind is settings.Breadcrumbs:
        chosen = pick("smallest", "too_large") | {"weights": weights}
        return equations.breadcrumbs(
            base, deltas, **chosen, **pick("scale", "combine", "normalise")
        )
    if kind is settings.Sce:
        chosen = pick("smallest_variance", "select")
        return equations.sce(base, deltas, weights=known["energies"], **chosen)
    if kind is settings.Ram:
        return equations.ram(base, deltas, known["boosts"], **pick("threshold"))
    if kind is settings.Fisher:
        assert importances is not None
        return equations.fisher(models, importances, weights, **pick("floor"))
    if kind is settings.FisherDeltas:
        assert importances is not None
        return equations.fisher_deltas(base, deltas, importances, weights, **pick("floor"))
    vectors = deltas if of_deltas else models
    return equations.on_sphere(base, vectors, known["coefficients"], of_deltas=of_deltas)
