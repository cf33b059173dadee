"""Statistics of a fusion's deltas: sizes, agreement, losses and gain, per tensor and overall.

All values are JSON: numbers, lists and dicts; None where a quotient has no meaning (a delta of
zero). Products are summed in float32 over a matrix and in float64 over matrices and leaves.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from loong_jax.errors import ConfigError
from loong_jax.merge import fusion, pieces, tree
from loong_jax.merge.fusion import MergedLeaf
from loong_jax.merge.methods import measures
from loong_jax.merge.plan import Experts, Plan
from loong_jax.models.parameters import Weights


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
    base: Weights | None, experts: Experts, **settings: Any
) -> tuple[Weights, dict[str, Any]]:
    """Fuses as `fuse` does, with the same settings, and adds a report on it as JSON values.

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
    report, values = Report(plan), []
    for leaf in fusion.merge_leaves(plan):
        values.append(leaf.value)
        report.add(leaf)
    return jax.tree_util.tree_unflatten(plan.structure, values), report.to_json()


class Report:
    """Sums that grow leaf by leaf; `to_json` is what `fuse_with_report` describes."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._records: dict[str, Any] = {}
        self._total: Sums | None = None

    def add(self, leaf: MergedLeaf) -> None:
        task = leaf.task
        if task.role not in ("merged", "no_dropout") or not leaf.value.size:
            return
        sums = measure(leaf)
        self._records[task.path] = {"role": task.role} | describe(sums, self._plan)
        self._total = sums if self._total is None else _add(self._total, sums)

    def to_json(self) -> dict[str, Any]:
        plan, total = self._plan, self._total
        return {
            "method": {"kind": type(plan.method).__name__} | plan.method.settings(),
            "weights": plan.weights,
            "experts": list(plan.experts),
            "global": describe(total, plan) if total is not None else None,
            "tensors": self._records,
        }


def measure(leaf: MergedLeaf) -> Sums:
    """The sums of one leaf, every expert against every other, piece by piece."""
    exact = ([np.asarray(row, np.float64) for row in part] for part in _sums_of_pieces(leaf))
    columns = zip(*exact, strict=True)
    gram, both, same, cross, rest = (np.sum(column, axis=0) for column in columns)
    tables = (measures.tables(values, len(leaf.task.experts)) for values in (gram, both, same))
    gram, both, same = tables
    _, kept, agreed = leaf.counts
    return Sums(
        size=int(leaf.value.size),
        gram=gram,
        cross=cross,
        fused=float(rest[0]),
        base=float(rest[1]),
        same=same,
        both=both,
        kept=kept,
        erased=kept - agreed,
    )


def _sums_of_pieces(leaf: MergedLeaf) -> Iterator[tuple[Array, ...]]:
    leaves = (leaf.task.base, tree.on_host(leaf.value), *leaf.task.experts.values())
    readers = [pieces.reader(one) for one in leaves]
    for at in pieces.ranges(leaf.value.size, 1):
        base, value, *experts = (pieces.padded(read(*at)) for read in readers)
        yield _sums(base, tuple(experts), value)


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


@jax.jit
def _sums(
    base: Array, experts: tuple[Array, ...], fused: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Sums of a piece: d_i . d_j, both moved and moved alike by pair; m . d_i; m . m and b . b."""
    start = base.astype(jnp.float32)
    deltas = [expert.astype(jnp.float32) - start for expert in experts]
    signs = [jnp.sign(delta) for delta in deltas]
    step = fused.astype(jnp.float32) - start

    def over_pairs(rows: list[Array], combine: Any, dtype: Any) -> Array:
        pairs = itertools.combinations_with_replacement(rows, 2)
        return jnp.stack([jnp.sum(combine(x, y), dtype=dtype) for x, y in pairs])

    return (
        over_pairs(deltas, lambda x, y: x * y, jnp.float32),
        over_pairs(signs, lambda x, y: x * y != 0, jnp.int32),
        over_pairs(signs, lambda x, y: x * y > 0, jnp.int32),
        jnp.stack([jnp.sum(step * delta) for delta in deltas]),
        jnp.stack([jnp.sum(jnp.square(x)) for x in (step, start)]),
    )


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
