"""Methods that leave out entries by their size: TIES and breadcrumbs."""

import dataclasses
import functools
from typing import Literal

import numpy as np

from loong_jax.errors import ConfigError
from loong_jax.merge.methods import measures, method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ties(method.Method):
    """Trim each delta to its largest entries, elect signs, average what agrees. arXiv:2306.01708.

    value = b + scale sum_i w_i t_i K_i / sum_i w_i K_i, with t_i what trimming left; K_i = 1 where
    w_i t_i has the sign of the sum, a sum of zero counting as plus. All entries that equal the
    smallest kept one are kept, as in the authors' code.

    `scope="matrix"` trims every matrix to the same share, as mergekit does; "global" trims the
    whole model by one threshold per expert, as the authors' code does, so that a matrix which
    moved little may lose all of its delta.
    """

    scale: float = 1.0
    density: float = 0.2  # share of the entries of a matrix, or of the model, that trimming keeps
    scope: Literal["matrix", "global"] = "matrix"
    normalise: bool = True

    leaves_entries_out = True

    def __post_init__(self):
        method.check_share("density", self.density)
        method.check_scale(self.scale)

    def tells_matrices_apart(self, is_thinned):
        return self.scope == "matrix"

    def measure_model(self, model):
        """The smallest |d_i| among the int(density n) largest of n entries, exactly."""
        if self.scope != "global":
            return {}
        num_kept = max(1, int(self.density * model.size))
        found = (_threshold(model, index, num_kept) for index in range(len(model.names)))
        return {"smallest": tuple(found)}

    def measure(self, matrix):
        if self.scope == "global":
            return {}
        num_kept = max(1, int(self.density * matrix.size))
        experts = range(matrix.num_experts)  # of one at a time the sizes are in memory
        found = (measures.smallest_of(matrix.magnitudes(i), num_kept) for i in experts)
        return {"smallest": tuple(found)}

    def equation(self, given, known):
        pairs = zip(given.deltas, known["smallest"], strict=True)
        kept = tuple(method.reaches(delta, size) for delta, size in pairs)
        return method.elected_mean(
            given.base,
            method.keep(kept, given.deltas),
            kept,
            given.weights,
            scale=self.scale,
            normalise=self.normalise,
        )


def _threshold(model, index: int, num_kept: int) -> np.uint32:
    """Counts of the upper 16 bits find those of the threshold, then counts of the lower."""
    upper, num_above = _digit(_histogram(model, index, None), num_kept)
    lower, _ = _digit(_histogram(model, index, upper), num_kept - num_above)
    return np.uint32(upper << 16 | lower)


def _digit(counts: np.ndarray, num_kept: int) -> tuple[int, int]:
    """The digit that the `num_kept`-th largest has, and how many entries have a higher one."""
    from_top = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_top, num_kept))
    return len(counts) - 1 - place, int(from_top[place] - counts[::-1][place])


def _histogram(model, index: int, upper: int | None) -> np.ndarray:
    """How often each half of the bits occurs: the upper, or the lower after a given upper one."""

    def count(matrix, start: int, stop: int) -> np.ndarray:
        sizes = measures.magnitudes(matrix.read(start, stop, only=index))[0]
        bits = np.asarray(sizes)[: stop - start].view(np.uint32)
        bits = bits >> 16 if upper is None else bits[bits >> 16 == upper] & 0xFFFF
        return np.bincount(bits, minlength=1 << 16)

    counts = np.zeros(1 << 16, np.int64)
    for matrix in model.matrices():
        counts += sum(matrix.each(functools.partial(count, matrix)))
    return counts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Breadcrumbs(method.Method):
    """Drop the largest and the smallest entries of each delta, then add. arXiv:2312.06795.

    value = b + scale sum_i w_i t_i, or the election of TIES over the same terms.

    Of n entries of a matrix the int(outliers n) largest go, and of the rest the int(density n)
    largest stay. Entries of one size share one fate. `combine="ties"` elects signs besides.
    """

    scale: float = 1.0
    density: float = 0.9  # share of the entries of a matrix that stays
    outliers: float = 0.01  # share that is dropped at the top: gamma
    combine: Literal["sum", "ties"] = "sum"
    normalise: bool = False

    leaves_entries_out = True

    def __post_init__(self):
        method.check_share("density", self.density)
        method.check_scale(self.scale)
        if not 0 <= self.outliers <= 1:
            raise ConfigError(f"outliers={self.outliers} is a share and must lie in [0, 1].")

    def measure(self, matrix):
        num_kept = int(self.density * matrix.size)
        above = min(int(self.outliers * matrix.size), matrix.size - num_kept)
        num_reached = num_kept + above if num_kept else 0
        found = []
        for index in range(matrix.num_experts):
            sizes = matrix.magnitudes(index)
            found.append([measures.smallest_of(sizes, n) for n in (num_reached, above)])
            del sizes  # before the next expert's
        smallest, too_large = zip(*found, strict=True)
        return {"smallest": smallest, "too_large": too_large}

    def equation(self, given, known):
        kept = tuple(
            method.reaches(delta, low) & ~method.reaches(delta, high)
            for delta, low, high in zip(
                given.deltas, known["smallest"], known["too_large"], strict=True
            )
        )
        terms = method.keep(kept, given.deltas)
        return method.combined(given.base, terms, kept, given.weights, self)
