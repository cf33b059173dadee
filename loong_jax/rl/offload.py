"""Moments of an optimizer in host memory between updates, where its config offloads them.

An update brings them to the devices and back. Those of the layers travel one layer at a time: left
to itself XLA has nearly all of them on the devices at once.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from loong_jax.models import parameters
from loong_jax.models.parameters import Weights
from loong_jax.rl import checkpoint

_KIND = "pinned_host"  # of memory; CPU devices have it too
_LAYERS = "layers/"  # where weights are stacked along their first axis
Update = Callable[[Weights, Weights, Any], tuple[Weights, Any]]


def to_host(state: Any) -> Any:
    """An optimizer's state with its moments in host memory, within jit or without."""
    return _map_moments(lambda moment: jax.device_put(moment, jax.memory.Space.Host), state)


def to_device(state: Any) -> Any:
    """The inverse of `to_host`."""
    return _map_moments(lambda moment: jax.device_put(moment, jax.memory.Space.Device), state)


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

    def of_leaf(path, leaf):
        return function(leaf) if isinstance(path[-1], jax.tree_util.DictKey) else leaf

    return jax.tree_util.tree_map_with_path(of_leaf, state)


def streamed(update: Update, init: Callable[[Weights], Any]) -> Update:
    """`update(weights, gradient, state)`, which treats weights apart from each other, of a state
    that waits in host memory before and after.

    `init(weights)` is the state that some of the weights begin with.
    """

    def update_part(weights, gradient, held):  # by path, by path, by name
        part = parameters.as_tree(weights)
        like = jax.eval_shape(init, part)
        leaves = [held[name] for name in checkpoint.by_path(like)]
        state = to_device(jax.tree.unflatten(jax.tree.structure(like), leaves))
        made, after = update(part, parameters.as_tree(gradient), state)
        return parameters.by_path(made), checkpoint.by_path(to_host(after))

    def update_all(weights, gradient, state):
        gradients, held = parameters.by_path(gradient), checkpoint.by_path(state)
        layers, rest = {}, {}
        for path, weight in parameters.by_path(weights).items():
            (layers if path.startswith(_LAYERS) else rest)[path] = weight
        made, after = update_part(rest, {path: gradients[path] for path in rest}, held)
        own = checkpoint.by_path(jax.eval_shape(init, parameters.as_tree(layers)))
        host = jax.memory.Space.Host
        moments = {name: held[name] for name in own if jax.typeof(held[name]).memory_space == host}

        def update_layer(index, carry):
            def of_layer(tree):
                take = jax.lax.dynamic_index_in_dim
                return jax.tree.map(lambda a: take(a, index, keepdims=True), tree)

            gradient = {path: gradients[path] for path in layers}
            part, before = of_layer(carry)
            part, found = update_part(part, of_layer(gradient), held | before)
            new = part, {name: found[name] for name in before}
            put = jax.lax.dynamic_update_index_in_dim
            return jax.tree.map(lambda whole, a: put(whole, a, index, 0), carry, new)

        if layers:
            num_layers = next(iter(layers.values())).shape[0]
            layers, moments = jax.lax.fori_loop(0, num_layers, update_layer, (layers, moments))
        leaves = [(after | moments)[name] for name in held]
        state = jax.tree.unflatten(jax.tree.structure(state), leaves)
        return parameters.as_tree(made | layers), state

    return update_all
