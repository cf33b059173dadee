"""What a fusion did to the deltas: sizes, agreement, losses and gain, per tensor and overall.

All values are JSON: numbers, lists and dicts; None where a quotient has no meaning (a delta of
zero). Products are summed in float32 over a matrix and in float64 over matrices and leaves.
"""

import dataclasses
import functools
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
    tables = _tables(jnp.asarray(leaf.base), experts, jnp.asarray(leaf.value), batch_axes)
    products, both, same = map(_total, tables)
    num, size = len(experts), int(leaf.value.size)
    moved = np.diagonal(both)
    kept = np.asarray(list(leaf.kept.values())) * moved
    return Sums(
        size=size,
        gram=products[:num, :num],
        cross=products[num, :num],
        fused=float(products[num, num]),
        base=float(products[num + 1, num + 1]),
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
def _tables(
    base: Array, experts: tuple[Array, ...], fused: Array, batch_axes: int
) -> tuple[Array, Array, Array]:
    """Products of deltas, fused delta and base; then counts of both moved, and moved alike."""
    start = base.astype(jnp.float32)
    deltas = [expert.astype(jnp.float32) - start for expert in experts]
    vectors = [*deltas, fused.astype(jnp.float32) - start, start]
    axes = tuple(range(batch_axes, base.ndim))

    def table(rows: list[Array], combine: Any) -> Array:
        return jnp.stack([jnp.stack([combine(x, y) for y in rows]) for x in rows])

    products = table(vectors, lambda x, y: jnp.sum(x * y, axis=axes))
    signs = [jnp.sign(delta) for delta in deltas]
    both = table(signs, lambda x, y: jnp.sum(x * y != 0, axis=axes, dtype=jnp.int32))
    same = table(signs, lambda x, y: jnp.sum(x * y > 0, axis=axes, dtype=jnp.int32))
    return products, both, same


def _total(table: Array) -> np.ndarray:
    """[rows, columns], summed in float64 over the stack."""
    exact = np.asarray(table, np.float64)
    return exact.reshape(*exact.shape[:2], -1).sum(axis=-1)


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
