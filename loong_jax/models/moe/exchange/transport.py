"""Rows sent by any exchange, with the gradient that comes back.

Everything here runs inside `shard_map` and is written for one device. What an exchange does there
stands in `Placement` and `DeviceExchange`, in the order of use.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int
from jaxtyping import PyTree as Tree  # of arrays

from loong_jax.models.moe.exchange import Exchange, PaddedExchange, RaggedExchange, Sizes
from loong_jax.models.moe.exchange.dispatch import (
    Gates,
    Number,
    Rows,
    Targets,
    Tokens,
    zeros_alike,
)
from loong_jax.models.moe.exchange.equal import Gathered, Padded
from loong_jax.models.moe.exchange.ragged import Ragged


@runtime_checkable
class Placement(Protocol):
    """Where rows are made: `equal.Local`, where all experts are at hand, or an exchange."""

    @property
    def room(self) -> int | None:
        """Choices that the products of the experts take at a time, None for all."""
        ...

    @property
    def may_overflow(self) -> bool:
        """True where a round may leave choices for a later one."""
        ...

    def plan(self, target: Targets, kept: Bool[Array, "T K"]) -> Tree:
        """The choices of the device, sorted for the exchange."""

    def num_rounds(self, plan: Tree) -> Int[Array, ""]:
        """The rounds until all have been sent; 1 unless it may overflow."""
        ...

    def num_waiting(self, plan: Tree) -> Int[Array, ""]:
        """Choices that wait for a later round than the first."""
        ...

    def take_round(self, plan: Tree, i: Number) -> Tree:
        """Those that are sent in round i."""

    def load(self, x: Tokens, gate: Gates, plan: Tree, round: Tree) -> Rows:
        """Their rows on the sending device."""
        ...

    def unload(self, back: Tree, round: Tree) -> Tokens:
        """The sum of each token's rows."""
        ...


@runtime_checkable
class DeviceExchange(Placement, Protocol):
    """An exchange on one device. Gradients of what was received go the other way."""

    def pack(self, x: Tokens, gate: Gates, plan: Tree, round: Tree) -> Tree:
        """The rows of `load`, in the buffers that the collective takes."""

    def send(self, packed: Tree, round: Tree) -> Tree:
        """The collective."""

    def unpack(self, packed: Tree, dtype: DTypeLike) -> Rows:
        """The rows on the receiving device."""
        ...

    def send_back(self, made: Float[Array, "R D"], round: Tree) -> Array:
        """The outputs of the experts, where the rows came from."""
        ...

    def pack_gradient(self, x: Array, gate: Array) -> Tree: ...

    def send_gradient(self, packed: Tree, round: Tree) -> Tree: ...

    def unpack_gradient(self, packed: Tree) -> tuple[Array, Array]: ...


def on_device(exchange: Exchange, sizes: Sizes) -> DeviceExchange:
    """The exchange, fitted to its device."""
    if isinstance(exchange, PaddedExchange):
        return Padded(exchange, sizes)
    if isinstance(exchange, RaggedExchange):
        return Ragged(exchange, sizes)
    return Gathered(exchange, sizes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class InTransit:
    """Packed rows, and where their gradient comes back.

    Packed rows hold whole numbers and may have eight bits, so no gradient can reach them. Their
    place is taken by `shadow`: zeros that nobody reads and so nobody makes, with the dtypes and
    shapes of what comes back.
    """

    packed: Tree
    shadow: Tree


def pack(device: DeviceExchange, x: Tokens, gate: Gates, plan: Tree, round: Tree) -> InTransit:
    """The rows of a round, ready to be sent."""

    def forward(x: Tokens, gate: Gates, plan: Tree, round: Tree) -> tuple[InTransit, Tree]:
        packed = device.pack(x, gate, plan, round)
        rows = jax.eval_shape(device.load, x, gate, plan, round)
        back = jax.eval_shape(device.pack_gradient, rows.x, rows.gate)
        return InTransit(packed, _zeros_of(back, x)), (plan, round)

    def backward(saved: Tree, grad: InTransit) -> tuple[Tokens, Gates, None, None]:
        like = _zeros_of((x, gate), jax.tree.leaves(grad.shadow)[0])
        _, pull = jax.vjp(lambda x, gate: device.load(x, gate, *saved)[:2], *like)  # both linear
        return *pull(device.unpack_gradient(grad.shadow)), None, None

    return with_gradient(forward, backward)(x, gate, plan, round)


def send(device: DeviceExchange, rows: InTransit, round: Tree) -> InTransit:
    """The exchange itself."""

    def forward(packed: Tree, shadow: Tree, round: Tree) -> tuple[InTransit, Tree]:
        packed = device.send(packed, round)
        arrived = jax.eval_shape(lambda: device.unpack(packed, dtype))
        back = jax.eval_shape(device.pack_gradient, arrived.x, arrived.gate)
        return InTransit(packed, _zeros_of(back, jax.tree.leaves(packed)[0])), round

    def backward(round: Tree, grad: InTransit) -> tuple[None, Tree, None]:
        return None, device.send_gradient(grad.shadow, round), None

    dtype = jax.tree.leaves(rows.shadow)[0].dtype
    return with_gradient(forward, backward)(rows.packed, rows.shadow, round)


def unpack(device: DeviceExchange, rows: InTransit) -> Rows:
    """The rows that others sent here."""

    def forward(packed: Tree, shadow: Tree) -> tuple[Rows, None]:
        return device.unpack(packed, dtype), None

    def backward(_: None, grad: Rows) -> tuple[None, Tree]:
        return None, device.pack_gradient(grad.x, grad.gate)

    dtype = jax.tree.leaves(rows.shadow)[0].dtype
    return with_gradient(forward, backward)(rows.packed, rows.shadow)


def with_gradient(forward: Callable[..., tuple[Tree, Tree]], backward: Callable) -> Callable:
    """`forward` gives its value and what `backward` needs beside the gradient of that value."""
    function = jax.custom_vjp(lambda *operands: forward(*operands)[0])
    function.defvjp(forward, backward)
    return function


def _zeros_of(shapes: Tree, like: Array) -> Tree:
    return jax.tree.map(lambda a: zeros_alike(like, a.shape, a.dtype), shapes)
