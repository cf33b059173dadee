"""Sharding of arrays: mesh axes, logical axis names and the rules between them.

A mesh always has all six axes, unused ones of size 1, and all are explicit, so an array's sharding
is part of its type. Parameters and activations name logical axes; `ShardingRules` says which mesh
axes carry each. Without a mesh every function here is the identity and every spec is None, so the
same code runs on one device and on a pod.

Knows: errors.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Integer, Shaped

from loong_jax.errors import ConfigError

MESH_AXES = ("slice", "data", "fsdp", "expert", "tensor", "context")

MeshAxes = str | tuple[str, ...] | None


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

    Raises ConfigError when fewer devices exist than the product of the sizes.
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
    explicit = (AxisType.Explicit,) * len(MESH_AXES)
    return Mesh(_arrange(sizes, devices[:needed]), MESH_AXES, axis_types=explicit)


def _arrange(sizes: tuple[int, ...], devices: Sequence[Any]) -> np.ndarray:
    """Devices so that neighbours in the mesh are close; axis `slice` runs over slices, if any."""
    slices = {getattr(device, "slice_index", None) for device in devices}
    if len(slices) == 1:
        return mesh_utils.create_device_mesh(
            sizes, devices, contiguous_submeshes=False, allow_split_physical_axes=True
        )
    if len(slices) != sizes[0]:
        raise ConfigError(
            f"mesh axis slice={sizes[0]} and the devices are of {len(slices)} slices. Make them "
            "equal."
        )
    inside, across = (1, *sizes[1:]), (sizes[0], *(1 for _ in sizes[1:]))
    return mesh_utils.create_hybrid_device_mesh(
        inside, across, devices, allow_split_physical_axes=True
    )


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

    def __post_init__(self):
        for name, axes in self._logical().items():
            unknown = set(_as_tuple(axes)) - set(MESH_AXES)
            if unknown:
                raise ConfigError(
                    f"rule {name}={axes!r} names {sorted(unknown)}, which are no mesh axes. "
                    f"Use {MESH_AXES} or None."
                )
        if self.mesh is not None and tuple(self.mesh.axis_names) != MESH_AXES:
            raise ConfigError(
                f"the mesh has axes {self.mesh.axis_names}; rules need {MESH_AXES}. "
                "Build it with loong_jax.sharding.make_mesh."
            )
        if self.mesh is not None and set(self.mesh.axis_types) != {AxisType.Explicit}:
            raise ConfigError(
                f"the mesh has axes of types {self.mesh.axis_types}; all must be explicit. "
                "Build it with loong_jax.sharding.make_mesh."
            )

    def _logical(self) -> dict[str, MeshAxes]:
        fields = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in fields if name not in _NOT_LOGICAL}

    def cutting(self) -> "ShardingRules":
        """These rules without mesh axes of one device.

        They cut nothing, yet JAX refuses a product of operands of which only one names them.
        """
        return dataclasses.replace(
            self,
            **{
                name: tuple(axis for axis in _as_tuple(axes) if self.size(axis) > 1) or None
                for name, axes in self._logical().items()
            },
        )

    def partition(self, *names: str | None) -> PartitionSpec:
        """The mesh axes of each named dimension; None names a dimension that is never sharded.

        Raises ConfigError on an unknown name and on a mesh axis used twice.
        """
        logical = self._logical()
        used: set[str] = set()
        for name in names:
            if name is not None and name not in logical:
                raise ConfigError(
                    f"logical axis {name!r} is unknown. Known: {', '.join(sorted(logical))}."
                )
            axes = set(_as_tuple(logical[name])) if name else set()
            if used & axes:
                raise ConfigError(
                    f"mesh axis {sorted(used & axes)} is used twice in {names}: an array cannot "
                    f"be cut twice along one axis. Change the rule of {name!r} or an earlier one."
                )
            used |= axes
        return PartitionSpec(*(logical[name] if name else None for name in names))

    def spec(self, *names: str | None) -> NamedSharding | None:
        """The sharding of an array with these logical axes, None without a mesh."""
        partition = self.partition(*names)
        return None if self.mesh is None else NamedSharding(self.mesh, partition)

    def spec_of(self, shape: Sequence[int], *names: str | None) -> NamedSharding | None:
        """The sharding of an array of this shape, as `spec`.

        Raises ConfigError where a dimension is no multiple of the devices that it is cut over.
        """
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
        return _scope(self.mesh)

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

        def kept(name: str | None, axes: MeshAxes) -> MeshAxes:
            gone = () if name == "expert" else self.gathered_at_use
            return tuple(a for a in _as_tuple(axes) if a not in gone) or None

        return PartitionSpec(*map(kept, names, self.partition(*names)))

    def gathers(self, *names: str | None) -> bool:
        """True if `gather` moves anything of a parameter with these logical axes."""
        return bool(self.gathered_over(*names))

    def gathered_over(self, *names: str | None) -> set[str]:
        """The mesh axes over which `gather` moves anything of such a parameter."""
        before, after = (
            {axis for axes in partition for axis in _as_tuple(axes) if self.size(axis) > 1}
            for partition in (self.partition(*names), self.gathered(*names))
        )
        return before - after

    def gather(self, weight: Array, *names: str | None, meets: Array | None = None) -> Array:
        """A parameter as its layer multiplies by it: gathered over `gathered_at_use`.

        Its transpose scatters the gradient back to where the parameter rests. If all that meets the
        parameter are products with the tokens of an array that lies as `meets`, its gradient is
        summed over devices no earlier than it is scattered. TPUs sum it whole on every device
        unless its parts are rows of what lies in memory.
        """
        partition = self.gathered(*names)
        if self.mesh is None:
            return weight
        if meets is not None:
            tokens = itertools.chain(*map(_as_tuple, jax.typeof(meets).sharding.spec[:2]))
            own = itertools.chain(*map(_as_tuple, partition))
            summed = frozenset(tokens) - frozenset(own)
            if any(self.size(axis) > 1 for axis in summed):  # else nothing waits for a sum
                partition = partition.update(reduced=summed)
        whole = jax.sharding.reshard(weight, NamedSharding(self.mesh, partition))
        cut = [axis for axis, name in enumerate(names) if self.gathers(name)]
        has_rows = cut and weight.ndim > 1 and self.platform == "tpu"
        return _with_gradient_in_parts(whole, cut[0]) if has_rows else whole

    def gather_tokens(self, x: Array, name: str) -> Array:
        """`x` as it meets weights that stay cut along `name`: whole over the axes of that cut.

        Moves only what lies over those axes, as tokens do where sequences are cut along `tensor`.
        """
        gathered = set(self.gathered_at_use)
        return self._whole_along(x, [axis for axis in self.axes(name) if axis not in gathered])

    def scatter_sums(
        self, product: Callable[..., Array], x: Array, weight: Array, *, like: Array
    ) -> Array:
        """`product(x, weight)`, to lie as the tokens `like`, of which `x` was gathered.

        If they were gathered over devices that each have a part of every sum, these are scattered.
        Of a sharding alone XLA makes an all-reduce and cuts a device's own tokens out: twice the
        bytes.
        """
        home = self.like(like)
        if home is None:
            return product(x, weight)
        spec = jax.typeof(x).sharding.spec
        gathered = tuple(a for a in _as_tuple(home.spec[0]) if a not in _as_tuple(spec[0]))
        if not gathered:
            return product(x, weight, out_sharding=home)

        def on_one_device(x, weight):
            return jax.lax.psum_scatter(
                product(x, weight), gathered, scatter_dimension=0, tiled=True
            )

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
        first = jax.typeof(lead).sharding.spec
        return NamedSharding(self.mesh, PartitionSpec(*first, *self.partition(*names)))

    def take(
        self,
        table: Shaped[Array, "rows ..."],
        index: Integer[Array, "..."],
        *names: str | None,
        dtype: DTypeLike | None = None,
    ) -> Array:
        """Rows of `table` at `index`, in `dtype`; `names` are the logical axes of a row.

        Parts of a row that lie on several devices are taken there, for the tokens of all of them,
        and put together where the index lay. Rows and their gradients move in `dtype`. The
        gradients of a row that is taken many times are summed in float32: bfloat16 stops growing
        after some hundred summands.
        """
        dtype = dtype or table.dtype
        if self.mesh is None:
            return summed_wide(lambda table, index: table[index], table, index).astype(dtype)
        place, spec = self.after(index, *names), jax.typeof(table).sharding.spec
        cut = tuple(itertools.chain(*map(_as_tuple, spec)))
        index = self._whole_along(index, cut)  # else every device would gather the table
        of_index = jax.typeof(index).sharding.spec
        home = NamedSharding(self.mesh, PartitionSpec(*of_index, *spec[1:]))
        rows = summed_wide(lambda t, i: t.at[i].get(out_sharding=home), table, index)
        return jax.sharding.reshard(rows.astype(dtype), place)

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
    if mesh is None:
        return compiled(*args, **kwargs)
    with _scope(mesh), _turn(mesh):
        done = compiled(*args, **kwargs)
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        return jax.block_until_ready(done) if is_cpu and mesh.devices.size > 1 else done


def _scope(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    if mesh is None or jax.sharding.get_abstract_mesh() == mesh.abstract_mesh:
        return contextlib.nullcontext()
    try:
        return jax.set_mesh(mesh)
    except ValueError:  # within jit, whose caller alone can set it
        return contextlib.nullcontext()


_TURNS: dict[Any, threading.RLock] = collections.defaultdict(threading.RLock)  # by device


@contextlib.contextmanager
def _turn(mesh: Mesh) -> Iterator[None]:
    """While no other thread hands programs to the devices of `mesh`."""
    with contextlib.ExitStack() as held:
        if mesh.devices.size > 1:
            for device in sorted(mesh.devices.flat, key=lambda device: device.id):
                held.enter_context(_TURNS[device])
        yield


def decoding_rules(mesh: Mesh) -> ShardingRules:
    """Rules under which a step of decoding reads every cache once.

    `tensor` cuts sequences as well, where it otherwise cuts heads and leaves whole caches on all
    its devices: a device attends for its own sequences with all heads. FFNs, embedding and head
    stay cut along it, so tokens are gathered over it on their way in and sums scattered on their
    way out; experts are spread whole over `expert` and `tensor`.
    """
    return ShardingRules(
        mesh=mesh,
        heads=None,
        expert=("expert", "tensor"),
        expert_ffn=None,
        act_batch=("slice", "data", "fsdp", "expert", "tensor"),
    )


def by_rows(function: Callable[..., Any], *arrays: Array) -> Any:
    """`function(*arrays)`, which treats rows alike, called on every device for its own.

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
    axes = [jax.typeof(a).mat.varying for a in jax.tree.leaves(tree)]
    union = frozenset().union(*axes)

    def mark(a):
        missing = union - jax.typeof(a).mat.varying
        summed_later = missing & jax.typeof(a).mat.reduced
        for some in (summed_later, missing - summed_later):
            a = jax.lax.pcast(a, tuple(sorted(some)), to="varying") if some else a
        return a

    return jax.tree.map(mark, tree)


def place_like(x: Array, other: Array) -> Array:
    """`x` cut as the first axes of `other`, as many as it has; `x` itself without a mesh."""
    sharding = jax.typeof(other).sharding
    if sharding.mesh.empty:
        return x
    first = PartitionSpec(*sharding.spec[: x.ndim])
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, first))


_NOT_LOGICAL = ("mesh", "gathered_at_use", "zigzag", "compiler_options")


def summed_wide(take: Callable[[Array, Array], Array], table: Array, index: Array) -> Array:
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
    if axes is None:
        return ()
    return (axes,) if isinstance(axes, str) else tuple(axes)


NO_MESH = ShardingRules()
