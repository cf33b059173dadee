"""Statistics of a fusion's deltas: sizes, agreement, losses and gain, per tensor and overall.

All values are JSON: numbers, lists and dicts; None where a quotient has no meaning (a delta of
zero). Products are summed in float32 over a matrix and in float64 over matrices and leaves.
"""

import concurrent.futures
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from loong_jax.errors import ConfigError
from loong_jax.merge import fusion, pieces, streaming, tree
from loong_jax.merge.fusion import MergedLeaf
from loong_jax.merge.methods import method
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
        if self._total is not None:
            sums = Sums._make(x + y for x, y in zip(self._total, sums, strict=True))
        self._total = sums

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
    num_experts = len(leaf.task.experts)
    leaves = (leaf.task.base, *leaf.task.experts.values(), tree.on_host(leaf.value))
    readers = [pieces.PieceReader(one) for one in leaves]

    def sums(at: tuple[int, int]) -> list[np.ndarray]:
        return _sums(*map(np.asarray, _parts(*(read(*at) for read in readers))))

    with concurrent.futures.ThreadPoolExecutor(streaming.num_threads()) as pool:
        found = pool.map(sums, pieces.ranges(leaf.value.size, 1))
        products, both, same = (np.sum(parts, axis=0) for parts in zip(*found, strict=True))
    gram = method.tables(products, num_experts + 2)
    both, same = (method.tables(values, num_experts) for values in (both, same))
    _, kept, agreed = leaf.counts
    return Sums(
        size=int(leaf.value.size),
        gram=gram[:-2, :-2],
        cross=gram[:-2, -2],
        fused=float(gram[-2, -2]),
        base=float(gram[-1, -1]),
        same=same,
        both=both,
        kept=kept,
        erased=kept - agreed,
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


@jax.jit
def _parts(base: Array, *models: Array) -> tuple[Array, Array]:
    """The deltas of the models and the base, one row each; and of every model but the last, bool
    [2, n]: entries that it raised, and that it lowered."""
    start = base.astype(jnp.float32)
    deltas = [model.astype(jnp.float32) - start for model in models]
    moves = [jnp.stack([delta > 0, delta < 0]) for delta in deltas[:-1]]
    return jnp.stack([*deltas, start]), jnp.stack(moves)


def _sums(rows: np.ndarray, moves: np.ndarray) -> list[np.ndarray]:
    """By pair, float64: dot products of rows; entries that both experts move; and move alike.

    By numpy, whose dot products and counts of bits take a fifth of the time of XLA's on a CPU.
    """

    def over_pairs(combine: Any, values: np.ndarray) -> np.ndarray:
        pairs = itertools.combinations_with_replacement(values, 2)
        return np.array([combine(x, y) for x, y in pairs], np.float64)

    def in_common(x: np.ndarray, y: np.ndarray) -> int:
        return int(np.bitwise_count(x & y).sum())

    bits = np.packbits(moves, axis=-1).view(np.uint64)
    moved = bits[:, 0] | bits[:, 1]
    return [over_pairs(np.dot, rows), over_pairs(in_common, moved), over_pairs(in_common, bits)]


def _over(numerator: Any, denominator: Any) -> Any:
    numerator, denominator = np.asarray(numerator, float), np.asarray(denominator, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator == 0, np.nan, numerator / denominator)


def _plain(values: Any) -> Any:
    """Lists and floats, with None for NaN, which JSON lacks."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return None if math.isnan(values) else float(values)
