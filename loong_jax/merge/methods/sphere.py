"""Methods on a sphere: SLERP, NuSLERP and the Karcher mean, from dot products alone.

What lies on a sphere through the experts is a linear combination of them, so a merge needs their
Gram matrix G_ij = v_i . v_j (float64) and gives coefficients c_i: value = sum_i c_i e_i, or
b + sum_i c_i d_i. No vector is normalised, copied or iterated over.
"""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from loong_jax.errors import ConfigError
from loong_jax.merge.methods import method

_SAME = 1e-8  # sine below which two directions are one, as mergekit's nuslerp has it
_REMEDY = "Merge the leaf with Linear or TaskArithmetic, which know no directions."


class _OnSphere(method.Method):
    needs_base = False
    merges_models = True
    weights_are = "shares"

    def coefficients_of(
        self, cosine: np.ndarray, share: np.ndarray, norm: np.ndarray, path: str
    ) -> np.ndarray:
        raise NotImplementedError

    def measure(self, matrix):
        gram = method.tables(
            matrix.sums(method.products, of_models=self.merges_models), matrix.num_experts
        )
        found = self._coefficients(gram, np.asarray(matrix.weights, float), matrix.path)
        return {"coefficients": method.numbers(found)}

    def _coefficients(
        self, gram: Float[np.ndarray, "I I"], weights: Float[np.ndarray, " I"], path: str
    ) -> Float[np.ndarray, " I"]:
        """c_i of one matrix. Raises ConfigError where a direction is missing or not unique."""
        share, norm = weights / np.sum(weights), np.sqrt(np.diagonal(gram))
        if not np.all(np.isfinite(norm)):
            raise ConfigError(
                f"{path} holds NaN or inf, or entries whose squares overflow float32."
            )
        if not norm.any():
            return share  # nothing moved: any combination of zeros is zero
        if not norm.all():
            raise ConfigError(
                f"{path} is zero in some experts and not in others (norms {norm.tolist()}), and"
                f" {type(self).__name__} goes from one direction to another. {_REMEDY}"
            )
        cosine = np.clip(gram / np.outer(norm, norm), -1.0, 1.0)
        return self.coefficients_of(cosine, share, norm, path)

    def equation(self, given, known):
        vectors = given.models if self.merges_models else given.deltas
        total = method.add(method.weigh(vectors, known["coefficients"]))
        return total if self.merges_models else given.base + total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slerp(_OnSphere):
    """Along the great circle between two models' matrices; needs no base.

    With weights 1 - t and t it is SLERP at t (Shoemake, 1985). Matrices whose cosine exceeds
    `linear_above` are interpolated linearly, as mergekit does.
    """

    linear_above: float = 0.9995

    bounds: ClassVar = method.Method.bounds | {"linear_above": method.UNIT}
    num_experts = 2

    def coefficients_of(self, cosine, share, norm, path):
        return slerp(float(cosine[0, 1]), float(share[1]), self.linear_above, path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NuSlerp(_OnSphere):
    """SLERP of two deltas where a base is given, else of two models; any weights of positive sum.

    mergekit's nuslerp, flattened: linear only where the directions are equal to rounding.
    """

    merges_models = False  # without a base a delta is the model
    num_experts = 2

    def coefficients_of(self, cosine, share, norm, path):
        return slerp(float(cosine[0, 1]), float(share[1]), np.sqrt(1 - _SAME**2), path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Karcher(_OnSphere):
    """Weighted Frechet mean of the directions of the models, times their mean norm.

    arXiv:2603.04972, as mergekit's karcher: from the normalised mean, `max_steps` times to the
    mean of the logarithms, until a step is shorter than `tolerance`. Needs no base.
    """

    max_steps: int = 10
    tolerance: float = 1e-5

    bounds: ClassVar = method.Method.bounds | {
        "max_steps": method.NOT_NEGATIVE,
        "tolerance": method.ANGLE,
    }

    def coefficients_of(self, cosine, share, norm, path):
        return karcher(cosine, share, self, path) * (share @ norm) / norm


def slerp(cosine: float, t: float, linear_above: float, path: str) -> Float[np.ndarray, " 2"]:
    """c = (sin((1 - t) a), sin(t a)) / sin a with a the angle; (1 - t, t) where that is small."""
    if cosine >= linear_above:
        return np.array([1 - t, t])
    if cosine <= -linear_above or cosine <= -np.sqrt(1 - _SAME**2):
        raise ConfigError(
            f"The two experts of {path} are antipodal (cosine {cosine:.6f}), so that no great"
            f" circle is the shortest. {_REMEDY}"
        )
    angle = np.arccos(cosine)
    return np.array([np.sin((1 - t) * angle), np.sin(t * angle)]) / np.sin(angle)


def karcher(
    cosine: Float[np.ndarray, "I I"], share: Float[np.ndarray, " I"], method: Karcher, path: str
) -> Float[np.ndarray, " I"]:
    """The Frechet mean of unit vectors u_i, as coefficients of them.

    m <- cos|t| m + sin|t| t / |t| with t = sum_i w_i log_m(u_i), from the normalised mean on.
    """

    def length(x: np.ndarray) -> float:
        return float(np.sqrt(max(x @ cosine @ x, 0.0)))

    if length(share) < method.tolerance:
        raise ConfigError(
            f"The experts' directions of {path} cancel (their mean has length"
            f" {length(share):.2e}), so that their mean on the sphere is not unique. {_REMEDY}"
        )
    mean = share / length(share)
    for _ in range(method.max_steps):
        toward = np.clip(cosine @ mean, -1.0, 1.0)
        angle = np.arccos(toward)
        pull = np.where(angle < method.tolerance, 0.0, share * angle / np.sin(angle + (angle == 0)))
        step = pull - (pull @ toward) * mean
        size = length(step)
        if size < method.tolerance:
            break
        mean = np.cos(size) * mean + np.sin(size) * step / size
        mean = mean / length(mean)
    return mean
