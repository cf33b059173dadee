"""Rotary positions: pairs of neighbours or of halves, plain or stretched.

Source: arXiv:2104.09864; arXiv:2306.15595 for linear stretching; arXiv:2309.00071, sections 3.2 to
3.4, for YaRN; the released code of Llama 3.1 for its own.
"""

import dataclasses
import math
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from loong_jax.errors import ConfigError, refuse_outside


@dataclasses.dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """Stretches a model's positions by `factor`.

    Pairs that turn more than `beta_fast` times within `original_max_position` keep their frequency,
    those that turn less than `beta_slow` times are slowed down by `factor`, and those between are
    blended. Scores are multiplied by m(mscale_all_dim)^2, where m(s) = 0.1 s ln(factor) + 1; cosine
    and sine by m(mscale) / m(mscale_all_dim), or by `rotary_scale` where it is given.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    rotary_scale: float | None = None
    truncate: bool = True  # blending begins and ends at whole pairs

    def __post_init__(self):
        names = "factor", "original_max_position", "beta_fast", "beta_slow"
        refuse_outside(self, "(0, inf]", *names, why="a setting of yarn")
        if self.rotary_scale is None and not self._magnitude(self.mscale_all_dim):
            raise ConfigError(
                f"yarn.mscale_all_dim={self.mscale_all_dim} and factor={self.factor} make every "
                "score 0. Correct mscale_all_dim, which is 0 or 1 in published models."
            )

    @property
    def score_scale(self) -> float:
        """The factor of attention scores: mscale squared, since queries and keys both carry it."""
        return self._magnitude(self.mscale_all_dim) ** 2

    @property
    def pair_scale(self) -> float:
        """The factor of cosine and sine."""
        if self.rotary_scale is not None:
            return self.rotary_scale
        return self._magnitude(self.mscale) / self._magnitude(self.mscale_all_dim)

    def _magnitude(self, scale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * scale * math.log(self.factor) + 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Slows every pair down by `factor`."""

    factor: float

    def __post_init__(self):
        refuse_outside(self, "(0, inf]", "factor", why="a setting of linear")

    pair_scale = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Slows pairs down by `factor` whose turn takes long.

    A pair that turns at least `high_freq_factor` times within `original_max_position` keeps its
    frequency, one that turns at most `low_freq_factor` times is slowed down by `factor`, and those
    between are blended.
    """

    factor: float
    original_max_position: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self):
        names = "factor", "original_max_position", "low_freq_factor", "high_freq_factor"
        refuse_outside(self, "(0, inf]", *names, why="a setting of llama3")
        if not self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"llama3.low_freq_factor={self.low_freq_factor} is not below high_freq_factor="
                f"{self.high_freq_factor}, and pairs between them are blended. Correct them."
            )

    pair_scale = 1.0


RopeScaling: TypeAlias = YarnScaling | LinearScaling | Llama3Scaling


def frequencies(width: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """Radians per position by which each of the `width` / 2 pairs of a rotary head turns, float32.

    Pair i turns by theta^(-2i / width); `scaling`, where given, slows it down by as much as its
    factor. Every step is rounded to float32, as where the published weights were trained: a
    frequency that is more exact turns a token that is far away by another angle.
    """
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    power = (np.float64(np.float32(theta)) ** exponent).astype(np.float32)
    plain = 1 / power
    match scaling:
        case None:
            return plain
        case YarnScaling():
            kept = _share_kept(width, theta, scaling)
            return 1 / (np.float32(scaling.factor) * power) * (1 - kept) + plain * kept
        case LinearScaling():
            return plain / np.float32(scaling.factor)
        case Llama3Scaling():
            low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
            turns = np.float32(scaling.original_max_position) / (np.float32(2 * math.pi) / plain)
            kept = np.clip((turns - low) / (high - low), 0, 1)
            return (1 - kept) * plain / np.float32(scaling.factor) + kept * plain


def _share_kept(width: int, theta: float, yarn: YarnScaling) -> np.ndarray:
    """By pair, how much of its own frequency it keeps: 1, then falling linearly to 0."""

    def pair_with(turns: float) -> float:
        """The pair, as a real number, that turns so often within the original length."""
        length = yarn.original_max_position / (2 * math.pi * turns)
        return width * math.log(length) / (2 * math.log(theta))

    first, last = pair_with(yarn.beta_fast), pair_with(yarn.beta_slow)
    if yarn.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    past = np.arange(width // 2, dtype=np.float32) - np.float32(first)
    return 1 - np.clip(past / np.float32(last - first or 0.001), 0, 1)


class Turn(NamedTuple):
    """The angle of every token and pair, as its cosine and sine times the scale of pairs."""

    cos: Float[Array, "B T pairs"]
    sin: Float[Array, "B T pairs"]


def turn(
    position: Int[Array, "B T"], width: int, theta: float, scaling: RopeScaling | None = None
) -> Turn:
    """By how much the `width` / 2 pairs of a head turn at each position, float32."""
    turn = jnp.asarray(frequencies(width, theta, scaling))
    angle = position.astype(jnp.float32)[..., None] * turn[None, None]
    scale = 1.0 if scaling is None else scaling.pair_scale
    # Kept as arrays of their own: fused into what follows, they are computed anew for every head.
    return Turn(*jax.lax.optimization_barrier((jnp.cos(angle) * scale, jnp.sin(angle) * scale)))


def turned(x: Float[Array, "B T *heads R"], turn: Turn) -> Float[Array, "B T *heads R"]:
    """Rotary embedding of pairs (i, R / 2 + i), in float32."""
    shape = (*x.shape[:2], *(1,) * (x.ndim - 3), x.shape[-1] // 2)
    cos, sin = (a.reshape(shape) for a in turn)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def rotate(
    x: Float[Array, "B T *heads R"],
    position: Int[Array, "B T"],
    theta: float,
    yarn: YarnScaling | None = None,
) -> Float[Array, "B T *heads R"]:
    """Rotary embedding over neighbouring pairs (0, 1), (2, 3), ..., in float32.

    The result holds the first components of all pairs, then the second: queries and keys are
    permuted alike, so scores do not see it.
    """
    return turned(halves(x), turn(position, x.shape[-1], theta, yarn))


def halves(x: Float[Array, "*any R"]) -> Float[Array, "*any R"]:
    """The first components of all neighbouring pairs, then the second."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return jnp.concatenate([pairs[..., 0], pairs[..., 1]], axis=-1)
