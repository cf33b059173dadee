"""Rows sent by any exchange, with the gradient that comes back.

Everything here runs inside `shard_map` and is written for one device. What an exchange has there,
in the order of use:

    plan(target, kept)             the choices of the device, sorted for the exchange
    num_rounds(plan), num_waiting(plan)      rounds, and choices that wait for a later one than the
                                   first; not asked unless `may_overflow`
    take_round(plan, i)            those that are sent in round i
    load(x, gate, plan, round)     their `Rows` on the sending device
    pack(x, gate, plan, round)     the same in the buffers that the collective takes
    send(packed, round)            the collective
    unpack(packed, dtype)          the rows on the receiving device
    send_back(made, round)         what the experts made of them, where the rows came from
    unload(back, round)            the sum of each token's rows

Gradients of what was received go the other way: `pack_gradient(x, gate)`, `send_gradient(packed,
round)`, `unpack_gradient(packed)`. `room` is how many choices the products of the experts take at a
time, None for all. `Local`, where all experts are at hand, has what sends nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
from jaxtyping import Array
from jaxtyping import PyTree as Tree  # of arrays

from loong_jax.models.moe.exchange import Exchange, PaddedExchange, RaggedExchange, Sizes
from loong_jax.models.moe.exchange.dispatch import Gates, Rows, Tokens, zeros_alike
from loong_jax.models.moe.exchange.equal import Gathered, Padded
from loong_jax.models.moe.exchange.ragged import Ragged

DeviceExchange: TypeAlias = Gathered | Padded | Ragged


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

    packed: Any
    shadow: Any


def pack(device: Any, x: Tokens, gate: Gates, plan: Tree, round: Tree) -> InTransit:
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


def send(device: Any, rows: InTransit, round: Tree) -> InTransit:
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


def unpack(device: Any, rows: InTransit) -> Rows:
    """The rows that others sent here."""

    def forward(packed: Tree, shadow: Tree) -> tuple[Rows, None]:
        return device.unpack(packed, dtype), None

    def backward(_: None, grad: Rows) -> tuple[None, Tree]:
        return None, device.pack_gradient(grad.x, grad.gate)

    dtype = jax.tree.leaves(rows.shadow)[0].dtype
    return with_gradient(forward, backward)(rows.packed, rows.shadow)


def with_gradient(forward: Callable[..., tuple[Any, Any]], backward: Callable) -> Callable:
    """`forward` gives its value and what `backward` needs beside the gradient of that value."""
    function = jax.custom_vjp(lambda *operands: forward(*operands)[0])
    function.defvjp(forward, backward)
    return function


def _zeros_of(shapes: Tree, like: Array) -> Tree:
    return jax.tree.map(lambda a: zeros_alike(like, a.shape, a.dtype), shapes)
