"""Entry points of a model: arguments become arrays of the annotated shapes, methods compile once.

Lists and NumPy arrays become arrays, masks become booleans, whole numbers int32. An argument that
does not fit its annotation is refused by name before anything is traced. Called outside of jit,
grad and the like, a method is compiled once for each shape; plain nnx would trace its loop over
layers, and so compile it, again at each call.
"""

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

_REPEATED = ("positions", "start")  # where one value may stand for all


def entry(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the model whose arguments are arrays and caches, annotated by jaxtyping.

    The method that it makes raises ValueError for what does not fit.
    """
    signature = inspect.signature(method)
    parameters = dict(list(signature.parameters.items())[1:])

    @functools.partial(jax.jit, static_argnums=0)
    def compiled(graph, weights, given):
        return method(nnx.merge(graph, weights), **given)

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        bound = signature.bind(self, *args, **kwargs).arguments
        sizes = dict(self.config.letters)
        given = {
            name: _fitted(name, bound.get(name), one.annotation, sizes)
            for name, one in parameters.items()
            if bound.get(name) is not None or one.default is one.empty
        }
        if _is_traced(given):
            return method(self, **given)
        graph, weights = nnx.split(self, graph=False)
        if _is_traced(weights):
            return method(self, **given)
        return compiled(graph, weights, given)

    return call


def _is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def _fitted(name: str, value: Any, annotation: Any, sizes: dict[str, int]) -> Any:
    """`value` as its annotation has it; `sizes` holds the letters known so far and learns more."""
    kind = next((one for one in typing.get_args(annotation) if one is not type(None)), annotation)
    if fields := getattr(kind, "_fields", None):  # a cache
        if not isinstance(value, kind):
            raise ValueError(f"{name} is of {type(value).__name__}. Pass a {kind.__name__}.")
        parts = (
            _fitted(f"{name}.{field}", getattr(value, field), kind.__annotations__[field], sizes)
            for field in fields
        )
        return kind(*parts)
    array = value if isinstance(value, jax.Array) else _array(name, value)
    if "bool" in kind.dtypes:
        array = array.astype(bool)
    elif "int32" in kind.dtypes:
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name} is of {array.dtype}. Pass whole numbers.")
        array = array.astype(jnp.int32)
    return _shaped(name, array, kind.dim_str.split(), sizes)


def _array(name: str, value: Any) -> jax.Array:
    try:
        return jnp.asarray(np.asarray(value))
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}={value!r} is no array. Pass numbers in rows of one length."
        ) from None


def _shaped(name: str, array: jax.Array, letters: list[str], sizes: dict[str, int]) -> jax.Array:
    if name in _REPEATED:
        known = tuple(sizes[letter] for letter in letters)  # of the tokens, which come first
        with contextlib.suppress(ValueError):  # it is refused below
            array = jnp.broadcast_to(array, known)
    fits = array.ndim == len(letters) and all(
        sizes.setdefault(letter, size) == size if letter.isidentifier() else size == int(letter)
        for letter, size in zip(letters, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join(
            f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in letters
        )
        hint = " A single sequence is one row, tokens[None]." if name == "tokens" else ""
        raise ValueError(f"{name} of shape {array.shape} should be [{wanted}]. Reshape it.{hint}")
    return array
