"""The arguments of a method: of its equation, and of what it measures before."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from loong_jax.merge import masks as mask_lib

Deltas = tuple[Float[Array, "*leaf"], ...]
Marks = tuple[Bool[Array, "*leaf"], ...]
Number = Array | float  # traced, so that a grid of settings is compiled once
Numbers = tuple[Number, ...]  # one per expert
Known = dict[str, Any]  # measurements by name


class Inputs(NamedTuple):
    """Arguments of an equation for one piece of a leaf."""

    base: Float[Array, "*leaf"]
    models: Deltas
    deltas: Deltas
    masks: Marks | None  # explicit or drawn; true where an entry survives dropout
    rates: tuple[Any, ...]  # keep rates of the experts, for methods that drop out
    importances: Deltas  # empty for methods that take none
    weights: Numbers


class FusedLeaf(NamedTuple):
    value: Float[Array, "*leaf"]
    kept: Marks  # entries that dropout, trimming or selection left of each delta
    agreed: Marks  # entries that the election left of it


class Piece(NamedTuple):
    """The same entries of everything that belongs to a leaf."""

    base: Any  # vectors of one length; None where there is no base
    experts: tuple[Any, ...]
    masks: tuple[Array, ...] | None = None
    importances: tuple[Array, ...] | None = None
    ranks: tuple[Array, ...] | None = None  # of each expert's entries in their rows, for DELLA
    start: Any = 0  # position in the matrix, modulo 2^32

    def models(self) -> Deltas:
        return tuple(expert.astype(jnp.float32) for expert in self.experts)

    def deltas(self) -> Deltas:
        if self.base is None:
            return self.models()
        start = self.base.astype(jnp.float32)
        return tuple(model - start for model in self.models())

    def kept(self, keys: tuple[Array, ...] | None, rates: tuple[Any, ...]) -> Marks | None:
        """The explicit masks, or those drawn by `keys`."""
        if keys is None:
            return self.masks and tuple(mask.astype(bool) for mask in self.masks)
        length = self.experts[0].shape[0]
        return tuple(
            mask_lib.keep_run(key, rate, self.start, length)
            for key, rate in zip(keys, rates, strict=True)
        )


@runtime_checkable
class Matrix(Protocol):
    """One matrix of a leaf, for `Method.measure`."""

    path: str
    size: int
    num_experts: int
    weights: tuple[float, ...]
    is_thinned: bool
    of_model: Known  # what `measure_model` found

    def read(self, start: int, stop: int, *, only: int | None = None) -> Piece:
        """A piece of everything; or of the base and one expert."""
        ...

    def each(self, run: Callable[[int, int], Any]) -> Iterator[Any]:
        """`run(start, stop)` of every piece, in order."""
        ...

    def sums(self, program: Callable[[Piece], Array], *, of_models: bool = False) -> np.ndarray:
        """The result of `program` summed in float64 over all pieces and its last axis.

        With `of_models` the pieces have no base, so their deltas are the models.
        """
        ...

    def l1_norms(self) -> Float[np.ndarray, "2 I"]:
        """The L1 norms of deltas, and of what the masks leave of them."""
        ...

    def gather(self, program: Callable[[Piece], Array]) -> Float[np.ndarray, " size"]:
        """The results of `program` for all pieces, as one float32 matrix."""
        ...

    def magnitudes(self, index: int) -> Float[np.ndarray, " size"]:
        """|d_i| of one expert, float32."""
        ...


@runtime_checkable
class WholeModel(Protocol):
    """All leaves that a method is applied to, for `Method.measure_model`."""

    @property
    def names(self) -> list[str]: ...  # of the experts

    @property
    def size(self) -> int: ...  # entries of one model

    def matrices(self) -> Iterator[Matrix]: ...
