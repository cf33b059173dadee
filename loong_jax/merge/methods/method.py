"""The interface of a method of fusion, and the steps that several methods share.

b is the base, e_i an expert, d_i = e_i - b its delta, w_i its weight; everything is float32. An
equation works entry by entry: what depends on a whole matrix or on the whole model (a threshold, a
rescale, an angle) is measured before and comes in as a number per expert. So a leaf is merged piece
by piece, from memory or disk. Deltas are tuples over experts rather than one stacked array.
"""

import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from loong_jax import own
from loong_jax.errors import ConfigError
from loong_jax.merge import tree

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

    @property
    def thinned(self) -> Deltas:
        """The deltas that dropout left, over their keep rates; whole where nothing is dropped."""
        if None in self.rates:
            raise ConfigError("`thinned` is of a method that says drops_out = True. Say so.")
        if self.masks is None:
            return self.deltas
        parts = zip(self.masks, self.deltas, self.rates, strict=True)
        return tuple(jnp.where(kept, delta / rate, 0) for kept, delta, rate in parts)


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
            tree.keep_run(key, rate, self.start, length)
            for key, rate in zip(keys, rates, strict=True)
        )


class Bound(NamedTuple):
    """A condition on a setting, and its words for an error."""

    holds: Callable[[Any], bool]
    said: str


SHARE = Bound(lambda x: 0 < x <= 1, "is a share and must lie in (0, 1]. 1 keeps everything.")
UNIT = Bound(lambda x: 0 <= x <= 1, "must lie in [0, 1].")
FINITE = Bound(lambda x: abs(x) < math.inf, "must be finite. 1 is the plain merge.")
NOT_NEGATIVE = Bound(lambda x: 0 <= x < math.inf, "must be finite and at least 0.")
DIVISOR = Bound(lambda x: 0 < x < math.inf, "must be positive and finite: it bounds a divisor.")
ANGLE = Bound(lambda x: 0 < x < 1, "must lie in (0, 1): it is an angle in radians.")


class Method:
    """Behaviour of a frozen dataclass of settings.

    Settings that are numbers are traced; all others are compiled into the program.
    """

    bounds: ClassVar[dict[str, Bound]] = {  # of settings, by name
        "scale": FINITE,
        "density": SHARE,
        "keep_rate": SHARE,
    }

    needs_base: ClassVar[bool] = True
    merges_models: ClassVar[bool] = False  # not deltas, even where there is a base
    leaves_entries_out: ClassVar[bool] = False
    weights_are: ClassVar[Literal["any", "shares", "none"]] = "any"  # shares: not negative
    num_experts: ClassVar[int | None] = None  # None: any
    takes_importances: ClassVar[bool] = False
    drops_out: ClassVar[bool] = False  # takes masks, draws them at `keep_rate` by `seed`
    ranks_rows: ClassVar[bool] = False  # keep rates follow the ranks of entries in their rows

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if cls.weights_are not in (known := ("any", "shares", "none")):
            raise ConfigError(
                f"{cls.__name__}.weights_are={cls.weights_are!r} is unknown. Choose one of "
                f"{', '.join(known)}."
            )
        fields, attributes = inspect.get_annotations(cls), inspect.get_annotations(Method)
        for name, value in vars(cls).items():
            meant = difflib.get_close_matches(name, attributes, 1, 0.85)
            if meant and name not in attributes | fields and not callable(value):
                raise ConfigError(f"{cls.__name__}.{name} is unknown. Write {meant[0]}.")

    def __post_init__(self):
        for name, value in self.settings().items():
            if name in self.bounds and not self.bounds[name].holds(value):
                raise ConfigError(f"{name}={value} {self.bounds[name].said}")
        lacking = {"keep_rate", "seed"} - self.settings().keys()
        if self.drops_out and lacking:
            raise ConfigError(
                f"{own.place_of(type(self))} drops out entries and has no {min(lacking)}, by which "
                "masks are drawn. Give it fields: `keep_rate: float = 0.5` and `seed: int = 0`."
            )

    def settings(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]

    def tells_matrices_apart(self, is_thinned: bool) -> bool:
        """False where a whole stack is merged as one matrix with the same result."""
        return is_thinned or type(self).measure is not Method.measure

    def measure_model(self, model: Any) -> Known:
        """Statistics of the whole model (`streaming.WholeModel`), needed before the first leaf."""
        return {}

    def measure(self, matrix: Any) -> Known:
        """Statistics of one matrix (`streaming.Matrix`), which the equation needs."""
        return {}

    def keep_rates(self, num_experts: int, ranks: Any, row_length: int) -> tuple[Any, ...]:
        """The keep rate of every expert's entries, where masks are drawn."""
        return (getattr(self, "keep_rate") if self.drops_out else None,) * num_experts  # noqa: B009

    def equation(self, given: Inputs, known: Known) -> Array | FusedLeaf:
        """The merged entries, and which were left out where some are."""
        raise ConfigError(
            f"{own.place_of(type(self))} has no equation. Write "
            "`def equation(self, given, known):` in it; docs/how-to/add_merge_method.md says what "
            "it is given."
        )

    def fuse(self, given: Inputs, known: Known) -> FusedLeaf:
        """The `equation`, but NaN where a delta is not finite: a mask, a threshold or an election
        would leave such an entry out and the merge look sound.
        """
        if self.leaves_entries_out or self.drops_out:
            is_finite = functools.reduce(operator.and_, map(jnp.isfinite, given.deltas))
            given = given._replace(base=jnp.where(is_finite, given.base, jnp.nan))
        found = self.equation(given, known)
        if isinstance(found, FusedLeaf):
            return found
        kept = given.masks or everywhere(given.deltas)
        return FusedLeaf(found, kept, kept)


