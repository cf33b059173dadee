"""The settings of every method of fusion, as data.

b is the base, e_i an expert, d_i = e_i - b its delta, w_i its weight. The equations are in
`equations`, what they must know of whole matrices in `statistics`.
"""

import dataclasses
import math
from typing import Literal

from loong_jax.errors import ConfigError


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name}={value} is a share and must lie in (0, 1]. 1 keeps everything.")


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{name}={value} must be finite. 1 is the plain merge.")


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
        _check_finite("scale", self.scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Weighted mean of the models; needs no base. Model soups, arXiv:2203.05482."""

    normalise: bool = True  # divide by the sum of weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArithmetic:
    """Weighted sum of the deltas. arXiv:2212.04089."""

    scale: float = 1.0
    normalise: bool = False

    def __post_init__(self):
        _check_finite("scale", self.scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ties:
    """Trim each delta to its largest entries, elect signs, average what agrees. arXiv:2306.01708.

    `scope="matrix"` trims every matrix to the same share, as mergekit does; "global" trims the
    whole model by one threshold per expert, as the authors' code does, so that a matrix which
    moved little may lose all of its delta.
    """

    scale: float = 1.0
    density: float = 0.2  # share of the entries of a matrix, or of the model, that trimming keeps
    scope: Literal["matrix", "global"] = "matrix"
    normalise: bool = True

    def __post_init__(self):
        _check_share("density", self.density)
        _check_finite("scale", self.scale)


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
        _check_finite("scale", self.scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Della:
    """Dropout that spares large entries, then elect and average. arXiv:2406.11617, MagPrune.

    The keep rates of a row rise with the rank of |d_i| from keep_rate - spread to
    keep_rate + spread. `rescale="inverse"` divides each survivor by its own rate, as the paper
    does; "l1" restores each matrix's L1 norm, as mergekit does.
    """

    scale: float = 1.0
    keep_rate: float = 0.5  # mean over a row
    spread: float = 0.15  # epsilon / 2 of the paper, epsilon of mergekit
    rescale: Literal["inverse", "l1"] = "inverse"
    combine: Literal["sum", "ties"] = "ties"
    normalise: bool = True
    seed: int = 0

    def __post_init__(self):
        _check_share("keep_rate", self.keep_rate)
        _check_finite("scale", self.scale)
        fits = 0 <= self.spread < min(self.keep_rate, 1 - self.keep_rate)
        if self.keep_rate < 1 and not fits:
            raise ConfigError(
                f"keep_rate={self.keep_rate} and spread={self.spread}: both ends of keep_rate +/-"
                " spread must lie in (0, 1). Lower spread, or set keep_rate=1 to drop nothing."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breadcrumbs:
    """Drop the largest and the smallest entries of each delta, then add. arXiv:2312.06795.

    Of n entries of a matrix the int(outliers n) largest go, and of the rest the int(density n)
    largest stay. Entries of one size share one fate. `combine="ties"` elects signs besides.
    """

    scale: float = 1.0
    density: float = 0.9  # share of the entries of a matrix that stays
    outliers: float = 0.01  # share that is dropped at the top: gamma
    combine: Literal["sum", "ties"] = "sum"
    normalise: bool = False

    def __post_init__(self):
        _check_share("density", self.density)
        _check_finite("scale", self.scale)
        if not 0 <= self.outliers <= 1:
            raise ConfigError(f"outliers={self.outliers} is a share and must lie in [0, 1].")


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
        if not self.floor >= 0:
            raise ConfigError(f"floor={self.floor} must be at least 0: it bounds a sum of squares.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ram:
    """Reinforced agent merging: average what experts share, keep what is one's own whole.

    arXiv:2601.13572. An expert moves an entry where |d_i| > threshold. Entries that several move
    are averaged over those; an entry that one alone moves is multiplied by
    1 + boost * min(shared / own, most_boost), with the expert's counts of both kinds. `boost=0` is
    RAM; 0.1 is RAM+. Counts are of the whole model, or of one matrix (mergekit's "ramplus_tl").
    """

    threshold: float = 1e-5
    boost: float = 0.0  # r
    most_boost: float = 0.2  # alpha, bound of the ratio of counts
    scope: Literal["global", "matrix"] = "global"

    def __post_init__(self):
        for name in ("threshold", "boost", "most_boost"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)} must be finite and at least 0.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slerp:
    """Along the great circle between two models' matrices; needs no base.

    With weights 1 - t and t it is SLERP at t (Shoemake, 1985). Matrices whose cosine exceeds
    `linear_above` are interpolated linearly, as mergekit does.
    """

    linear_above: float = 0.9995

    def __post_init__(self):
        if not 0 <= self.linear_above <= 1:
            raise ConfigError(
                f"linear_above={self.linear_above} is a cosine and must lie in [0, 1]. Use a value"
                " such as 0.9995."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NuSlerp:
    """SLERP of two deltas where a base is given, else of two models; any weights of positive sum.

    mergekit's nuslerp, flattened: linear only where the directions are equal to rounding.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Karcher:
    """Weighted Frechet mean of the directions of the models, times their mean norm.

    arXiv:2603.04972, as mergekit's karcher: from the normalised mean, `max_steps` times to the
    mean of the logarithms, until a step is shorter than `tolerance`. Needs no base.
    """

    max_steps: int = 10
    tolerance: float = 1e-5

    def __post_init__(self):
        if self.max_steps < 0 or not 0 < self.tolerance < 1:
            raise ConfigError(
                f"max_steps={self.max_steps} must be at least 0 and tolerance={self.tolerance} in"
                " (0, 1): it is an angle in radians, below which a step is not taken."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fisher:
    """Mean of the models weighted by w_i and their diagonal Fisher information. arXiv:2111.09832.

    Needs `importances`, the information of each expert (see `fisher.diagonal_fisher`), and no base.
    """

    floor: float = 1e-6  # added to every importance: where nobody knows, the plain mean

    def __post_init__(self):
        _check_floor(self.floor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FisherDeltas:
    """Deltas times their coefficients, averaged by importance: DF-Merge. arXiv:2504.18992.

    The weights are its coefficients lambda_i, the importances the Fisher information at
    b + lambda_i d_i; `search.coefficient_search` finds both.
    """

    floor: float = 1e-12

    def __post_init__(self):
        _check_floor(self.floor)


def _check_floor(floor: float) -> None:
    if not 0 < floor < float("inf"):
        raise ConfigError(f"floor={floor} must be positive and finite: it bounds the divisor.")


Method = (
    LongcatFusion | Linear | TaskArithmetic | Ties | Dare | Della | Breadcrumbs | Sce | Ram
    | Slerp | NuSlerp | Karcher | Fisher | FisherDeltas
)  # fmt: skip

Dropout = LongcatFusion | Dare | Della  # methods that take masks
OnSphere = Slerp | NuSlerp | Karcher
Weighed = Fisher | FisherDeltas  # methods that take importances
WITHOUT_BASE = (Linear, Slerp, NuSlerp, Karcher, Fisher)
