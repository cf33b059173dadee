"""The devices of an engine: where weights, caches and slots lie, and how programs are compiled.

On a mesh the model keeps, within a program, the shardings that its rules state. Everything around
it, slots that come and go, pages, draws, is written as for one device, and the compiler partitions
it: caches are cut along the axes of their family, all else is whole on every device.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from loong_jax.models.families import ModelConfig, family_of
from loong_jax.models.parameters import Weights
from loong_jax.rollout.slots import Cache
from loong_jax.rollout.speculation import DraftedCache
from loong_jax.sharding import ShardingRules, launch

WHOLE: Any = PartitionSpec()  # `Any`, as what is cut stands in place of arrays


class OneDevice:
    """JAX's first device. `model_of(params)` is called within programs, `make_cache(batch,
    capacity)` makes an empty cache.
    """

    mesh: Mesh | None = None
    caches: Any = WHOLE  # how caches are cut
    one_cache: Any = WHOLE  # as `caches`, of a single sequence

    def __init__(self, model_of: Callable[[Weights], Any], make_cache: Callable[[int, int], Cache]):
        self.model_of = model_of
        self.make_cache = make_cache

    def abstract_cache(self, batch: int, capacity: int) -> Cache:
        """The shapes of `make_cache`, wherever it lies."""
        return jax.eval_shape(lambda: self.make_cache(batch, capacity))

    def load(self, weights: Weights) -> Weights:
        """Weights where the model expects them; those that lie elsewhere are copied there."""
        return jax.tree.map(jnp.asarray, weights)

    def bring(self, tree: Any) -> Any:
        """A prefix or what was read, of another engine perhaps, where programs take it from."""
        arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
        return tree if all(self._is_here(array.sharding) for array in arrays) else self._move(tree)

    def _is_here(self, sharding: Sharding) -> bool:
        return isinstance(sharding, SingleDeviceSharding)

    def _move(self, tree: Any) -> Any:
        """Over the host, as what `device_put` places is bound to its device."""
        return jax.device_get(tree)

    def whole(self, tree: Any) -> Any:
        """Arrays that every device is to hold as they are."""
        return tree

    def abstract(self, tree: Any, spec: PartitionSpec) -> Any:
        """Shapes of arrays that are cut so, as `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(lambda: tree)

    def compile(
        self, program: Callable[..., Any], *, outs: Any, donate: int | tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        """`program` compiled; `outs` says how its results, or all leaves below one, are cut."""
        return jax.jit(program, donate_argnums=donate)

    def eval_shape(self, program: Callable[..., Any], *args: Any) -> Any:
        """The result of `program` as `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(program, *args)


class OnMesh(OneDevice):
    """The devices of a mesh. `graphdef` is that of the model under the same rules."""

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        config: ModelConfig,
        rules: ShardingRules,
        *,
        drafts: bool = False,
    ):
        assert rules.mesh is not None, "rules without a mesh are for OneDevice"
        family = family_of(config)
        make: Callable[..., Cache] = DraftedCache.zeros if drafts else family.make_cache
        self._make: Callable[..., Cache] = functools.partial(make, config)
        super().__init__(lambda params: _MeshModel(self, params), self._make_here)
        self.mesh = self._mesh = rules.mesh
        self._rules, self._graphdef = rules, graphdef
        axes = family.cache_axes
        self.caches = rules.partition(*axes)
        self.one_cache = rules.partition(*(None if a == "act_batch" else a for a in axes))
        weights = family.abstract_weights(config, rules)[1]
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, weights)
        self._specs = jax.tree.map(lambda leaf: leaf.sharding.spec, weights)

    def abstract_cache(self, batch: int, capacity: int) -> Cache:
        return jax.eval_shape(lambda: self._make(batch, capacity))

    def load(self, weights: Weights) -> Weights:
        return launch(self._mesh, jax.device_put, weights, self._shardings)

    def _is_here(self, sharding: Sharding) -> bool:
        return sharding.device_set == set(self._mesh.devices.flat)

    def _move(self, tree: Any) -> Any:
        return self.whole(tree)

    def whole(self, tree: Any) -> Any:
        return jax.device_put(tree, NamedSharding(self._mesh, WHOLE))

    def abstract(self, tree: Any, spec: PartitionSpec) -> Any:
        place = NamedSharding(self._mesh, spec)
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), tree)

    def compile(
        self, program: Callable[..., Any], *, outs: Any, donate: int | tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        spread = jax.sharding.auto_axes(program, out_sharding=outs)
        return self._rules.jit(spread, decodes=True, donate_argnums=donate)

    def eval_shape(self, program: Callable[..., Any], *args: Any) -> Any:
        with self._rules.scope():
            return jax.eval_shape(jax.sharding.auto_axes(program, out_sharding=WHOLE), *args)

    def call(self, params: Weights, method: str, given: dict[str, Any]) -> Any:
        """A method of the model, from a program that the compiler partitions."""
        rows = self._rules.partition("act_batch")
        cut = {"hidden": rows, "cache": rows if method == "draft_extend" else self.caches}
        given = {name: value for name, value in given.items() if value is not None}
        specs = {
            name: jax.tree.map(lambda _, place=cut.get(name, WHOLE): place, value)  # noqa: B008
            for name, value in given.items()
        }

        def explicit(params, given):
            return getattr(nnx.merge(self._graphdef, nnx.State(params)), method)(**given)

        enter: Any = jax.sharding.explicit_axes(explicit, in_sharding=(self._specs, specs))
        return enter(params, given)

    def _make_here(self, batch: int, capacity: int) -> Cache:
        with self._rules.scope():
            return self._make(batch, capacity, self._rules)


def _called(method: str, *names: str) -> Callable[..., Any]:
    """A method of `_MeshModel`, which takes arguments of these names, and others by name."""

    def call(model: "_MeshModel", *given: Any, **known: Any) -> Any:
        named = dict(zip(names, given, strict=False))
        return model.devices.call(model.params, method, named | known)

    return call


class _MeshModel:
    def __init__(self, devices: OnMesh, params: Weights):
        self.devices, self.params = devices, params

    def layers_cut(self) -> "_MeshModel":
        return self

    logits_of = _called("logits_of", "hidden")
    prefill = _called("prefill", "tokens", "mask", "cache", "start")
    decode = _called("decode", "tokens", "positions", "cache")
    decode_routed = _called("decode_routed", "tokens", "positions", "cache")
    extend = _called("extend", "tokens", "positions", "cache")
    draft = _called("draft", "hidden", "next_tokens")
    draft_extend = _called("draft_extend", "hidden", "next_tokens", "positions", "cache")


@functools.partial(jax.jit, static_argnames="mantissa_bits")
def rounded(weights: Weights, mantissa_bits: int) -> Weights:
    """Weights to the nearest number of so many mantissa bits (7 is bfloat16), ties to even.

    Real engines differ from the trainer's program by kernels, order of summation and number
    formats. This stands for all of that where both would otherwise agree to the last bits, so that
    corrections for the difference can be measured. Routers keep their weights, as they do in
    engines of low precision: kernel and bias are float32 in the published model too.
    """

    def leaf(path, a):
        if any(getattr(entry, "key", entry) == "router" for entry in path):
            return a
        return jax.lax.reduce_precision(a, exponent_bits=8, mantissa_bits=mantissa_bits)

    return jax.tree_util.tree_map_with_path(leaf, weights)
