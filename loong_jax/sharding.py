"""Sharding of arrays: mesh axes, logical axis names and the rules between them.

A mesh always has all six axes, unused ones of size 1, and all are explicit, so an array's sharding
is part of its type. Parameters and activations name logical axes; `ShardingRules` says which mesh
axes carry each. Without a mesh every function here is the identity and every spec is None.

Knows: errors.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import mesh_utils
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Integer, Shaped

from loong_jax.errors import ConfigError

MESH_AXES = ("slice", "data", "fsdp", "expert", "tensor", "context")
_NOT_LOGICAL = ("mesh", "gathered_at_use", "zigzag", "compiler_options")  # fields of the rules
MeshAxes = str | tuple[str, ...] | None
_turns: dict[Any, threading.RLock] = collections.defaultdict(threading.RLock)  # by device


def make_mesh(
    *,
    slice: int = 1,
    data: int = 1,
    fsdp: int = 1,
    expert: int = 1,
    tensor: int = 1,
    context: int = 1,
    devices: Sequence[Any] | None = None,  # of jax.Device
) -> Mesh:
    """A mesh with all of `MESH_AXES`, explicit, over the first devices it needs.

    Neighbours in the mesh are close; axis `slice` runs over slices, if there are any. Raises
    ConfigError when fewer devices exist than the product of the sizes, or slices do not fit.
    """
    sizes = (slice, data, fsdp, expert, tensor, context)
    needed = math.prod(sizes)
    devices = jax.devices() if devices is None else devices
    if min(sizes) < 1 or needed > len(devices):
        named = zip(MESH_AXES, sizes, strict=True)
        total = jax.device_count() + needed - len(devices)
        flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={total}"
        raise ConfigError(
            f"mesh {', '.join(f'{axis}={size}' for axis, size in named if size != 1)} needs "
            f"{needed} devices with every size at least 1, and {len(devices)} exist. Lower a size "
            f"or add devices{f': {flag} makes them of a CPU' if needed > len(devices) else ''}."
        )
    devices = devices[:needed]
    slices = len({getattr(device, "slice_index", None) for device in devices})
    if slices not in (1, slice):
        raise ConfigError(
            f"mesh axis slice={slice} and the devices are of {slices} slices. Make them equal."
        )
    if slices == 1:
        placed = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    else:
        placed = mesh_utils.create_hybrid_device_mesh(
            (1, *sizes[1:]), (slice, 1, 1, 1, 1, 1), devices, allow_split_physical_axes=True
        )
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Explicit,) * len(MESH_AXES))


class CompilerOptions(NamedTuple):
    """Compiler options, as (name, value), for programs that train and that decode."""

    training: tuple[tuple[str, bool | float], ...] = ()
    decoding: tuple[tuple[str, bool | float], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardingRules:
    """Maps each logical axis to the mesh axes that shard it; None keeps it whole.

    Names starting with `act_` are for activations, the others for parameters. Parameters rest
    sharded over `gathered_at_use` and are gathered over it just before they are used.
    """

    mesh: Mesh | None = None

    layers: MeshAxes = None  # L
    vocab: MeshAxes = "tensor"  # V
    vocab_embed: MeshAxes = "fsdp"  # D of the embedding and the head
    embed: MeshAxes = "fsdp"  # D of the attentions and of all that has no D of its own
    q_rank: MeshAxes = None  # Q
    kv_rank: MeshAxes = None  # C, and C + R where both share a projection
    rank: MeshAxes = "fsdp"  # Q and C of the projections up from them
    heads: MeshAxes = "tensor"  # N
    head_width: MeshAxes = None  # H, R, U
    ffn: MeshAxes = "tensor"  # F
    ffn_embed: MeshAxes = "fsdp"  # D of the dense FFNs' weights
    target: MeshAxes = None  # A
    expert: MeshAxes = "expert"  # E; never gathered
    expert_embed: MeshAxes = "fsdp"  # D of the experts' weights
    expert_ffn: MeshAxes = "tensor"  # M
    ngram_width: MeshAxes = ("fsdp", "expert", "tensor")  # of the hashed tables

    act_batch: MeshAxes = ("slice", "data", "fsdp", "expert")  # B
    act_length: MeshAxes = "context"  # T
    act_keys: MeshAxes = None  # S
    act_embed: MeshAxes = None  # D
    act_rank: MeshAxes = None  # Q, C, R
    act_vocab: MeshAxes = None  # V

    gathered_at_use: tuple[str, ...] = ("fsdp",)
    zigzag: bool = False  # order of the tokens over act_length; see models.moe.context
    compiler_options: CompilerOptions = CompilerOptions()

    def _logical(self) -> dict[str, MeshAxes]:
        fields = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in fields if name not in _NOT_LOGICAL}

    def cutting(self) -> "ShardingRules":
        """These rules without mesh axes of one device: JAX refuses products that differ in them."""
        cut = {
            name: tuple(axis for axis in _as_tuple(axes) if self.size(axis) > 1) or None
            for name, axes in self._logical().items()
        }
        return dataclasses.replace(self, **cut)

    def partition(self, *names: str | None) -> PartitionSpec:
        """The mesh axes of each named dimension; None names a dimension that is never sharded.

        Raises ConfigError on a mesh axis used twice.
        """
        logical = {None: None, **self._logical()}
        parts = [logical[name] for name in names]
        axes = list(itertools.chain(*map(_as_tuple, parts)))
        if twice := [axis for axis in axes if axes.count(axis) > 1]:
            raise ConfigError(
                f"mesh axis {twice[0]!r} is used twice in {names}: an array cannot be cut twice "
                "along one axis. Change the rule of one of these."
            )
        return PartitionSpec(*parts)

    def spec(self, *names: str | None) -> NamedSharding | None:
        """The sharding of an array with these logical axes, None without a mesh."""
        partition = self.partition(*names)
        return None if self.mesh is None else NamedSharding(self.mesh, partition)

    def spec_of(self, shape: Sequence[int], *names: str | None) -> NamedSharding | None:
        """As `spec`, of an array of this shape; ConfigError where devices do not divide a side."""
        for size, name in zip(shape, names, strict=False):
            if name is not None and size % self.parts(name):
                axes = ", ".join(f"{axis}={self.size(axis)}" for axis in self.axes(name))
                raise ConfigError(
                    f"an array of shape {tuple(shape)} is cut along {name!r}, where it has {size}, "
                    f"over {self.parts(name)} devices ({axes}), which do not divide that. Choose "
                    "another mesh or another size, or change the rule."
                )
        return self.spec(*names)

    def scope(self) -> contextlib.AbstractContextManager:
        """Within it the mesh is set, where there is one."""
        mesh = self.mesh
        with contextlib.suppress(ValueError):  # within jit, whose caller alone can set it
            if mesh is not None and jax.sharding.get_abstract_mesh() != mesh.abstract_mesh:
                return jax.set_mesh(mesh)
        return contextlib.nullcontext()

    def jit(self, function: Callable[..., Any], *, decodes: bool = False, **options: Any) -> Any:
        """`jax.jit(function, **options)` under `compiler_options`, called as `launch` does."""
        training, decoding = self.compiler_options
        chosen = dict(decoding if decodes else training) or None
        compiled: Any = jax.jit(function, compiler_options=chosen, **options)
        if self.mesh is None:
            return compiled

        def lower(*args, **kwargs):
            with self.scope():
                return compiled.lower(*args, **kwargs)

        call: Any = functools.partial(launch, self.mesh, compiled)
        call.lower = lower
        return call

    def put_rows(self, tree: Any) -> Any:
        """Arrays whose first axis is cut as the rows of a batch, on their devices."""
        rows = self.spec("act_batch")
        return tree if rows is None else jax.device_put(tree, rows)

    def like(self, x: Array) -> NamedSharding | None:
        """The sharding that `x` has: what a sub-layer gives its output, back in the residual."""
        return None if self.mesh is None else jax.typeof(x).sharding

    def place(self, x: Array, *names: str | None) -> Array:
        """Moves an array to the sharding of its logical axes; raises as `spec_of`."""
        sharding = self.spec_of(x.shape, *names)
        return x if sharding is None else jax.sharding.reshard(x, sharding)

    def gathered(self, *names: str | None) -> PartitionSpec:
        """The `partition` without the axes that are gathered at use."""
        gone = set(self.gathered_at_use)
        kept = (
            tuple(a for a in _as_tuple(axes) if name == "expert" or a not in gone) or None
            for name, axes in zip(names, self.partition(*names), strict=True)
        )
        return PartitionSpec(*kept)

    def gathers(self, *names: str | None) -> set[str]:
        """The mesh axes over which `gather` moves anything of a parameter with these axes."""
        moved = {axis for name in names if name not in (None, "expert") for axis in self.axes(name)}
        return {axis for axis in moved & set(self.gathered_at_use) if self.size(axis) > 1}

    def gather(self, weight: Array, *names: str | None, meets: Array | None = None) -> Array:
        """A parameter as its layer multiplies by it: gathered over `gathered_at_use`.

        Its transpose scatters the gradient back to where the parameter rests. If all that meets the
        parameter are products with the tokens of an array that lies as `meets`, its gradient is
        summed over devices no earlier than it is scattered. TPUs sum it whole on every device
        unless its parts are rows of what lies in memory.
        """
        if self.mesh is None:
            return weight
        partition = self.gathered(*names)
        if meets is not None:
            tokens = itertools.chain(*map(_as_tuple, jax.typeof(meets).sharding.spec[:2]))
            summed = frozenset(tokens).difference(*map(_as_tuple, partition))
            if any(self.size(axis) > 1 for axis in summed):  # else nothing waits for a sum
                partition = partition.update(reduced=summed)
        whole = jax.sharding.reshard(weight, NamedSharding(self.mesh, partition))
        cut = [axis for axis, name in enumerate(names) if self.gathers(name)]
        has_rows = cut and weight.ndim > 1 and self.platform == "tpu"
        return _with_gradient_in_parts(whole, cut[0]) if has_rows else whole

    def gather_tokens(self, x: Array, name: str) -> Array:
        """`x` as it meets weights that stay cut along `name`: whole over the axes of that cut."""
        return self._whole_along(x, [a for a in self.axes(name) if a not in self.gathered_at_use])

    def scatter_sums(
        self, product: Callable[..., Array], x: Array, weight: Array, *, like: Array
    ) -> Array:
        """`product(x, weight)`, to lie as the tokens `like`, of which `x` was gathered.

        Over devices that each have a part of every sum these are scattered: of a sharding alone XLA
        makes an all-reduce and cuts a device's own tokens out, twice the bytes.
        """
        home = self.like(like)
        if home is None:
            return product(x, weight)
        spec = jax.typeof(x).sharding.spec
        gathered = tuple(a for a in _as_tuple(home.spec[0]) if a not in _as_tuple(spec[0]))
        if not gathered:
            return product(x, weight, out_sharding=home)

        def on_one_device(x, weight):
            return jax.lax.psum_scatter(product(x, weight), gathered, tiled=True)

        specs = spec, jax.typeof(weight).sharding.spec
        return self.shard_map(on_one_device, in_specs=specs, out_specs=home.spec)(x, weight)

    def _whole_along(self, x: Array, cut: Sequence[str]) -> Array:
        if self.mesh is None:
            return x
        spec = jax.typeof(x).sharding.spec
        kept = (tuple(axis for axis in _as_tuple(part) if axis not in cut) for part in spec)
        return jax.sharding.reshard(x, NamedSharding(self.mesh, PartitionSpec(*kept)))

    def after(self, lead: Array, *names: str | None) -> NamedSharding | None:
        """The sharding of an array whose first axes are those of `lead`, then the named ones."""
        if self.mesh is None:
            return None
        spec = PartitionSpec(*jax.typeof(lead).sharding.spec, *self.partition(*names))
        return NamedSharding(self.mesh, spec)

    def take(
        self,
        table: Shaped[Array, "rows ..."],
        index: Integer[Array, "..."],
        *names: str | None,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Rows of `table` at `index`, in `dtype`; `names` are the logical axes of a row.

        Parts of a row that lie on several devices are taken there, for the tokens of all of them,
        and put together where the index lay. Rows and their gradients move in `dtype`, and the
        gradients of a row are summed in float32: bfloat16 stops growing after some hundred.
        """
        dtype, home, place = dtype or table.dtype, None, self.after(index, *names)
        if self.mesh is not None:
            spec = jax.typeof(table).sharding.spec
            cut = tuple(itertools.chain(*map(_as_tuple, spec)))
            index = self._whole_along(index, cut)  # else every device would gather the table
            of_index = jax.typeof(index).sharding.spec
            home = NamedSharding(self.mesh, PartitionSpec(*of_index, *spec[1:]))
        rows = _summed_wide(lambda t, i: t.at[i].get(out_sharding=home), table, index).astype(dtype)
        return rows if place is None else jax.sharding.reshard(rows, place)

    def shard_map(
        self, function: Callable[..., Any], *, in_specs: Any, out_specs: Any, check_vma: bool = True
    ):
        """`function`, written for one device, run on every device; itself without a mesh."""
        if self.mesh is None:
            return function
        specs: Any = dict(in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)
        return jax.shard_map(function, mesh=self.mesh, **specs)

    @property
    def platform(self) -> str:
        """The platform of compiled programs, `cpu`, `gpu` or `tpu`, of a described machine too."""
        if self.mesh is None:
            return jax.default_backend()
        return self.mesh.devices.flat[0].platform

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """The compute capability of the NVIDIA GPUs that programs are compiled for; else None."""
        if self.platform != "gpu":
            return None
        device = jax.local_devices()[0] if self.mesh is None else self.mesh.devices.flat[0]
        major, _, minor = str(getattr(device, "compute_capability", "")).partition(".")
        return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None

    def size(self, axis: str) -> int:
        """Number of devices along a mesh axis, 1 without a mesh."""
        return 1 if self.mesh is None else self.mesh.shape[axis]

    def axes(self, name: str) -> tuple[str, ...]:
        """The mesh axes that a logical axis is cut along."""
        return _as_tuple(self._logical()[name])

    def parts(self, name: str) -> int:
        """Number of parts that a logical axis is cut into, 1 without a mesh."""
        return math.prod(map(self.size, self.axes(name)))


