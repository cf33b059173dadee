"""Dropout of deltas: DARE, DELLA and the recipe of the LongCat-Flash-Thinking report."""

import dataclasses
import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.merge.methods import method


class Thinning(method.Method):
    """A method whose deltas are multiplied by masks m_i and by c_i, which undo what these took.

    c_i is 1/q, for DELLA 1 over the entry's own keep rate, or the ratio of L1 norms.
    """

    drops_out = True
    keep_rate: float
    rescale: Literal["inverse", "l1"]

    def tells_matrices_apart(self, is_thinned):
        return is_thinned

    def factors(self, matrix) -> np.ndarray:
        """Factors of the deltas beside dropout's rescale, one per expert."""
        return np.ones(matrix.num_experts)

    def measure(self, matrix):
        factors = self.factors(matrix)
        if not matrix.is_thinned:
            return {"multipliers": method.numbers(factors)}
        if self.rescale == "l1":
            before, after = matrix.l1_norms()
            ratio = np.divide(before, after, out=np.ones_like(after), where=after > 0)
            return {"multipliers": method.numbers(factors * ratio)}
        if self.ranks_rows:
            return {"multipliers": None}  # of each entry, by its own rate
        return {"multipliers": method.numbers(factors / self.keep_rate)}

    def thinned(self, given: method.Inputs, known: method.Known) -> method.Deltas:
        """c_i m_i d_i."""
        multipliers = known["multipliers"]
        if multipliers is None:
            multipliers = tuple(1 / rate for rate in given.rates)
        scaled = method.weigh(given.deltas, multipliers)
        return scaled if given.masks is None else method.keep(given.masks, scaled)

    def equation(self, given, known):
        """value = b + scale sum_i w_i c_i m_i d_i, or the election of TIES over the same terms."""
        kept = given.masks or method.everywhere(given.deltas)
        return method.combined(given.base, self.thinned(given, known), kept, given.weights, self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dare(Thinning):
    """Drop entries of each delta at random, rescale, combine. arXiv:2311.03099.

    `rescale="inverse"` is the paper's 1/q; "l1" restores each matrix's L1 norm, as mergekit does.
    """

    scale: float = 1.0
    keep_rate: float = 0.5
    rescale: Literal["inverse", "l1"] = "inverse"
    combine: Literal["sum", "ties"] = "sum"
    normalise: bool = False
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Della(Thinning):
    """Dropout that spares large entries, then elect and average. arXiv:2406.11617, MagPrune.

    The keep rates of a row rise with the rank of |d_i| from keep_rate - spread to
    keep_rate + spread. `rescale="inverse"` divides each survivor by its own rate, as the paper
    does; "l1" restores each matrix's L1 norm, as mergekit does. Rows are a matrix' second axis, as
    in mergekit; a vector is one row.
    """

    scale: float = 1.0
    keep_rate: float = 0.5  # mean over a row
    spread: float = 0.15  # epsilon / 2 of the paper, epsilon of mergekit
    rescale: Literal["inverse", "l1"] = "inverse"
    combine: Literal["sum", "ties"] = "ties"
    normalise: bool = True
    seed: int = 0

    ranks_rows = True

    def __post_init__(self):
        super().__post_init__()
        fits = 0 <= self.spread < min(self.keep_rate, 1 - self.keep_rate)
        if self.keep_rate < 1 and not fits:
            raise ConfigError(
                f"keep_rate={self.keep_rate} and spread={self.spread}: both ends of keep_rate +/-"
                " spread must lie in (0, 1). Lower spread, or set keep_rate=1 to drop nothing."
            )

    def keep_rates(self, num_experts, ranks, row_length) -> tuple[Any, ...]:
        if ranks is None:
            return (self.keep_rate,) * num_experts
        if row_length == 1:
            return tuple(jnp.full(of_expert.shape, self.keep_rate) for of_expert in ranks)
        places = (of_expert.astype(jnp.float32) / (row_length - 1) for of_expert in ranks)
        low, width = self.keep_rate - self.spread, 2 * self.spread
        return tuple(low + place * width for place in places)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongcatFusion(Thinning):
    """Normalise, drop out, erase, add: the report's recipe (LongCat-Flash-Thinking, 3.4.2).

    value = b + scale sum_i w_i K_i t_i, with t_i = c_i m_i d_i.

    m_i is the mask; c_i brings every delta to the mean norm and undoes what the mask took; K_i = 1
    where w_i t_i has the sign of sum_j w_j t_j. `combine="disjoint_mean"` divides by sum_i w_i K_i.

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

    weights_are = "shares"

    def tells_matrices_apart(self, is_thinned):
        return is_thinned or self.normalise == "per_tensor"

    def measure_model(self, model):
        """Norms over everything that is merged, summed in float64 over matrices."""
        if self.normalise != "global":
            return {}
        norms = np.sqrt(sum(matrix.sums(method.squares) for matrix in model.matrices()))
        for name, norm in zip(model.names, norms, strict=True):
            if not math.isfinite(norm):
                raise ConfigError(
                    f"Expert {name} or the base holds NaN or inf; it cannot be merged."
                )
        return {"factors": tuple(_balance(norms).tolist())}

    def factors(self, matrix):
        if self.normalise == "per_tensor":
            return _balance(np.sqrt(matrix.sums(method.squares)))
        return np.asarray(matrix.of_model.get("factors", (1.0,) * matrix.num_experts))

    def equation(self, given, known):
        terms = method.weigh(self.thinned(given, known), given.weights)
        everywhere = method.everywhere(terms)
        agreed = method.elect(terms, self.zero_sum) if self.erase else everywhere
        total = method.add(method.keep(agreed, terms))
        if self.combine == "disjoint_mean":
            total = total / method.weight_of(agreed, given.weights, total)
        value = given.base + self.scale * total
        return method.FusedLeaf(value, given.masks or everywhere, agreed)


def _balance(norms: np.ndarray) -> np.ndarray:
    """Factors that bring every norm to the mean of those that are not zero."""
    moved = norms > 0
    mean = norms.sum() / max(moved.sum(), 1)
    return np.divide(mean, norms, out=np.ones_like(norms), where=moved)
