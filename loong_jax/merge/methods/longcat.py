"""The recipe of the LongCat-Flash-Thinking report."""

import dataclasses
import math
from typing import Literal

import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.merge.methods import measures, method
from loong_jax.merge.methods.thinning import Thinning


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

    def __post_init__(self):
        method.check_share("keep_rate", self.keep_rate)
        method.check_scale(self.scale)

    def tells_matrices_apart(self, is_thinned):
        return is_thinned or self.normalise == "per_tensor"

    def measure_model(self, model):
        """Norms over everything that is merged, summed in float64 over matrices."""
        if self.normalise != "global":
            return {}
        norms = np.sqrt(sum(matrix.sums(measures.squares) for matrix in model.matrices()))
        for name, norm in zip(model.names, norms, strict=True):
            if not math.isfinite(norm):
                raise ConfigError(
                    f"Expert {name} or the base holds NaN or inf; it cannot be merged."
                )
        return {"factors": tuple(_balance(norms).tolist())}

    def factors(self, matrix):
        if self.normalise == "per_tensor":
            return _balance(np.sqrt(matrix.sums(measures.squares)))
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
