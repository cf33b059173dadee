"""Creation of parameters: one draw per tensor, sharded from birth, and what is not trained."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from loong_jax.sharding import ShardingRules

Weights = dict[Any, Any]  # nested, of arrays
Matrices = dict[str, Array] | None  # of a sub-layer by name; None where all are at hand


class ControllerState(nnx.Variable):
    """State that a controller sets after each step and no gradient reaches: biases of routers."""


def kernel(
    shape: Sequence[int],
    names: Sequence[str | None],
    dtype: DTypeLike,
    rngs: nnx.Rngs,
    rules: ShardingRules,
    *,
    fan_in: int | None = None,
    gain: float = 1.0,
) -> nnx.Param:
    """A matrix that keeps the variance of what it multiplies: normal, deviation fan_in^-1/2.

    `fan_in` is the second dimension from the right unless given; `gain` multiplies the deviation.
    Raises ConfigError where the mesh does not divide the shape.
    """
    deviation = gain / math.sqrt(shape[-2] if fan_in is None else fan_in)
    spec = rules.spec_of(shape, *names)
    # A flat draw gives the same numbers as a shaped one and compiles several times faster.
    drawn = (math.prod(shape),) if spec is None else tuple(shape)
    value = _draw(rngs.params(), deviation, drawn, jnp.dtype(dtype), spec)
    value = value.reshape(shape) if spec is None else value
    return nnx.Param(value, out_sharding=spec, eager_sharding=False)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _draw(
    key: Array,
    deviation: Float[Array, ""],
    shape: tuple[int, ...],
    dtype: np.dtype,
    spec: NamedSharding | None,
) -> Float[Array, "..."]:
    drawn = jax.random.normal(key, shape, jnp.float32, out_sharding=spec)
    return (drawn * deviation).astype(dtype)


def ones(shape: Sequence[int], names: Sequence[str | None], rules: ShardingRules) -> nnx.Param:
    """Weights of a norm, float32."""
    spec = rules.spec_of(shape, *names)
    value = jnp.ones(tuple(shape), jnp.float32, out_sharding=spec)
    return nnx.Param(value, out_sharding=spec, eager_sharding=False)


def zeros(
    shape: Sequence[int], names: Sequence[str | None], dtype: DTypeLike, rules: ShardingRules
) -> nnx.Param:
    """Biases."""
    spec = rules.spec_of(shape, *names)
    value = jnp.zeros(tuple(shape), dtype, out_sharding=spec)
    return nnx.Param(value, out_sharding=spec, eager_sharding=False)


class Gathering:
    """A sub-layer whose matrices may lie in parts on the mesh, gathered ahead or when used."""

    AXES: ClassVar[dict[str, tuple[str | None, ...]]]  # logical axes of a layer's matrices, by name
    config: Any  # of the model, with the dtype of activations
    rules: ShardingRules

    def fresh(
        self, rngs: nnx.Rngs, name: str, *shape: int, fan_in: int | None = None, gain: float = 1.0
    ) -> nnx.Param:
        """One of its matrices, of every layer; see `kernel`."""
        shape, axes = (self.config.num_layers, *shape), ("layers", *self.AXES[name])
        dtype = self.config.param_dtype
        return kernel(shape, axes, dtype, rngs, self.rules, fan_in=fan_in, gain=gain)

    def sharded_matrices(self) -> Matrices:
        """Its matrices as they lie on the mesh, to be gathered ahead of their use.

        None where all are at hand.
        """
        gathers = any(self.rules.gathers(*axes) for axes in self.AXES.values())
        return {name: getattr(self, name)[...] for name in self.AXES} if gathers else None

    def gathered(self, weights: Matrices, x: Float[Array, "B T D"]) -> Matrices:
        """The matrices, gathered for inputs that lie on the mesh as `x` does."""
        return weights and {name: self._gather(name, a, x) for name, a in weights.items()}

    def _gather(self, name: str, weight: Array, x: Float[Array, "B T D"] | None) -> Array:
        """A matrix as it is multiplied with; nothing moves where it is that already.

        Rounded to the dtype of activations before it moves.
        """
        return self.rules.gather(rounded(weight, self.config.dtype), *self.AXES[name], meets=x)


def rounded(weight: Array, dtype: DTypeLike) -> Array:
    """A layer's weight in the dtype of activations.

    Rounded before it is converted, which changes no value: a bare conversion TPU's compiler moves
    ahead of the loop over layers, and keeps copies of all their weights until the way back.
    """
    to = jnp.finfo(dtype)
    if to.bits < jnp.finfo(weight.dtype).bits:
        weight = jax.lax.reduce_precision(weight, to.nexp, to.nmant)
    return weight.astype(dtype)


@jax.custom_vjp
def ahead_of(weight: Array, ahead: Array) -> Array:
    """`ahead`, which equals `weight` and was there earlier; gradients are those of `weight`."""
    return ahead


ahead_of.defvjp(lambda weight, ahead: (ahead, None), lambda _, grad: (grad, None))


def is_controller_state(path: Sequence[object]) -> bool:
    """True if the leaf at `path` of a weights tree is the bias of a router.

    `path` holds strings, or the key entries of `jax.tree_util`. Such leaves get no gradient,
    optimizer state, clipping or weight decay: the controller of the biases alone changes them.
    """
    return names_of(path)[-2:] == ("router", "bias")


def names_of(path: Sequence[object]) -> tuple[str, ...]:
    """The names along a path of strings, or of the key entries of `jax.tree_util`."""
    return tuple(str(getattr(entry, "key", getattr(entry, "name", entry))) for entry in path)


def by_path(weights: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a weights tree by path, {"layers/experts/down": leaf}."""
    found = {}
    for key, value in weights.items():
        path = prefix + key
        found |= by_path(value, path + "/") if isinstance(value, Mapping) else {path: value}
    return found


def as_tree(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `by_path`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree
