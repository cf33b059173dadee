"""Merging a leaf in host memory or on disk: matrix by matrix, piece by piece.

What is held: a piece of the base, of every expert and of the result, which goes where the leaf will
lie; for thresholds (TIES, breadcrumbs, SCE's selection) one matrix of float32; and for methods on
the sphere, which look at a matrix twice, its inputs as they are stored, where they are no more than
two leaves of float32. So from disk no more is held, however many experts there are.
"""

import concurrent.futures
import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from loong_jax.merge import masks as mask_lib
from loong_jax.merge import methods, on_device, pieces
from loong_jax.merge.methods import evaluate, sphere, statistics
from loong_jax.merge.methods.evaluate import Kind
from loong_jax.merge.pieces import Piece
from loong_jax.merge.plan import LeafTask

MAX_KEPT_BYTES = 8  # per entry of a matrix that is read twice: two leaves in float32
Write = Callable[[int, np.ndarray], None]  # (start, vector): any thread writes its pieces


def merge(task: LeafTask, write: Write, *, count: bool = True) -> tuple[bool, np.ndarray]:
    """Hands the merged leaf to `write`, piece by piece.

    Returns whether it is finite, and counts as `on_device.merge` has.
    """
    finite, counts = True, np.zeros((3, len(task.experts)))
    for matrix in matrices(task):
        ok, found = matrix.merge(write, count=count)
        finite, counts = finite and ok, counts + found
    return finite, counts


def matrices(task: LeafTask) -> Iterator["Matrix"]:
    """The matrices of a leaf, or all of it as one where the method does not tell them apart."""
    shape = task.first.shape
    stack = shape[: task.batch_axes] if _tells_matrices_apart(task) else ()
    readers = Readers(task)
    with concurrent.futures.ThreadPoolExecutor(num_threads()) as pool:
        for number, place in enumerate(np.ndindex(stack)):
            yield Matrix(task, readers, pool, place, number)


