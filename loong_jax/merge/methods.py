"""The methods of fusion: settings as data, and each equation as a function of one leaf.

b is the base, e_i an expert, d_i = e_i - b its delta, w_i its weight; everything is float32.
`axes` are the axes of one matrix: statistics are taken over them, so a stack of matrices gives
what its matrices give one by one. Deltas are tuples over experts rather than one stacked array, so
a leaf keeps its sharding and the compiler its fusion.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from loong_jax.errors import ConfigError

Deltas = tuple[Float[Array, "*leaf"], ...]
Marks = tuple[Bool[Array, "*leaf"], ...]
Number = Float[Array, "..."] | float  # traced, so that a grid of settings is compiled once
Numbers = tuple[Number, ...]  # one per expert, or one per expert and matrix


class FusedLeaf(NamedTuple):
    value: Float[Array, "*leaf"]
    kept: Marks  # what dropout, trimming or selection left of each delta
    agreed: Marks  # what the election left of it


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongcatFusion:
    """Normalise, drop out, erase, add: the report's recipe (LongCat-Flash-Thinking, 3.4.2).

    The report names the steps and gives no numbers. Ours: norms are global, so a delta keeps its
    profile over layers; survivors are divided by the keep rate; the rest is a weighted sum with
    weights of sum 1, because after dropout the mean over survivors is biased.
    """

    scale: float = 1.0  # multiplies the fused delta
    keep_rate: float = 0.8  # q, probability that an entry of a delta survives dropout
    normalise: Literal["global", "per_tensor", "none"] = "global"
    rescale: Literal["inverse", "l1"] = "inverse"
    erase: bool = True
    zero_sum: Literal["plus", "drop"] = "plus"  # sign elected where the deltas cancel exactly
    combine: Literal["sum", "disjoint_mean"] = "sum"
    seed: int = 0

    def __post_init__(self):
        _check_share("keep_rate", self.keep_rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Weighted mean of the models; needs no base. Model soups, arXiv:2203.05482."""

    normalise: bool = True  # divide by the sum of weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArithmetic:
    """Weighted sum of the deltas. arXiv:2212.04089."""

    scale: float = 1.0
    normalise: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ties:
    """Trim each delta to its largest entries, elect signs, average what agrees. arXiv:2306.01708.

    Trimming is per matrix; the authors' code trims over the whole model.
    """

    scale: float = 1.0
    density: float = 0.2  # share of the entries of a matrix that trimming keeps
    normalise: bool = True

    def __post_init__(self):
        _check_share("density", self.density)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dare:
    """Drop entries of each delta at random, rescale, combine. arXiv:2311.03099.

    `rescale="inverse"` is the paper's 1/q; "l1" restores each matrix's L1 norm, as mergekit does.
    """

    scale: float = 1.0
    keep_rate: float = 0.5
    rescale: Literal["inverse", "l1"] = "inverse"
    combine: Literal["sum", "ties"] = "sum"
    normalise: bool = False
    seed: int = 0

    def __post_init__(self):
        _check_share("keep_rate", self.keep_rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sce:
    """Select by variance, calculate weights from energy, erase minorities. arXiv:2408.07990.

    `select="deltas"` zeroes what is not selected, as mergekit does; "weights" uses the selection
    for the weights alone, as the authors' code does. Energies that sum to `floor` or less give
    equal weights: with mergekit's 1e-6, deltas of the size that RL makes would switch the
    calculation off, so ours is 0.
    """

    select_rate: float = 1.0  # share of the positions with variance
    select: Literal["deltas", "weights"] = "deltas"
    floor: float = 0.0

    def __post_init__(self):
        _check_share("select_rate", self.select_rate)


Method = LongcatFusion | Linear | TaskArithmetic | Ties | Dare | Sce


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name}={value} is a share and must lie in (0, 1]. 1 keeps everything.")


