"""Dropout of deltas: DARE and DELLA, and what they share with the LongCat recipe."""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.merge.methods import method


class Thinning(method.Method):
    """A method whose deltas are multiplied by masks m_i and by c_i, which undo what these took.

    c_i is 1/q, for DELLA 1 over the entry's own keep rate, or the ratio of L1 norms.
    """

    leaves_entries_out = True
    drops_out = True
    keep_rate: float
    rescale: Literal["inverse", "l1"]

    def tells_matrices_apart(self, is_thinned):
        return is_thinned

    def keep_rates(self, num_experts, ranks, row_length) -> tuple[Any, ...]:
        return (self.keep_rate,) * num_experts

    def factors(self, matrix) -> np.ndarray:
        """What deltas are multiplied by besides."""
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

    def __post_init__(self):
        method.check_share("keep_rate", self.keep_rate)
        method.check_scale(self.scale)


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
        method.check_share("keep_rate", self.keep_rate)
        method.check_scale(self.scale)
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
