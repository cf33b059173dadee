"""The execution of a merge: leaf by leaf, matrix by matrix, piece by piece.

What is held: a piece of the base, of every expert and of the result, which goes where the leaf will
lie; and for thresholds (TIES, breadcrumbs, SCE's selection) one matrix of float32. So from disk no
more than three leaves are in memory, however many experts there are.
"""

import concurrent.futures
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from loong_jax import own
from loong_jax.errors import ConfigError, form_of
from loong_jax.merge import pieces, tree
from loong_jax.merge.methods import Method, method
from loong_jax.merge.methods.method import FusedLeaf, Inputs, Known, Numbers, Piece
from loong_jax.merge.plan import LeafTask, Plan

Write = Callable[[int, np.ndarray], None]  # (start, vector): any thread writes its pieces
Choices = tuple[tuple[str, Any], ...]


def merge(task: LeafTask, write: Write, *, count: bool = True) -> tuple[bool, np.ndarray]:
    """Hands the merged leaf to `write`, piece by piece.

    Returns whether it is finite, and counts, float64 [3, experts]: of entries moved, kept of those
    and agreed of those; zeros without `count`.
    """
    finite, counts = True, np.zeros((3, len(task.experts)))
    for matrix in matrices(task):
        for ok, found in matrix.merge(write, count=count):
            finite, counts = finite and ok, counts + found
    return finite, counts


def matrices(task: LeafTask) -> Iterator["Matrix"]:
    """The matrices of a leaf, or all of it as one where the method does not tell them apart."""
    shape = task.first.shape
    apart = task.method.tells_matrices_apart(task.is_thinned)
    readers = Readers(task)
    with concurrent.futures.ThreadPoolExecutor(num_threads()) as pool:
        stack = shape[: task.batch_axes] if apart else ()
        for number, place in enumerate(np.ndindex(stack)):
            yield Matrix(task, readers, pool, place, number)


def measured(method: Method, how: str, of: Any) -> Known:
    """The measurements of a matrix or a model; ConfigError unless they are numbers by name."""
    found = own.call(method, how, of)
    is_named = isinstance(found, dict) and all(isinstance(name, str) for name in found)
    if not is_named or any(np.asarray(one).dtype.kind in "OSU" for one in jax.tree.leaves(found)):
        raise ConfigError(
            f"{own.place_of(type(method))}: {how} returned {found!r:.80}, and must return a "
            "dictionary of numbers by name, {} for none. Correct it there."
        )
    return found


def num_threads() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class WholeModel:
    """All leaves that a method is applied to, for `Method.measure_model`."""

    plan: Plan

    @property
    def names(self) -> list[str]:
        """Names of the experts."""
        return list(self.plan.experts)

    @property
    def size(self) -> int:
        """Entries of one model."""
        paths = self.plan.merged_paths()
        return sum(math.prod(self.plan.first[path].shape) for path in paths)

    def matrices(self) -> Iterator["Matrix"]:
        for path in self.plan.merged_paths():
            yield from matrices(self.plan.task(path))


class Readers:
    """Pieces of everything that belongs to a leaf."""

    def __init__(self, task: LeafTask):
        reader = pieces.PieceReader
        self.base = None if task.base is None else reader(task.base)
        self.experts = tuple(map(reader, task.experts.values()))
        self.masks = task.masks and tuple(map(reader, task.masks))
        self.importances = task.importances and tuple(map(reader, task.importances))


