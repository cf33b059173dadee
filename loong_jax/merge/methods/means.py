"""Weighted sums of models or of deltas."""

import dataclasses

from loong_jax.merge.methods import method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(method.Method):
    """Weighted mean of the models; needs no base. Model soups, arXiv:2203.05482.

    value = sum_i w_i e_i / sum_i w_i, or the sum alone.
    """

    normalise: bool = True  # divide by the sum of weights

    needs_base = False

    def tells_matrices_apart(self, is_thinned):
        return False

    def equation(self, given, known):
        weights = method.shares(given.weights) if self.normalise else given.weights
        return method.merged(method.add(method.weigh(given.models, weights)), given.models)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArithmetic(method.Method):
    """Weighted sum of the deltas. arXiv:2212.04089.

    value = b + scale sum_i w_i d_i, over sum_i w_i where normalised.
    """

    scale: float = 1.0
    normalise: bool = False

    def __post_init__(self):
        method.check_scale(self.scale)

    def tells_matrices_apart(self, is_thinned):
        return False

    def equation(self, given, known):
        weights = method.shares(given.weights) if self.normalise else given.weights
        total = method.add(method.weigh(given.deltas, weights))
        return method.merged(given.base + self.scale * total, given.deltas)
