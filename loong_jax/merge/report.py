"""What a fusion did to the deltas: sizes, agreement, losses and gain, per tensor and overall.

All values are JSON: numbers, lists and dicts; None where a quotient has no meaning (a delta of
zero). Products are summed in float32 over a matrix and in float64 over matrices and leaves.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from loong_jax.errors import ConfigError
from loong_jax.merge import fusion, tree
from loong_jax.merge.fusion import Experts, MergedLeaf, Plan
from loong_jax.merge.tree import Weights


class Sums(NamedTuple):
    """Sums over entries, float64; I experts. They add over leaves."""

    size: int
    gram: np.ndarray  # [I, I], d_i . d_j
    cross: np.ndarray  # [I], m . d_i with m the fused minus the base weights
    fused: float  # m . m
    base: float  # b . b
    same: np.ndarray  # [I, I], entries that both experts move in one direction
    both: np.ndarray  # [I, I], entries that both experts move
    kept: np.ndarray  # [I], entries moved and left by dropout, trimming or selection
    erased: np.ndarray  # [I], of those, what the election removed


def fuse_with_report(
    base: Weights, experts: Experts, **settings: Any
) -> tuple[Weights, dict[str, Any]]:
    """What `fuse` returns, with the same settings, and a report on it as JSON values.

    {"method", "weights", "experts": [names], "global": RECORD, "tensors": {path: RECORD}}, where a
    RECORD holds num_entries, base_norm, fused_norm (of the fused delta), and by expert: norm of the
    delta, moved (share of entries that differ from the base), kept (share of those left by dropout,
    trimming or selection), erased (share of the kept that the election removed) and retention
    (m . d_i / d_i . d_i, how far the fused model went along the expert's own delta); as matrices
    over experts: cosine of deltas, and sign_agreement among entries that both move; and gain
    (m . r / r . r with r the weighted mean of the deltas; 1 if the experts are identical).
    """
    if base is None:
        raise ConfigError("A fusion report compares with the base. Give the base.")
    plan = fusion.prepare(base, experts, **settings)
    values, records, total = [], {}, None
    for leaf in fusion.merge_leaves(plan):
        values.append(leaf.value)
        if leaf.role in ("merged", "no_dropout"):
            sums = measure(leaf, tree.num_batch_axes(plan.batch_axes, leaf.path, leaf.value.ndim))
            records[leaf.path] = {"role": leaf.role} | describe(sums, plan)
            total = sums if total is None else _add(total, sums)
    report = {
        "method": {"kind": type(plan.method).__name__} | dataclasses.asdict(plan.method),
        "weights": plan.weights,
        "experts": list(plan.experts),
        "global": describe(total, plan) if total is not None else None,
        "tensors": records,
    }
    return jax.tree_util.tree_unflatten(plan.structure, values), report


def measure(leaf: MergedLeaf, batch_axes: int) -> Sums:
    """The sums of one leaf, every expert against every other."""
    experts = tuple(jnp.asarray(expert) for expert in leaf.experts.values())
    sums = _sums(jnp.asarray(leaf.base), experts, jnp.asarray(leaf.value), batch_axes)
    gram, both, same, cross, rest = map(_total, sums)
    gram, both, same = (_table(values, len(experts)) for values in (gram, both, same))
    moved = np.diagonal(both)
    kept = np.asarray(list(leaf.kept.values())) * moved
    return Sums(
        size=int(leaf.value.size),
        gram=gram,
        cross=cross,
        fused=float(rest[0]),
        base=float(rest[1]),
        same=same,
        both=both,
        kept=kept,
        erased=np.asarray(list(leaf.erased.values())) * kept,
    )


def describe(sums: Sums, plan: Plan) -> dict[str, Any]:
    """The record of a leaf or of the whole model; see `fuse_with_report`."""
    names = list(plan.experts)
    weights = np.asarray(list(plan.weights.values()))
    weights = weights / weights.sum() if weights.sum() else weights
    square = np.diagonal(sums.gram)
    moved = np.diagonal(sums.both)
    norms = np.sqrt(np.outer(square, square))

    def by_expert(values: np.ndarray) -> dict[str, float | None]:
        return dict(zip(names, _plain(values), strict=True))

    return {
        "num_entries": sums.size,
        "base_norm": math.sqrt(sums.base),
        "fused_norm": math.sqrt(sums.fused),
        "norm": by_expert(np.sqrt(square)),
        "moved": by_expert(_over(moved, np.full(len(names), sums.size))),
        "kept": by_expert(_over(sums.kept, moved)),
        "erased": by_expert(_over(sums.erased, sums.kept)),
        "retention": by_expert(_over(sums.cross, square)),
        "cosine": [_plain(row) for row in _over(sums.gram, norms)],
        "sign_agreement": [_plain(row) for row in _over(sums.same, sums.both)],
        "gain": _plain(_over(weights @ sums.cross, weights @ sums.gram @ weights)),
    }


@functools.partial(jax.jit, static_argnames="batch_axes")
def _sums(
    base: Array, experts: tuple[Array, ...], fused: Array, batch_axes: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Per matrix: d_i . d_j, both moved and moved alike by pair; m . d_i; m . m and b . b."""
    start = base.astype(jnp.float32)
    deltas = [expert.astype(jnp.float32) - start for expert in experts]
    signs = [jnp.sign(delta) for delta in deltas]
    step = fused.astype(jnp.float32) - start
    axes = tuple(range(batch_axes, base.ndim))

    def over_pairs(rows: list[Array], combine: Any, dtype: Any) -> Array:
        pairs = itertools.combinations_with_replacement(rows, 2)
        return jnp.stack([jnp.sum(combine(x, y), axis=axes, dtype=dtype) for x, y in pairs])

    return (
        over_pairs(deltas, lambda x, y: x * y, jnp.float32),
        over_pairs(signs, lambda x, y: x * y != 0, jnp.int32),
        over_pairs(signs, lambda x, y: x * y > 0, jnp.int32),
        jnp.stack([jnp.sum(step * delta, axis=axes) for delta in deltas]),
        jnp.stack([jnp.sum(jnp.square(x), axis=axes) for x in (step, start)]),
    )


def _total(rows: Array) -> np.ndarray:
    """Each row summed over the stack in float64."""
    exact = np.asarray(rows, np.float64)
    return exact.reshape(len(exact), -1).sum(axis=-1)


def _table(values: np.ndarray, num_rows: int) -> np.ndarray:
    """A symmetric table from its upper triangle, row by row."""
    table = np.zeros((num_rows, num_rows))
    upper = np.triu_indices(num_rows)
    table[upper] = values
    table[upper[::-1]] = values
    return table


def _add(left: Sums, right: Sums) -> Sums:
    return Sums._make(x + y for x, y in zip(left, right, strict=True))


def _over(numerator: Any, denominator: Any) -> Any:
    numerator, denominator = np.asarray(numerator, float), np.asarray(denominator, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator == 0, np.nan, numerator / denominator)


def _plain(values: Any) -> Any:
    """Lists and floats, with None for NaN, which JSON lacks."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return None if math.isnan(values) else float(values)
