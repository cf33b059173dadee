"""Weights that rest in parts on many devices, gathered ahead of the work that multiplies by them.

A module with matrices has `AXES`, the logical axes of a layer's matrices by name, and `gather`,
which makes of one what the module multiplies by; nothing moves where it is that already.
"""

from typing import Any, TypeVar

from flax import nnx
from jaxtyping import Array, Float

Module = TypeVar("Module", bound=nnx.Module)
Weights = dict[str, Array] | None  # None where all are at hand


def resting(module: Any) -> Weights:
    """The matrices where they rest."""
    gathers = any(module.rules.gathers(*axes) for axes in module.AXES.values())
    return {name: getattr(module, name)[...] for name in module.AXES} if gathers else None


def gathered(module: Any, weights: Weights, x: Float[Array, "B T D"]) -> Weights:
    """Those matrices, gathered for inputs that lie on the mesh as `x` does."""
    return weights and {name: module.gather(name, a, x) for name, a in weights.items()}


def having(module: Module, weights: Weights) -> Module:
    """The module with these matrices in the place of its own."""
    if weights is None:
        return module
    graph, state = nnx.split(module, graph=False)
    return nnx.merge(graph, nnx.State(nnx.to_pure_dict(state) | weights))