def num_threads() -> int:
    """As many as there are cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tells_matrices_apart(task: LeafTask) -> bool:
    method = task.method
    if isinstance(method, methods.Dropout):
        return task.is_thinned or getattr(method, "normalise", None) == "per_tensor"
    plain = methods.Linear | methods.TaskArithmetic | methods.Weighed
    return not (isinstance(method, plain) or task.across)


class Readers:
    """Pieces of everything that belongs to a leaf."""

    def __init__(self, task: LeafTask):
        reader = pieces.PieceReader
        self.base = None if task.base is None else reader(task.base)
        self.experts = tuple(map(reader, task.experts.values()))
        self.masks = task.masks and tuple(map(reader, task.masks))
        self.importances = task.importances and tuple(map(reader, task.importances))

    def give_back(self, piece: Piece) -> None:
        """Lets the memory of a lasting piece be used for another."""
        for reader, vector in zip(self.experts, piece.experts, strict=True):
            reader.give_back(vector)
        if self.base is not None:
            self.base.give_back(piece.base)

    def fit(self, most: int) -> bool:
        """Whether pieces of the whole matrix take at most so many bytes for each of its entries."""
        if self.masks or self.importances:
            return False
        readers = (*self.experts, *([] if self.base is None else [self.base]))
        return sum(reader.bytes_per_entry for reader in readers) <= most


class Matrix:
    """One matrix of a leaf, at `place` in its stack."""

    def __init__(
        self,
        task: LeafTask,
        readers: Readers,
        pool: concurrent.futures.Executor,
        place: tuple[int, ...],
        number: int,
    ):
        self.task, self.readers, self.pool = task, readers, pool
        self.shape = task.first.shape[len(place) :]
        self.size = math.prod(self.shape)
        self.start = number * self.size
        keys = task.keys()
        self.keys = keys and tuple(jnp.asarray(mask_lib.matrix_key(key, place)) for key in keys)
        self.numbers, self.choices = evaluate.split(task.method)
        self.is_ranked = isinstance(task.method, methods.Della) and task.is_thinned
        self.row_length = 1
        if self.is_ranked and self.shape:
            self.row_length = self.shape[min(1, len(self.shape) - 1)]
        # Rows across the run of entries (a cube's second axis) are ranked with all of it at once.
        run = self.size if self.is_ranked and len(self.shape) > 2 else self.row_length
        self.ranges = pieces.ranges(self.size, max(run, 1))
        self._kept: dict[int, Piece] = {}  # by start, what a second pass reads again

    def merge(self, write: Write, *, count: bool) -> tuple[bool, np.ndarray]:
        task = self.task
        with np.errstate(invalid="ignore"):  # inf / inf, of a leaf that will be refused
            known = {**self.numbers, **task.across, **self.statistics()}
        known, weights = jax.device_put((known, task.weights))  # once, not with every piece

        zeros = np.zeros((3, len(task.experts)))
        dtype = np.dtype(task.first.dtype)

        def one(start: int, stop: int) -> tuple[bool, np.ndarray]:
            kept = self._kept.pop(start, None)
            value, counts = _program(
                self.read(start, stop) if kept is None else kept,
                self.keys,
                weights,
                known,
                kind=type(task.method),
                choices=tuple(self.choices.items()),
                row_length=self.row_length,
                dtype=jax.dtypes.canonicalize_dtype(dtype),  # float64 is calculated as float32
                of_deltas=task.of_deltas,
                count=count,
            )
            found = np.asarray(value)[: stop - start].astype(dtype, copy=False)
            write(self.start + start, found)
            if kept is not None:
                self.readers.give_back(kept)
            return pieces.is_finite(found), zeros if counts is None else np.asarray(counts)

        finite, counts = True, zeros
        for ok, found in self.each(one):
            finite, counts = finite and ok, counts + found
        return finite, counts

    def each(self, run: Callable[[int, int], Any]) -> Iterator[Any]:
        """`run(start, stop)` of every piece, on all threads, in order."""
        width = num_threads()
        for first in range(0, len(self.ranges), width):
            group = self.ranges[first : first + width]
            if len(group) == 1:
                yield run(*group[0])
            else:
                yield from self.pool.map(run, *zip(*group, strict=True))

    def read(
        self,
        start: int,
        stop: int,
        *,
        ranked: bool = True,
        only: int | None = None,
        lasting: bool = False,
    ) -> Piece:
        """A piece of everything; or of the base and one expert."""

        def all_of(readers: Any) -> Any:
            return readers and tuple(read(*at, lasting=lasting) for read in readers)

        at = self.start + start, self.start + stop
        base = None if self.readers.base is None else self.readers.base(*at, lasting=lasting)
        chosen = self.readers.experts if only is None else self.readers.experts[only : only + 1]
        piece = Piece(base, all_of(chosen), start=np.uint32(start % 2**32))
        if only is not None:
            return piece
        if self.is_ranked and ranked:
            sizes = (np.asarray(size)[: stop - start] for size in pieces.magnitudes(piece))
            piece = piece._replace(ranks=tuple(pieces.padded(self._ranks(size)) for size in sizes))
        return piece._replace(
            masks=all_of(self.readers.masks), importances=all_of(self.readers.importances)
        )

    def _ranks(self, sizes: np.ndarray) -> np.ndarray:
        if len(self.shape) < 3:
            return pieces.ranks(sizes.reshape(-1, self.row_length)).reshape(-1)
        turned = np.moveaxis(sizes.reshape(self.shape), 1, -1)
        found = pieces.ranks(np.ascontiguousarray(turned).reshape(-1, self.row_length))
        return np.moveaxis(found.reshape(turned.shape), -1, 1).reshape(-1)

    def sums(
        self, program: Callable[[Piece], Array], *, ranked: bool = False, keep: bool = False
    ) -> np.ndarray:
        """What `program` gives for every piece, summed in float64 over pieces and lanes.

        With `keep` the merge need not read the pieces again.
        """

        def one(start: int, stop: int) -> np.ndarray:
            piece = self.read(start, stop, ranked=ranked, lasting=keep)
            if keep:
                self._kept[start] = piece
            return np.asarray(program(piece), np.float64).sum(-1)

        parts = self.each(one)
        return sum(parts, np.zeros(()))

    def gather(self, program: Callable[[Piece], Any], only: int | None = None) -> np.ndarray:
        """What `program` gives for every piece, as one float32 matrix."""
        found = np.empty(self.size, np.float32)

        def one(start: int, stop: int) -> None:
            piece = self.read(start, stop, ranked=False, only=only)
            found[start:stop] = np.asarray(program(piece))[: stop - start]

        for _ in self.each(one):
            pass
        return found

    def magnitudes(self, index: int) -> np.ndarray:
        """|d_i| of one expert, a float32 vector."""
        return self.gather(lambda piece: pieces.magnitudes(piece)[0], only=index)

    def statistics(self) -> dict[str, Any]:
        """What the equation of the method must know of this matrix."""
        method = self.task.method
        if isinstance(method, methods.Dropout):
            return {"multipliers": self._multipliers(method)}
        if isinstance(method, methods.Ties | methods.Breadcrumbs):
            return {} if "smallest" in self.task.across else self._thresholds(method)
        if isinstance(method, methods.Sce):
            return self._selection(method)
        if isinstance(method, methods.Ram) and "boosts" not in self.task.across:
            shared, own = self.sums(lambda piece: pieces.ram_counts(piece, method.threshold))
            return {"boosts": statistics.ram_boosts(method, shared, own)}
        if isinstance(method, methods.OnSphere):
            drop_base = {} if self.task.of_deltas else {"base": None}
            found = self.sums(
                lambda piece: pieces.products(piece._replace(**drop_base)),
                keep=self.readers.fit(MAX_KEPT_BYTES),
            )
            table = sphere.tables(found, len(self.task.experts))
            return {
                "coefficients": _numbers(
                    sphere.coefficients(method, table, self.task.weights, self.task.path)
                )
            }
        return {}

    def _multipliers(self, method: methods.Dropout) -> tuple[Any, ...] | None:
        """c_i; without those of DELLA's own rates, which differ from entry to entry."""
        factors = np.asarray(self.task.across.get("factors", (1.0,) * len(self.task.experts)))
        if getattr(method, "normalise", None) == "per_tensor":
            factors = statistics.host_balance(np.sqrt(self.sums(pieces.squares)))
        if not self.task.is_thinned:
            return _numbers(factors)
        if method.rescale == "l1":
            before, after = self.sums(
                lambda piece: pieces.l1_norms(
                    piece, self.keys, self.numbers, row_length=self.row_length
                ),
                ranked=True,
            )
            ratio = np.divide(before, after, out=np.ones_like(after), where=after > 0)
            return _numbers(factors * ratio)
        return None if self.is_ranked else _numbers(factors / method.keep_rate)

    def _thresholds(self, method: methods.Ties | methods.Breadcrumbs) -> dict[str, Any]:
        counts = on_device.kept_counts(method, self.size)
        found: dict[str, list[np.uint32]] = {"smallest": [], "too_large": []}
        for index in range(len(self.task.experts)):
            sizes = self.magnitudes(index)
            found["smallest"].append(pieces.smallest_of(sizes, counts["num_kept"]))
            if "num_above" in counts:
                found["too_large"].append(pieces.smallest_of(sizes, counts["num_above"]))
            del sizes  # before the next expert's
        return {name: tuple(values) for name, values in found.items() if values}

    def _selection(self, method: methods.Sce) -> dict[str, Any]:
        smallest, selects = np.uint32(0), method.select_rate < 1
        if selects:
            variances = self.gather(pieces.variances)
            num_moved = np.float32(np.count_nonzero(variances))
            num_kept = int(num_moved * np.float32(method.select_rate))
            smallest = pieces.smallest_of(variances, num_kept)
        energy = self.sums(lambda p: pieces.energies(p, smallest, selects=selects)) / self.size
        total = energy.sum()
        share = energy / total if total > method.floor else np.full(len(energy), 1 / len(energy))
        return {"smallest_variance": smallest, "energies": _numbers(share)}


