"""Moments of an optimizer in host memory between updates, where its config offloads them.

An update brings them to the devices and back. Those of the layers travel one layer at a time: left
to itself XLA has nearly all of them on the devices at once.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import optax
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Int, Shaped

from loong_jax.models import parameters
from loong_jax.models.parameters import Weights
from loong_jax.rl import checkpoint

_KIND = "pinned_host"  # of memory; CPU devices have it too
_LAYERS = "layers/"  # where weights are stacked along their first axis
Update: TypeAlias = Callable[
    [Weights, Weights, optax.OptState], tuple[Weights, optax.OptState]
]  # of weights, their gradient and the optimizer's state
_Leaves: TypeAlias = dict[str, Shaped[Array, "..."]]  # weights by path, or a state by name


def to_host(state: Any) -> Any:
    """An optimizer's state with its moments in host memory, within jit or without."""
    return _map_moments(functools.partial(jax.device_put, device=jax.memory.Space.Host), state)


def waiting(shapes: Any) -> Any:
    """Shapes of an optimizer's state whose moments lie in host memory, cut as they are."""

    def place(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        on_device = leaf.sharding or SingleDeviceSharding(jax.devices()[0])
        return leaf.update(sharding=on_device.with_memory_kind(_KIND))

    return _map_moments(place, shapes)


def is_on_host(leaf: Any) -> bool:
    """Of an array or a shape that knows where it lies."""
    return getattr(leaf.sharding, "memory_kind", None) == _KIND


def _map_moments(function: Callable[[Any], Any], state: Any) -> Any:
    """Of all that lies in dicts as the weights do: no number of steps, no coefficients."""

    def of_leaf(path: tuple[Any, ...], leaf: Any) -> Any:
        return function(leaf) if isinstance(path[-1], jax.tree_util.DictKey) else leaf

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def streamed(update: Update, init: Callable[[Weights], optax.OptState]) -> Update:
    """`update`, of a state that waits in host memory before and after, but for its counts.

    `init(weights)` is the state that some of the weights begin with. `update` treats weights apart
    from each other, and all of them count alike, so it can be given some of them.
    """

    def update_some(weights: _Leaves, gradient: _Leaves, state: _Leaves) -> tuple[_Leaves, _Leaves]:
        """These weights after their update, and their state; the others are passed over."""
        tree = parameters.as_tree(weights)
        like = jax.eval_shape(init, tree)
        own = [state[name] for name in checkpoint.by_path(like)]
        waited = jax.tree.unflatten(jax.tree.structure(like), own)
        to_device = functools.partial(jax.device_put, device=jax.memory.Space.Device)
        before = _map_moments(to_device, waited)
        own_gradient = parameters.as_tree({path: gradient[path] for path in weights})
        made, after = update(tree, own_gradient, before)
        return parameters.by_path(made), checkpoint.by_path(to_host(after))

    def update_layers(
        layers: _Leaves, gradient: _Leaves, state: _Leaves
    ) -> tuple[_Leaves, _Leaves]:
        """The weights of all layers after their update, one after another, and their moments."""
        names = checkpoint.by_path(jax.eval_shape(init, parameters.as_tree(layers)))
        host = jax.memory.Space.Host
        moments = {n: state[n] for n in names if jax.typeof(state[n]).memory_space == host}
        gradient = {path: gradient[path] for path in layers}

        def update_layer(
            index: Int[Array, ""], stacks: tuple[_Leaves, _Leaves]
        ) -> tuple[_Leaves, _Leaves]:
            take, put = jax.lax.dynamic_index_in_dim, jax.lax.dynamic_update_index_in_dim
            weights, before, own_gradient = jax.tree.map(
                lambda stack: take(stack, index, keepdims=True), (*stacks, gradient)
            )
            weights, after = update_some(weights, own_gradient, state | before)
            made = weights, {name: after[name] for name in before}
            return jax.tree.map(lambda stack, a: put(stack, a, index, 0), stacks, made)

        num_layers = next(iter(layers.values())).shape[0]
        return jax.lax.fori_loop(0, num_layers, update_layer, (layers, moments))

    def update_all(
        weights: Weights, gradient: Weights, state: optax.OptState
    ) -> tuple[Weights, optax.OptState]:
        leaves, gradients = parameters.by_path(weights), parameters.by_path(gradient)
        before = checkpoint.by_path(state)
        layers = {path: a for path, a in leaves.items() if path.startswith(_LAYERS)}
        others = {path: a for path, a in leaves.items() if path not in layers}
        others, after = update_some(others, gradients, before)
        if layers:
            layers, moments = update_layers(layers, gradients, before)
            after |= moments
        ended = jax.tree.unflatten(jax.tree.structure(state), [after[name] for name in before])
        return parameters.as_tree(others | layers), ended

    return update_all