def elect(terms: Deltas, zero_sum: str = "plus") -> Marks:
    """True where a term has the sign of the sum of terms. A term of exactly zero never agrees."""
    total = add(terms)
    sign = jnp.sign(total) if zero_sum == "drop" else jnp.where(total >= 0, 1.0, -1.0)
    return tuple((jnp.sign(term) == sign) & (term != 0) for term in terms)


def elected_mean(
    base: Array,
    deltas: Deltas,
    kept: Marks,
    weights: Numbers,
    *,
    scale: Number = 1.0,
    normalise: bool = True,
    plain_election: bool = False,
) -> FusedLeaf:
    """b + scale sum_i w_i K_i d_i, over sum_i w_i K_i where normalised."""
    weighted = weigh(deltas, weights)
    agreed = elect(deltas if plain_election else weighted)
    total = add(keep(agreed, weighted))
    if normalise:
        total = total / weight_of(agreed, weights, base)
    return FusedLeaf(base + scale * total, kept, agreed)


def combined(base: Array, terms: Deltas, kept: Marks, weights: Numbers, method: Any) -> FusedLeaf:
    """By the method's `combine`: the election of TIES, or the weighted sum of the terms."""
    if method.combine == "ties":
        return elected_mean(
            base, terms, kept, weights, scale=method.scale, normalise=method.normalise
        )
    total = add(weigh(terms, shares(weights) if method.normalise else weights))
    return FusedLeaf(base + method.scale * total, kept, everywhere(terms))


def keep(marks: Marks, terms: Deltas) -> Deltas:
    return tuple(jnp.where(mark, term, 0.0) for mark, term in zip(marks, terms, strict=True))


def reaches(x: Float[Array, "*leaf"], smallest: Number) -> Bool[Array, "*leaf"]:
    """|x| >= smallest, given as the bits of a float: exact for denormals too."""
    return jax.lax.bitcast_convert_type(jnp.abs(x), jnp.uint32) >= smallest


def weight_of(agreed: Marks, weights: Numbers, like: Array) -> Array:
    """sum_i w_i K_i, and 1 where it is 0: a divisor."""
    spread = (jnp.broadcast_to(jnp.asarray(w, jnp.float32), like.shape) for w in weights)
    total = add(keep(agreed, tuple(spread)))
    return jnp.where(total == 0, 1.0, total)


def shares(weights: Numbers) -> Numbers:
    """Weights of sum 1: a division per expert instead of one per entry."""
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def weigh(deltas: Deltas, weights: Numbers) -> Deltas:
    return tuple(weight * delta for weight, delta in zip(weights, deltas, strict=True))


def add(terms: Sequence[Array]) -> Array:
    return functools.reduce(operator.add, terms)


def everywhere(deltas: Deltas) -> Marks:
    return tuple(jnp.ones_like(delta, dtype=bool) for delta in deltas)


def numbers(values: np.ndarray) -> tuple[np.float32, ...]:
    return tuple(np.float32(value) for value in values)


# --- programs over one piece, for what several methods must know of a matrix ----------------------

_LANES = 4096  # partial sums, so that a sum is vectorised and its rounding small
NOTHING = np.uint32(0xFFFFFFFF)  # as the smallest entry to keep: above the bits of every float


def partial_sums(x: Array) -> Array:
    """[lanes]: parts of the sum of a vector of 2^n, halves added to halves.

    Half the time of a reduction, which XLA's CPU programs carry out entry by entry.
    """
    while x.shape[0] > _LANES:
        half = x.shape[0] // 2
        x = x[:half] + x[half:]
    return x


@jax.jit
def magnitudes(piece: Piece) -> Deltas:
    return tuple(map(jnp.abs, piece.deltas()))


@jax.jit
def squares(piece: Piece) -> Array:
    """[I, lanes]: the parts of sum d_i^2."""
    return jnp.stack([partial_sums(jnp.square(delta)) for delta in piece.deltas()])


@jax.jit
def products(piece: Piece) -> Array:
    """[pairs, lanes]: the parts of d_i . d_j for i <= j; of models where there is no base."""
    pairs = itertools.combinations_with_replacement(piece.deltas(), 2)
    return jnp.stack([partial_sums(x * y) for x, y in pairs])


def variance(deltas: Deltas) -> Float[Array, "*leaf"]:
    """Over experts, of the population."""
    center = add(deltas) / len(deltas)
    return add([jnp.square(delta - center) for delta in deltas]) / len(deltas)


def smallest_of(sizes: Float[np.ndarray, " n"], num_kept: int) -> np.uint32:
    """The bits of the smallest among the `num_kept` largest of non-negative numbers.

    NOTHING for none. Puts the numbers into another order.
    """
    if num_kept <= 0:
        return NOTHING
    bits = sizes.view(np.int32)  # non-negative floats are ordered like their bits
    bits.partition(len(bits) - num_kept)
    return np.uint32(bits[len(bits) - num_kept])


def tables(products: Float[np.ndarray, " pairs"], num_vectors: int) -> Float[np.ndarray, "I I"]:
    """A symmetric table from its upper triangle, given row by row."""
    found = np.zeros((num_vectors, num_vectors))
    upper = np.triu_indices(num_vectors)
    found[upper] = found[upper[::-1]] = products
    return found
