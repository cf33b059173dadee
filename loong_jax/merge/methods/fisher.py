"""Means weighted by how much each entry matters: the diagonal of the Fisher information."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from loong_jax.errors import ConfigError
from loong_jax.merge.methods import method
from loong_jax.models.parameters import Weights


class _Weighed(method.Method):
    takes_importances = True
    floor: float

    def __post_init__(self):
        if not 0 < self.floor < float("inf"):
            raise ConfigError(
                f"floor={self.floor} must be positive and finite: it bounds the divisor."
            )

    def tells_matrices_apart(self, is_thinned):
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fisher(_Weighed):
    """Mean of the models weighted by w_i and their diagonal Fisher information. arXiv:2111.09832.

    value = sum_i w_i (F_i + floor) e_i / sum_i w_i (F_i + floor)

    Needs `importances`, the information of each expert (see `diagonal_fisher`), and no base.
    """

    floor: float = 1e-6  # added to every importance: where nobody knows, the plain mean

    needs_base = False
    weights_are = "shares"

    def equation(self, given, known):
        shares = method.weigh(tuple(f + self.floor for f in given.importances), given.weights)
        terms = [share * model for share, model in zip(shares, given.models, strict=True)]
        return method.merged(method.add(terms) / method.add(shares), given.models)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FisherDeltas(_Weighed):
    """Deltas times their coefficients, averaged by importance: DF-Merge. arXiv:2504.18992.

    value = b + n sum_i (F_i + floor) w_i d_i / sum_i (F_i + floor) over n experts

    The weights are its coefficients lambda_i, the importances the Fisher information at
    b + lambda_i d_i; `search.coefficient_search` finds both.
    """

    floor: float = 1e-12

    def equation(self, given, known):
        shares = tuple(f + self.floor for f in given.importances)
        weighted = method.weigh(given.deltas, given.weights)
        total = method.add([share * term for share, term in zip(shares, weighted, strict=True)])
        value = given.base + len(given.deltas) * (total / method.add(shares))
        return method.merged(value, given.deltas)


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