def launch(mesh: Mesh | None, compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`compiled(*args, **kwargs)`, with the mesh set, while no other thread launches there.

    Devices that exchange data must run programs in one order, so those of several threads, a
    trainer's and a replica's say, may not be handed to them at once. On CPU, where devices share
    their threads, a program also ends before the next begins.
    """
    rules = ShardingRules(mesh=mesh)
    devices = [] if mesh is None or mesh.devices.size == 1 else list(mesh.devices.flat)
    with rules.scope(), contextlib.ExitStack() as held:
        for device in sorted(devices, key=lambda device: device.id):
            held.enter_context(_turns[device])
        done = compiled(*args, **kwargs)
        return jax.block_until_ready(done) if devices and rules.platform == "cpu" else done


def decoding_rules(mesh: Mesh) -> ShardingRules:
    """Rules under which a step of decoding reads every cache once.

    `tensor` cuts sequences as well, not heads, so that a device attends for its own with all heads.
    FFNs, embedding and head stay cut along it: tokens are gathered over it on their way in, sums
    scattered on their way out. Experts are spread whole over `expert` and `tensor`.
    """
    batch = ("slice", "data", "fsdp", "expert", "tensor")
    experts = ("expert", "tensor")
    return ShardingRules(mesh=mesh, heads=None, expert=experts, expert_ffn=None, act_batch=batch)


def by_rows(function: Callable[..., Any], *arrays: Array) -> Any:
    """`function(*arrays)`, called on every device for its own rows, all of which it treats alike.

    Rows are the first axis, cut as that of the first array; all other axes are whole.
    """
    sharding = jax.typeof(arrays[0]).sharding
    if sharding.mesh.empty:
        return function(*arrays)
    rows = PartitionSpec(sharding.spec[0])
    whole = (jax.sharding.reshard(a, NamedSharding(sharding.mesh, rows)) for a in arrays)
    return jax.shard_map(function, in_specs=rows, out_specs=rows)(*whole)


def partitioned_freely(function: Callable[..., Any], like: Any) -> Callable[..., Any]:
    """`function`, within which the compiler chooses how arrays are cut; results lie as `like`."""
    leaves = jax.tree.leaves(like)
    if not leaves or all(jax.typeof(leaf).sharding.mesh.empty for leaf in leaves):
        return function
    specs = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding.spec, like)
    return jax.sharding.auto_axes(function, out_sharding=specs)


def varying_alike(tree: Any) -> Any:
    """Marks every array as one that may differ along each mesh axis along which any of them does.

    The transpose of the mark is the sum over the devices that shared an array; where its type says
    `reduced`, whoever gathered the array takes that sum.
    """
    union = frozenset().union(*(jax.typeof(a).mat.varying for a in jax.tree.leaves(tree)))

    def mark(a):
        missing, reduced = union - jax.typeof(a).mat.varying, jax.typeof(a).mat.reduced
        for some in (missing & reduced, missing - reduced):
            a = jax.lax.pcast(a, tuple(sorted(some)), to="varying") if some else a
        return a

    return jax.tree.map(mark, tree)


def place_like(x: Array, other: Array) -> Array:
    """`x` cut as the first axes of `other`, as many as it has; `x` itself without a mesh."""
    if (sharding := jax.typeof(other).sharding).mesh.empty:
        return x
    first = PartitionSpec(*sharding.spec[: x.ndim])
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, first))


def _summed_wide(take: Callable[[Array, Array], Array], table: Array, index: Array) -> Array:
    """`take(table, index)`, whose gradient is summed in float32 and then rounded."""
    if table.dtype not in (jnp.bfloat16, jnp.float16):
        return take(table, index)

    def backward(saved, grad):
        table, index = saved
        _, pull = jax.vjp(lambda table: take(table, index), table.astype(jnp.float32))
        (total,) = pull(grad.astype(jnp.float32))
        return total.astype(table.dtype), None

    function = jax.custom_vjp(take)
    function.defvjp(lambda *operands: (take(*operands), operands), backward)
    return function(table, index)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _with_gradient_in_parts(weight: Array, axis: int) -> Array:
    """`weight`, whose gradient lies in memory in matrices with `axis` as their rows."""
    return weight


def _in_parts(axis, _, grad):
    *outer, last = (i for i in range(grad.ndim) if i != axis)
    return (with_layout_constraint(grad, Layout((*outer, axis, last))),)


_with_gradient_in_parts.defvjp(lambda weight, axis: (weight, None), _in_parts)


def _as_tuple(axes: MeshAxes) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


NO_MESH = ShardingRules()