class Matrix:
    """One matrix of a leaf, at `place` in its stack, for `Method.measure`.

    It has `path`, `size`, `num_experts`, `weights`, `is_thinned`, and `of_model`: what
    `measure_model` found.
    """

    def __init__(
        self,
        task: LeafTask,
        readers: Readers,
        pool: concurrent.futures.Executor,
        place: tuple[int, ...],
        number: int,
    ):
        self.task, self.readers, self.pool = task, readers, pool
        self.path, self.weights, self.of_model = task.path, task.weights, task.of_model
        self.num_experts, self.is_thinned = len(task.experts), task.is_thinned
        self.shape = task.first.shape[len(place) :]
        self.size = math.prod(self.shape)
        self.start = number * self.size
        keys = task.keys()
        self.keys = keys and tuple(jnp.asarray(tree.matrix_key(key, place)) for key in keys)
        self.numbers, self.choices = _split(task.method)
        self.is_ranked = task.method.ranks_rows and task.is_thinned
        self.row_length = 1
        if self.is_ranked and self.shape:
            self.row_length = self.shape[min(1, len(self.shape) - 1)]
        # Rows across the run of entries (a cube's second axis) are ranked with all of it at once.
        run = self.size if self.is_ranked and len(self.shape) > 2 else self.row_length
        self.ranges = pieces.ranges(self.size, max(run, 1))

    def merge(self, write: Write, *, count: bool) -> Iterator[tuple[bool, np.ndarray]]:
        """Merges piece by piece: yields whether each piece is finite, and its counts."""
        try:
            yield from self._merge(write, count=count)
        except ConfigError as error:
            raise ConfigError(f"{self.path} {list(self.task.first.shape)}: {error}") from error

    def _merge(self, write: Write, *, count: bool) -> Iterator[tuple[bool, np.ndarray]]:
        task = self.task
        with np.errstate(invalid="ignore"):  # inf / inf, of a leaf that will be refused
            known = {**task.of_model, **measured(task.method, "measure", self)}
        numbers, known, weights = jax.device_put((self.numbers, known, task.weights))  # once
        dtype = np.dtype(task.first.dtype)

        def one(start: int, stop: int) -> tuple[bool, np.ndarray]:
            value, stages = _fused(
                self.read(start, stop),
                self.keys,
                weights,
                numbers,
                known,
                kind=type(task.method),
                choices=self.choices,
                row_length=self.row_length,
                dtype=jax.dtypes.canonicalize_dtype(dtype),  # float64 is calculated as float32
                count=count,
            )
            found = np.asarray(value)[: stop - start].astype(dtype, copy=False)
            write(self.start + start, found)
            rows = np.asarray(stages)  # numpy counts faster than XLA
            reached = [[np.count_nonzero(row >= stage) for row in rows] for stage in (1, 2, 3)]
            return is_finite(found), np.array(reached)

        return self.each(one)

    def each(self, run: Callable[[int, int], Any]) -> Iterator[Any]:
        """`run(start, stop)` of every piece, on all threads, in order."""
        width = num_threads()
        for first in range(0, len(self.ranges), width):
            group = self.ranges[first : first + width]
            if len(group) == 1:
                yield run(*group[0])
            else:
                yield from self.pool.map(run, *zip(*group, strict=True))

    def read(self, start: int, stop: int, *, ranked: bool = True, only: int | None = None) -> Piece:
        """A piece of everything; or of the base and one expert."""

        def all_of(readers: Any) -> Any:
            return readers and tuple(read(*at) for read in readers)

        at = self.start + start, self.start + stop
        base = None if self.readers.base is None else self.readers.base(*at)
        chosen = self.readers.experts if only is None else self.readers.experts[only : only + 1]
        piece = Piece(base, all_of(chosen), start=np.uint32(start % 2**32))
        if only is not None:
            return piece
        if self.is_ranked and ranked:
            sizes = (np.asarray(size)[: stop - start] for size in method.magnitudes(piece))
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
        self, program: Callable[[Piece], Array], *, ranked: bool = False, of_models: bool = False
    ) -> np.ndarray:
        """The result of `program` summed in float64 over all pieces and lanes.

        With `of_models` the pieces have no base, so their deltas are the models.
        """

        def one(start: int, stop: int) -> np.ndarray:
            piece = self.read(start, stop, ranked=ranked)
            piece = piece._replace(base=None) if of_models else piece
            return np.asarray(program(piece), np.float64).sum(-1)

        return sum(self.each(one), np.zeros(()))

    def l1_norms(self) -> np.ndarray:
        """[2, I]: the L1 norms of deltas, and of what the masks leave of them."""
        program = functools.partial(
            _l1_norms,
            keys=self.keys,
            numbers=self.numbers,
            kind=type(self.task.method),
            choices=self.choices,
            row_length=self.row_length,
        )
        return self.sums(program, ranked=True)

    def gather(self, program: Callable[[Piece], Any], only: int | None = None) -> np.ndarray:
        """The results of `program` for all pieces, as one float32 matrix."""
        found = np.empty(self.size, np.float32)

        def one(start: int, stop: int) -> None:
            piece = self.read(start, stop, ranked=False, only=only)
            found[start:stop] = np.asarray(program(piece))[: stop - start]

        for _ in self.each(one):
            pass
        return found

    def magnitudes(self, index: int) -> np.ndarray:
        """|d_i| of one expert, a float32 vector."""
        return self.gather(lambda piece: method.magnitudes(piece)[0], only=index)


def is_finite(vector: np.ndarray) -> bool:
    """True where no entry is infinite or NaN: none has larger bits than an infinity of its sign.

    `np.isfinite` takes ten times as long for bfloat16.
    """
    kind, size = vector.dtype.type, vector.itemsize
    ends = ((f"i{size}", kind(np.inf)), (f"u{size}", kind(-np.inf)))  # positive, negative entries
    return all(vector.view(bits).max() < end.view(bits) for bits, end in ends)


