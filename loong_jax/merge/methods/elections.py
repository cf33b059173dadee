"""Methods that leave entries out by size, or choose by what experts share: TIES to RAM."""

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from loong_jax.merge.methods import method
from loong_jax.merge.methods.method import Piece

_ROUNDING = 64  # units in the last place: what programs may differ by in a variance


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
        found = (method.smallest_of(matrix.magnitudes(i), num_kept) for i in experts)
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


def _threshold(model: Any, index: int, num_kept: int) -> np.uint32:
    """Counts of the upper 16 bits find those of the threshold, then counts of the lower."""
    upper, num_above = _digit(_histogram(model, index, None), num_kept)
    lower, _ = _digit(_histogram(model, index, upper), num_kept - num_above)
    return np.uint32(upper << 16 | lower)


def _digit(counts: np.ndarray, num_kept: int) -> tuple[int, int]:
    """The digit that the `num_kept`-th largest has, and how many entries have a higher one."""
    from_top = np.cumsum(counts[::-1])
    place = int(np.searchsorted(from_top, num_kept))
    return len(counts) - 1 - place, int(from_top[place] - counts[::-1][place])


def _histogram(model: Any, index: int, upper: int | None) -> np.ndarray:
    """A histogram of half of the bits: the upper half, or the lower after a given upper one."""

    def count(matrix: Any, start: int, stop: int) -> np.ndarray:
        sizes = method.magnitudes(matrix.read(start, stop, only=index))[0]
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

    bounds: ClassVar = method.Method.bounds | {"outliers": method.UNIT}
    leaves_entries_out = True

    def measure(self, matrix):
        num_kept = int(self.density * matrix.size)
        above = min(int(self.outliers * matrix.size), matrix.size - num_kept)
        num_reached = num_kept + above if num_kept else 0
        found = []
        for index in range(matrix.num_experts):
            sizes = matrix.magnitudes(index)
            found.append([method.smallest_of(sizes, n) for n in (num_reached, above)])
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sce(method.Method):
    """Select by variance, calculate weights from energy, erase minorities. arXiv:2408.07990.

    value = b + sum_i w_i K_i d_i / sum_i w_i K_i, with w_i = mean(d_i^2) over the experts' sum.

    Selection keeps positions whose variance over experts is among the largest; K_i = 1 where d_i
    has the sign of the unweighted sum, a sum of zero counting as plus. `select="deltas"` zeroes
    what is not selected, as mergekit does; "weights" uses the selection for the weights alone, as
    the authors' code does. Energies that sum to `floor` or less give equal weights: with mergekit's
    1e-6, deltas of the size that RL makes would switch the calculation off, so ours is 0.
    """

    select_rate: float = 1.0  # share of the positions with variance
    select: Literal["deltas", "weights"] = "deltas"
    floor: float = 0.0

    bounds: ClassVar = method.Method.bounds | {
        "select_rate": method.SHARE,
        "floor": method.NOT_NEGATIVE,
    }
    leaves_entries_out = True
    weights_are = "none"

    def measure(self, matrix):
        smallest, selects = np.uint32(0), self.select_rate < 1
        if selects:
            variances = matrix.gather(_variances)
            num_moved = np.float32(np.count_nonzero(variances))
            num_kept = int(num_moved * np.float32(self.select_rate))
            smallest = method.smallest_of(variances, num_kept)
            if num_kept:  # the program that merges may calculate the same variance a bit smaller
                smallest = np.uint32(max(int(smallest) - _ROUNDING, 0))
        energy = matrix.sums(lambda piece: _energies(piece, smallest, selects=selects))
        energy = energy / matrix.size
        total = energy.sum()
        share = energy / total if total > self.floor else np.full(len(energy), 1 / len(energy))
        return {"smallest_variance": smallest, "energies": method.numbers(share)}

    def equation(self, given, known):
        kept, deltas = method.everywhere(given.deltas), given.deltas
        if self.select == "deltas":
            selected = method.reaches(method.variance(deltas), known["smallest_variance"])
            kept = (selected,) * len(deltas)
            deltas = method.keep(kept, deltas)
        return method.elected_mean(given.base, deltas, kept, known["energies"], plain_election=True)


@jax.jit
def _variances(piece: Piece) -> Array:
    return method.variance(piece.deltas())


@functools.partial(jax.jit, static_argnames="selects")
def _energies(piece: Piece, smallest_variance: Any, *, selects: bool) -> Array:
    """[I, lanes]: the parts of the sum of d_i^2 over what SCE selects."""
    deltas = piece.deltas()
    if selects:
        kept = method.reaches(method.variance(deltas), smallest_variance)
        deltas = method.keep((kept,) * len(deltas), deltas)
    return jnp.stack([method.partial_sums(jnp.square(delta)) for delta in deltas])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ram(method.Method):
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

    bounds: ClassVar = method.Method.bounds | dict.fromkeys(
        ("threshold", "boost", "most_boost"), method.NOT_NEGATIVE
    )
    leaves_entries_out = True
    weights_are = "none"

    def tells_matrices_apart(self, is_thinned):
        return self.scope == "matrix"

    def measure_model(self, model):
        if self.scope != "global":
            return {}
        if self.boost == 0:
            return {"boosts": (1.0,) * len(model.names)}
        return self._boosts(sum(map(self._counts, model.matrices())))

    def measure(self, matrix):
        return {} if self.scope == "global" else self._boosts(self._counts(matrix))

    def _counts(self, matrix: Any) -> Any:
        return matrix.sums(lambda piece: _counts(piece, self.threshold))

    def _boosts(self, counts: Any) -> method.Known:
        shared, own = counts
        ratio = np.minimum(shared / np.maximum(own, 1), self.most_boost)
        return {"boosts": method.numbers(1 + self.boost * ratio)}

    def equation(self, given, known):
        """value = b + sum_i c_i d_i over the n experts with |d_i| > threshold.

        c_i = 1/n where n > 1; the boost of expert i where it is the only one.
        """
        moved, num_moved = _movers(given.deltas, self.threshold)
        terms = tuple(
            jnp.where(num_moved == 1, boost * delta, delta / jnp.maximum(num_moved, 1))
            for boost, delta in zip(known["boosts"], given.deltas, strict=True)
        )
        value = given.base + method.add(method.keep(moved, terms))
        return method.FusedLeaf(value, moved, moved)


def _movers(deltas: method.Deltas, threshold: method.Number) -> tuple[method.Marks, Array]:
    """True where an expert moves an entry by more than `threshold`; and how many experts do."""
    moved = tuple(jnp.abs(delta) > threshold for delta in deltas)
    return moved, method.add([mark.astype(jnp.int32) for mark in moved])


@jax.jit
def _counts(piece: Piece, threshold: Any) -> Array:
    """[2, I, 1]: entries moved with others and alone."""
    moved, num_moved = _movers(piece.deltas(), threshold)
    tests = (num_moved > 1, num_moved == 1)
    return jnp.stack([jnp.stack([jnp.sum(m & test)[None] for m in moved]) for test in tests])