def longcat(
    base: Float[Array, "*leaf"],
    deltas: Deltas,
    masks: Marks | None,
    weights: Numbers,
    factors: Numbers,
    axes: tuple[int, ...],
    *,
    scale: Number,
    keep_rate: Number,
    normalise: str,
    rescale: str,
    erase: bool,
    zero_sum: str,
    combine: str,
) -> FusedLeaf:
    """value = b + scale sum_i w_i K_i t_i, with t_i = r_i m_i n_i d_i.

    n_i brings every delta to the mean norm (`factors` if global); m_i is the mask and r_i its
    rescale; K_i = 1 where w_i t_i has the sign of sum_j w_j t_j. `combine="disjoint_mean"` divides
    by sum_i w_i K_i.
    """
    if normalise == "per_tensor":
        factors = balance(tuple(_norm(delta, axes) for delta in deltas))
    scaled = tuple(factor * delta for factor, delta in zip(factors, deltas, strict=True))
    thinned = drop_out(scaled, masks, axes, keep_rate=keep_rate, rescale=rescale)
    weighted = _weigh(thinned, weights)
    agreed = elect(weighted, zero_sum) if erase else _everywhere(deltas)
    total = _add_where(agreed, weighted)
    if combine == "disjoint_mean":
        total = total / _nonzero(_add_where(agreed, _spread(weights, base)))
    return FusedLeaf(base + scale * total, masks or _everywhere(deltas), agreed)


def linear(experts: Deltas, weights: Numbers, *, normalise: bool) -> FusedLeaf:
    """value = sum_i w_i e_i / sum_i w_i, or the sum alone."""
    total = _sum(_weigh(experts, weights))
    value = total / sum(weights) if normalise else total
    return FusedLeaf(value, _everywhere(experts), _everywhere(experts))


def task_arithmetic(
    base: Float[Array, "*leaf"],
    deltas: Deltas,
    weights: Numbers,
    *,
    scale: Number,
    normalise: bool,
) -> FusedLeaf:
    """value = b + scale sum_i w_i d_i, over sum_i w_i where normalised."""
    total = _sum(_weigh(deltas, weights))
    total = total / sum(weights) if normalise else total
    return FusedLeaf(base + scale * total, _everywhere(deltas), _everywhere(deltas))


def ties(
    base: Float[Array, "*leaf"],
    deltas: Deltas,
    weights: Numbers,
    num_kept: Array | int,
    axes: tuple[int, ...],
    *,
    scale: Number,
    normalise: bool,
) -> FusedLeaf:
    """value = b + scale sum_i w_i t_i K_i / sum_i w_i K_i, t_i the `num_kept` largest of each d_i.

    K_i = 1 where w_i t_i has the sign of the sum, a sum of zero counting as plus. All entries that
    equal the smallest kept one are kept, as in the authors' code.
    """
    kept = tuple(largest(jnp.abs(delta), num_kept, axes) for delta in deltas)
    trimmed = tuple(jnp.where(mark, d, 0.0) for mark, d in zip(kept, deltas, strict=True))
    return _elected_mean(base, trimmed, kept, weights, scale=scale, normalise=normalise)


def dare(
    base: Float[Array, "*leaf"],
    deltas: Deltas,
    masks: Marks | None,
    weights: Numbers,
    axes: tuple[int, ...],
    *,
    scale: Number,
    keep_rate: Number,
    rescale: str,
    combine: str,
    normalise: bool,
) -> FusedLeaf:
    """value = b + scale sum_i w_i r_i m_i d_i, or with the election of TIES over the same terms."""
    thinned = drop_out(deltas, masks, axes, keep_rate=keep_rate, rescale=rescale)
    kept = masks or _everywhere(deltas)
    if combine == "ties":
        return _elected_mean(base, thinned, kept, weights, scale=scale, normalise=normalise)
    fused = task_arithmetic(base, thinned, weights, scale=scale, normalise=normalise)
    return fused._replace(kept=kept)


def sce(
    base: Float[Array, "*leaf"],
    deltas: Deltas,
    axes: tuple[int, ...],
    *,
    select_rate: float,
    select: str,
    floor: float,
) -> FusedLeaf:
    """value = b + sum_i w_i K_i d_i / sum_i w_i K_i, with w_i = mean(d_i^2) over the experts' sum.

    Selection keeps the `select_rate` of the positions with the largest variance over experts;
    K_i = 1 where d_i has the sign of the unweighted sum, a sum of zero counting as plus.
    """
    kept = _everywhere(deltas)[0]
    if select_rate < 1:
        center = _sum(deltas) / len(deltas)
        variance = _sum([jnp.square(delta - center) for delta in deltas]) / len(deltas)
        num_moved = jnp.sum(variance > 0, axis=axes, keepdims=True)
        num_kept = jnp.floor(num_moved * jnp.float32(select_rate)).astype(jnp.int32)
        kept = largest(variance, num_kept, axes)
    selected = tuple(jnp.where(kept, delta, 0.0) for delta in deltas)
    energies = [jnp.mean(jnp.square(delta), axis=axes, keepdims=True) for delta in selected]
    total = _sum(energies)
    weights = tuple(
        jnp.where(total <= floor, 1.0 / len(deltas), energy / _nonzero(total))
        for energy in energies
    )
    merged = selected if select == "deltas" else deltas
    fused = _elected_mean(base, merged, (kept,) * len(deltas), weights, plain_election=True)
    return fused if select == "deltas" else fused._replace(kept=_everywhere(deltas))