def _numbers(values: np.ndarray) -> tuple[np.float32, ...]:
    return tuple(np.float32(value) for value in values)


@functools.partial(
    jax.jit,
    static_argnames=("kind", "choices", "row_length", "dtype", "of_deltas", "count"),
)
def _program(
    piece: Piece,
    keys: tuple[Array, ...] | None,
    weights: methods.Numbers,
    known: dict[str, Any],
    *,
    kind: Kind,
    choices: tuple[tuple[str, Any], ...],
    row_length: int,
    dtype: Any,
    of_deltas: bool,
    count: bool,
) -> tuple[Array, Array | None]:
    models, deltas = piece.models(), piece.deltas()
    known = {**known, **dict(choices)}
    rates = piece.keep_rates(known, row_length)
    masks = piece.kept(keys, rates)
    if "multipliers" in known and known["multipliers"] is None:
        known["multipliers"] = tuple(1 / rate for rate in rates)
    importances = piece.importances
    if importances is not None:
        importances = tuple(importance.astype(jnp.float32) for importance in importances)
    base = jnp.zeros_like(models[0]) if piece.base is None else piece.base.astype(jnp.float32)
    fused = evaluate.evaluate(
        kind, base, models, deltas, masks, importances, weights, known, of_deltas=of_deltas
    )
    value = fused.value.astype(dtype)
    if not count:
        return value, None
    moved = [delta != 0 for delta in deltas]
    kept = [moves & mark for moves, mark in zip(moved, fused.kept, strict=True)]
    agreed = [keeps & mark for keeps, mark in zip(kept, fused.agreed, strict=True)]
    rows = (jnp.stack([jnp.sum(m, dtype=jnp.int32) for m in row]) for row in (moved, kept, agreed))
    return value, jnp.stack(list(rows))
