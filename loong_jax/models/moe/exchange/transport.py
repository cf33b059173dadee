"""Rows sent by any exchange, with the gradient that comes back.

Everything here runs inside `shard_map` and is written for one device. Gradients go the other way.
"""

import dataclasses
from collections.abc import Callable
from typing import Generic, ParamSpec, Protocol, TypeVar, runtime_checkable

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int
from jaxtyping import PyTree as Tree  # of arrays

from loong_jax.models.moe.exchange import Exchange, PaddedExchange, RaggedExchange, Sizes
from loong_jax.models.moe.exchange.dispatch import Gates, Number, Rows, Targets, Tokens, zeros_alike
from loong_jax.models.moe.exchange.gathered import Gathered
from loong_jax.models.moe.exchange.padded import Padded
from loong_jax.models.moe.exchange.ragged import Ragged

Plan = TypeVar("Plan")  # the choices of a device, sorted for the exchange
Round = TypeVar("Round")  # which of them are sent in one round
Buffer = TypeVar("Buffer")  # packed rows, as the collective takes and gives them
GradientBuffer = TypeVar("GradientBuffer")  # packed gradients, that go the other way
Operands = ParamSpec("Operands")
Value = TypeVar("Value")
Saved = TypeVar("Saved")  # for the backward pass


@runtime_checkable
class RowPlacement(Protocol[Plan, Round]):
    """Assignment of choices to rows on one device; methods in the order of use."""

    @property
    def room(self) -> int | None:
        """Choices that the products of the experts take at a time, None for all."""
        ...

    @property
    def may_overflow(self) -> bool:
        """False where one round is always enough; the next two are then not asked."""
        ...

    def num_rounds(self, plan: Plan) -> Int[Array, ""]: ...

    def num_waiting(self, plan: Plan) -> Int[Array, ""]:
        """Choices that wait for a later round."""
        ...

    def plan(self, target: Targets, kept: Bool[Array, "T K"]) -> Plan: ...

    def take_round(self, plan: Plan, i: Number) -> Round: ...

    def load(self, x: Tokens, gate: Gates, plan: Plan, round: Round) -> Rows:
        """The rows of a round on the sending device."""
        ...

    def unload(self, back: Float[Array, "..."], round: Round) -> Tokens:
        """The sum of each token's rows, of what the experts made of them."""
        ...


@runtime_checkable
class DeviceExchange(RowPlacement[Plan, Round], Protocol[Plan, Round, Buffer, GradientBuffer]):
    """An exchange fitted to one device: rows packed into buffers, there and back."""

    def pack(self, x: Tokens, gate: Gates, plan: Plan, round: Round) -> Buffer:
        """The rows that `load` makes."""
        ...

    def send(self, packed: Buffer, round: Round) -> Buffer: ...

    def unpack(self, packed: Buffer, dtype: DTypeLike) -> Rows:
        """The rows on the receiving device."""
        ...

    def send_back(self, made: Float[Array, "rows D"], round: Round) -> Float[Array, "..."]:
        """Sends the experts' outputs back to the devices that the rows came from."""
        ...

    def pack_gradient(
        self, x: Float[Array, "rows D"], gate: Float[Array, "rows J"]
    ) -> GradientBuffer: ...

    def send_gradient(self, packed: GradientBuffer, round: Round) -> GradientBuffer: ...

    def unpack_gradient(
        self, packed: GradientBuffer
    ) -> tuple[Float[Array, "rows D"], Float[Array, "rows J"]]: ...


def on_device(exchange: Exchange, sizes: Sizes) -> DeviceExchange:
    """The exchange, fitted to its device."""
    if isinstance(exchange, PaddedExchange):
        return Padded(exchange, sizes)
    if isinstance(exchange, RaggedExchange):
        return Ragged(exchange, sizes)
    return Gathered(exchange, sizes)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class InTransit(Generic[Buffer, GradientBuffer]):
    """Packed rows, and where their gradient comes back.

    Packed rows hold whole numbers and may have eight bits, so no gradient can reach them. Their
    place is taken by `shadow`: zeros that nobody reads and so nobody makes, with the dtypes and
    shapes of what comes back.
    """

    packed: Buffer
    shadow: GradientBuffer


