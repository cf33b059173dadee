"""How a model is made: weights that are sharded from birth, or their shapes alone."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array

from loong_jax.sharding import ShardingRules

Weights = dict[str, Any]  # nested, of arrays
Make = Callable[..., nnx.Module]  # (rngs=, rules=) -> a model


def init(make: Make, key: Array, rules: ShardingRules | None) -> tuple[nnx.GraphDef, Weights]:
    """The graph and fresh weights of what `make` makes; the values do not depend on the mesh."""
    return _split(make(rngs=nnx.Rngs(key), rules=rules))


def abstract(make: Make, rules: ShardingRules | None) -> tuple[nnx.GraphDef, Weights]:
    """As `init`, without making any array: leaves are `jax.ShapeDtypeStruct`.

    They carry the shardings that the rules give them, so a pod's model can be looked at anywhere.
    """
    rules = rules or ShardingRules()
    with rules.scope():
        model = jax.eval_shape(lambda: make(rngs=nnx.Rngs(jax.random.key(0)), rules=rules))
    graphdef, weights = _split(model)

    def on_devices(leaf):
        """The sharding that an abstract mesh gave a leaf, on the devices of the mesh."""
        sharding = rules.mesh and jax.sharding.NamedSharding(rules.mesh, leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return graphdef, jax.tree.map(on_devices, weights)


def _split(model: nnx.Module) -> tuple[nnx.GraphDef, Weights]:
    graphdef, state = nnx.split(model, graph=False)
    return graphdef, nnx.to_pure_dict(state)