def _split(method: Method) -> tuple[dict[str, float], Choices]:
    """The settings by name: numbers, which are traced, and choices, which are compiled in."""
    given = {name: value for name, value in method.settings().items() if name != "seed"}
    numbers = {name: float(value) for name, value in given.items() if type(value) in (float, int)}
    for name, value in given.items():
        if not isinstance(value, Hashable):
            raise ConfigError(
                f"{type(method).__name__}: {name}={value!r:.80} is of type {type(value).__name__}, "
                "and what is compiled in stays as it is. Make it a number, a text or a tuple."
            )
    return numbers, tuple((name, v) for name, v in given.items() if name not in numbers)


def _traced(kind: type[Method], numbers: dict[str, Any], choices: Choices) -> Method:
    """The method again, its numbers traced and so not to be checked."""
    method = object.__new__(kind)
    for name, value in (*numbers.items(), *choices):
        object.__setattr__(method, name, value)
    return method


class _Measured(dict):
    """Measurements by the names that `measure` and `measure_model` returned."""

    def __missing__(self, name: Any) -> Any:
        raise LookupError(
            f"known[{name!r}] was not measured, but {', '.join(map(repr, self)) or 'nothing'}"
        )


_STATIC = ("kind", "choices", "row_length", "dtype", "count")


@functools.partial(jax.jit, static_argnames=_STATIC)
def _fused(
    piece: Piece,
    keys: tuple[Array, ...] | None,
    weights: Numbers,
    numbers: dict[str, Any],
    known: Known,
    *,
    kind: type[Method],
    choices: Choices,
    row_length: int,
    dtype: Any,
    count: bool,
) -> tuple[Array, Array]:
    """The merged entries of a piece; and uint8 [experts, n], 0 for an entry of an expert's that
    did not move, 1 for moved, 2 for kept, 3 for agreed; nothing without `count`.
    """
    method = _traced(kind, numbers, choices)
    models, deltas = piece.models(), piece.deltas()
    rates = own.call(method, "keep_rates", len(models), piece.ranks, row_length)
    importances = tuple(one.astype(jnp.float32) for one in piece.importances or ())
    base = jnp.zeros_like(models[0]) if piece.base is None else piece.base.astype(jnp.float32)
    masks = piece.kept(keys, rates)
    given = Inputs(base, models, deltas, masks, rates, importances, weights)
    fused = own.call(method, "fuse", given, _Measured(known))
    _refuse_misfit(fused, base, len(models), kind)
    value = fused.value.astype(dtype)
    stages = [
        jnp.where(delta == 0, 0, jnp.where(kept, jnp.where(agreed, 3, 2), 1)).astype(jnp.uint8)
        for delta, kept, agreed in zip(deltas, fused.kept, fused.agreed, strict=True)
    ]
    return value, jnp.stack(stages) if count else jnp.zeros((len(models), 0), jnp.uint8)


def _refuse_misfit(fused: FusedLeaf, base: Array, num_experts: int, kind: type[Method]) -> None:
    """ConfigError unless an equation gave every entry, and marks of every expert's."""
    entries, marks = f"float32{list(base.shape)}", f"bool{list(base.shape)}"
    for name, found, want in (
        ("", [fused.value], [entries]),
        ("as kept ", fused.kept, [marks] * num_experts),
        ("as agreed ", fused.agreed, [marks] * num_experts),
    ):
        have = [form_of(one) for one in found]
        if have != want:
            remedy = "Calculate entry by entry, over the experts alone (axis=0 of a stack)."
            if have == ["a NoneType"]:
                remedy = "It lacks a `return`."
            elif [one.partition("[")[2] for one in have] == [one.partition("[")[2] for one in want]:
                remedy = "Convert it: .astype."
            raise ConfigError(
                f"the equation of {own.place_of(kind)} gave {name}{', '.join(have) or 'nothing'} "
                f"for a piece of {base.size} entries, and must give {name}{', '.join(want)}. "
                f"{remedy}"
            )


@functools.partial(jax.jit, static_argnames=_STATIC[:3])
def _l1_norms(
    piece: Piece,
    *,
    keys: tuple[Array, ...] | None,
    numbers: dict[str, Any],
    kind: type[Method],
    choices: Choices,
    row_length: int,
) -> Array:
    """[2, I, 1]: sum |d_i| and sum |m_i d_i|. Dot products, for which XLA draws a mask once."""
    sizes = tuple(map(jnp.abs, piece.deltas()))
    rates = _traced(kind, numbers, choices).keep_rates(len(sizes), piece.ranks, row_length)
    masks = piece.kept(keys, rates)
    assert masks is not None
    whole = [jnp.vdot(size, jnp.ones_like(size)) for size in sizes]
    pairs = zip(sizes, masks, strict=True)
    kept = [jnp.vdot(size, mask.astype(size.dtype)) for size, mask in pairs]
    return jnp.array([whole, kept])[..., None]