def elect(terms: Deltas, zero_sum: str = "plus") -> Marks:
    """Where each term has the sign of the sum of terms. A term of exactly zero never agrees."""
    total = _sum(terms)
    sign = jnp.sign(total) if zero_sum == "drop" else jnp.where(total >= 0, 1.0, -1.0)
    return tuple((jnp.sign(term) == sign) & (term != 0) for term in terms)


def drop_out(
    deltas: Deltas, masks: Marks | None, axes: tuple[int, ...], *, keep_rate: Number, rescale: str
) -> Deltas:
    """m_i d_i r_i, with r_i = 1/q, or sum |d_i| / sum |m_i d_i| per matrix if rescale is "l1"."""
    if masks is None:
        return deltas
    thinned = tuple(jnp.where(mask, d, 0.0) for mask, d in zip(masks, deltas, strict=True))
    if rescale == "inverse":
        return tuple(delta / keep_rate for delta in thinned)
    before = [jnp.sum(jnp.abs(delta), axis=axes, keepdims=True) for delta in deltas]
    after = [jnp.sum(jnp.abs(delta), axis=axes, keepdims=True) for delta in thinned]
    return tuple(t * (x / _nonzero(y)) for t, x, y in zip(thinned, before, after, strict=True))


def largest(
    x: Float[Array, "*leaf"], num_kept: Array | int, axes: tuple[int, ...]
) -> Bool[Array, "*leaf"]:
    """Marks the `num_kept` largest of each matrix of non-negative numbers, and all that equal them.

    Bits of non-negative floats are ordered like the floats, so 31 counts find the threshold bit by
    bit: exact, without a sort or a gather, and the same on every mesh. `num_kept` may be one number
    or one per matrix (axes kept with size 1); 0 marks nothing.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    start = jnp.zeros_like(jnp.sum(bits, axis=axes, keepdims=True, dtype=jnp.uint32))

    def add_bit(step: Array, threshold: Array) -> Array:
        higher = threshold | (jnp.uint32(1) << (30 - step).astype(jnp.uint32))
        count = jnp.sum(bits >= higher, axis=axes, keepdims=True, dtype=jnp.int32)
        return jnp.where(count >= num_kept, higher, threshold)

    threshold = jax.lax.fori_loop(0, 31, add_bit, start)
    return (bits >= threshold) & (num_kept > 0)


def balance(norms: Numbers) -> Numbers:
    """Factors that bring every norm to the mean of those that are not zero."""
    moved = sum(jnp.where(jnp.asarray(norm) > 0, 1.0, 0.0) for norm in norms)
    mean = sum(norms) / _nonzero(moved)
    return tuple(jnp.where(jnp.asarray(n) > 0, mean / _nonzero(n), 1.0) for n in norms)


def _elected_mean(
    base: Array,
    deltas: Deltas,
    kept: Marks,
    weights: Numbers,
    *,
    scale: Number = 1.0,
    normalise: bool = True,
    plain_election: bool = False,
) -> FusedLeaf:
    weighted = _weigh(deltas, weights)
    agreed = elect(deltas if plain_election else weighted)
    total = _add_where(agreed, weighted)
    if normalise:
        total = total / _nonzero(_add_where(agreed, _spread(weights, base)))
    return FusedLeaf(base + scale * total, kept, agreed)


def _weigh(deltas: Deltas, weights: Numbers) -> Deltas:
    return tuple(weight * delta for weight, delta in zip(weights, deltas, strict=True))


def _spread(weights: Numbers, like: Array) -> Deltas:
    return tuple(
        jnp.broadcast_to(jnp.asarray(weight, jnp.float32), like.shape) for weight in weights
    )


def _add_where(marks: Marks, terms: Deltas) -> Array:
    return _sum([jnp.where(m, term, 0.0) for m, term in zip(marks, terms, strict=True)])


def _sum(terms: Sequence[Array]) -> Array:
    return functools.reduce(operator.add, terms)


def _everywhere(deltas: Deltas) -> Marks:
    return tuple(jnp.ones_like(delta, dtype=bool) for delta in deltas)


def _nonzero(x: Array | float) -> Array:
    return jnp.where(jnp.asarray(x) == 0, 1.0, x)


def _norm(delta: Array, axes: tuple[int, ...]) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(delta), axis=axes, keepdims=True))
