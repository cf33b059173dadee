"""Weighted sums: of models, of deltas, and by the diagonal of the Fisher information."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from loong_jax.errors import ConfigError
from loong_jax.merge.methods import method
from loong_jax.models.parameters import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(method.Method):
    """Weighted mean of the models; needs no base. Model soups, arXiv:2203.05482.

    value = sum_i w_i e_i / sum_i w_i, or the sum alone.
    """

    normalise: bool = True  # divide by the sum of weights

    needs_base = False

    def equation(self, given, known):
        weights = method.shares(given.weights) if self.normalise else given.weights
        return method.add(method.weigh(given.models, weights))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArithmetic(method.Method):
    """Weighted sum of the deltas. arXiv:2212.04089.

    value = b + scale sum_i w_i d_i, over sum_i w_i where normalised.
    """

    scale: float = 1.0
    normalise: bool = False

    def equation(self, given, known):
        weights = method.shares(given.weights) if self.normalise else given.weights
        return given.base + self.scale * method.add(method.weigh(given.deltas, weights))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fisher(method.Method):
    """Mean of the models weighted by w_i and their diagonal Fisher information. arXiv:2111.09832.

    value = sum_i w_i (F_i + floor) e_i / sum_i w_i (F_i + floor)

    Needs `importances`, the information of each expert (see `diagonal_fisher`), and no base.
    """

    floor: float = 1e-6  # added to every importance: where nobody knows, the plain mean

    bounds: ClassVar = {"floor": method.DIVISOR}
    takes_importances = True
    needs_base = False
    weights_are = "shares"

    def equation(self, given, known):
        shares = method.weigh(tuple(f + self.floor for f in given.importances), given.weights)
        terms = [share * model for share, model in zip(shares, given.models, strict=True)]
        return method.add(terms) / method.add(shares)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FisherDeltas(method.Method):
    """Deltas times their coefficients, averaged by importance: DF-Merge. arXiv:2504.18992.

    value = b + n sum_i (F_i + floor) w_i d_i / sum_i (F_i + floor) over n experts

    The weights are its coefficients lambda_i, the importances the Fisher information at
    b + lambda_i d_i; `search.coefficient_search` finds both.
    """

    floor: float = 1e-12

    bounds: ClassVar = {"floor": method.DIVISOR}
    takes_importances = True

    def equation(self, given, known):
        shares = tuple(f + self.floor for f in given.importances)
        weighted = method.weigh(given.deltas, given.weights)
        total = method.add([share * term for share, term in zip(shares, weighted, strict=True)])
        return given.base + len(given.deltas) * (total / method.add(shares))


def diagonal_fisher(
    weights: Weights, samples: Iterable[Any], gradient: Callable[[Weights, Any], Weights]
) -> Weights:
    """The mean over samples of the squared gradient, float32, in the form of the weights.

    arXiv:2111.09832, 3. `gradient` gives the gradient of one sample's log-likelihood: of labels
    drawn from the model for the true Fisher information, of the given ones for the empirical. A
    batch of samples would square a mean, so one sample is one call. For `FisherDeltas` the weights
    are b + lambda_i d_i (arXiv:2504.18992 takes about 30 samples). Raises ConfigError without
    samples.
    """
    total, count = None, 0
    for sample in samples:
        total = _add_square(total, gradient(weights, sample))
        count += 1
    if total is None:
        raise ConfigError("There are no samples to take gradients of. Give at least one.")
    return jax.tree.map(lambda leaf: leaf / count, total)


@jax.jit
def _add_square(total: Weights | None, gradient: Weights) -> Weights:
    square = jax.tree.map(lambda g: jnp.square(g.astype(jnp.float32)), gradient)
    return square if total is None else jax.tree.map(jnp.add, total, square)