def pack(
    device: DeviceExchange[Plan, Round, Buffer, GradientBuffer],
    x: Tokens,
    gate: Gates,
    plan: Plan,
    round: Round,
) -> InTransit[Buffer, GradientBuffer]:
    """The rows of a round, ready to be sent."""

    def forward(
        x: Tokens, gate: Gates, plan: Plan, round: Round
    ) -> tuple[InTransit[Buffer, GradientBuffer], tuple[Plan, Round]]:
        packed = device.pack(x, gate, plan, round)
        rows = jax.eval_shape(device.load, x, gate, plan, round)
        back = jax.eval_shape(device.pack_gradient, rows.x, rows.gate)
        return InTransit(packed, _zeros_of(back, x)), (plan, round)

    def backward(
        saved: tuple[Plan, Round], grad: InTransit[Buffer, GradientBuffer]
    ) -> tuple[Tokens, Gates, None, None]:
        like = _zeros_of((x, gate), jax.tree.leaves(grad.shadow)[0])
        _, pull = jax.vjp(lambda x, gate: device.load(x, gate, *saved)[:2], *like)  # both linear
        return *pull(device.unpack_gradient(grad.shadow)), None, None

    return with_gradient(forward, backward)(x, gate, plan, round)


def send(
    device: DeviceExchange[Plan, Round, Buffer, GradientBuffer],
    rows: InTransit[Buffer, GradientBuffer],
    round: Round,
) -> InTransit[Buffer, GradientBuffer]:
    """The exchange itself."""

    def forward(
        packed: Buffer, shadow: GradientBuffer, round: Round
    ) -> tuple[InTransit[Buffer, GradientBuffer], Round]:
        packed = device.send(packed, round)
        arrived = jax.eval_shape(lambda: device.unpack(packed, dtype))
        back = jax.eval_shape(device.pack_gradient, arrived.x, arrived.gate)
        return InTransit(packed, _zeros_of(back, jax.tree.leaves(packed)[0])), round

    def backward(
        round: Round, grad: InTransit[Buffer, GradientBuffer]
    ) -> tuple[None, GradientBuffer, None]:
        return None, device.send_gradient(grad.shadow, round), None

    dtype = jax.tree.leaves(rows.shadow)[0].dtype
    return with_gradient(forward, backward)(rows.packed, rows.shadow, round)


def unpack(
    device: DeviceExchange[Plan, Round, Buffer, GradientBuffer],
    rows: InTransit[Buffer, GradientBuffer],
) -> Rows:
    """The rows that others sent here."""

    def forward(packed: Buffer, shadow: GradientBuffer) -> tuple[Rows, None]:
        return device.unpack(packed, dtype), None

    def backward(_: None, grad: Rows) -> tuple[None, GradientBuffer]:
        return None, device.pack_gradient(grad.x, grad.gate)

    dtype = jax.tree.leaves(rows.shadow)[0].dtype
    return with_gradient(forward, backward)(rows.packed, rows.shadow)


def with_gradient(
    forward: Callable[Operands, tuple[Value, Saved]],
    backward: Callable[[Saved, Value], tuple[Tree, ...]],
) -> Callable[Operands, Value]:
    """`forward` gives its value and what `backward` needs beside the gradient of that value."""

    def value(*operands: Operands.args, **named: Operands.kwargs) -> Value:
        return forward(*operands, **named)[0]

    function = jax.custom_vjp(value)
    function.defvjp(forward, backward)
    return function


def _zeros_of(shapes: Tree, like: Array) -> Tree:
    return jax.tree.map(lambda a: zeros_alike(like, a.shape, a.dtype), shapes)
