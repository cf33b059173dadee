"""Rows on their way by any exchange: sealed, carried, opened, with the gradient coming back.

Everything here runs inside `shard_map` and is written for one device. An exchange at work, which is
`work` below (`Alone`, `Gathered`, `Padded` or `Ragged`), has these methods, in the order of use:

    sort                      from targets [T, K] and which of them count: the parcels
    num_rounds, num_waiting   how often rows must leave; how many choices wait for a later round
    journey                   what of the parcels travels in round i
    load                      from states [T, D] and gates [T, K]: `Rows` on the sending device
    pack                      the same rows, sealed
    carry, open               the exchange; `Rows` on the receiving device
    send_back, unload         sums on the sending device; those of each token added up, [T, D]

Gradients go the other way by `seal_gradient`, `carry_gradient` and `open_gradient`. `room` is how
many choices the products of the experts take at a time, None for all. More than one round is needed
only where `may_overflow` is true. `Alone` has what does without an exchange.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.models.moe.exchange import Exchange, PaddedExchange, RaggedExchange, Sizes
from loong_jax.models.moe.gathered import Gathered
from loong_jax.models.moe.padded import Padded
from loong_jax.models.moe.parcels import Rows
from loong_jax.models.moe.ragged import Ragged
from loong_jax.models.moe.rows import zeros_alike


@dataclasses.dataclass(frozen=True)
class Alone:
    """No exchange: all experts are here."""

    room = None
    may_overflow = False

    def sort(self, target: Int[Array, "T K"], kept: Bool[Array, "T K"]) -> Int[Array, "T K"]:
        return jnp.where(kept, target, -1)

    def journey(self, expert: Int[Array, "T K"], i: int) -> tuple[()]:
        return ()

    def load(
        self,
        x: Float[Array, "T D"],
        gate: Float[Array, "T K"],
        expert: Int[Array, "T K"],
        journey: tuple[()],
    ) -> Rows:
        return Rows(x, gate, expert)

    def unload(self, back: Float[Array, "T D"], journey: tuple[()]) -> Float[Array, "T D"]:
        return back


def at_work(exchange: Exchange, sizes: Sizes) -> Gathered | Padded | Ragged:
    """The exchange, fitted to its device."""
    if isinstance(exchange, PaddedExchange):
        return Padded(exchange, sizes)
    if isinstance(exchange, RaggedExchange):
        return Ragged(exchange, sizes)
    return Gathered(exchange, sizes)


class Sealed(NamedTuple):
    """Rows as they travel, and where their gradient travels the other way.

    What goes there holds whole numbers and may have eight bits, so no gradient can reach it. Its
    place is taken by `shadow`: zeros that nobody reads and so nobody makes, with the dtypes and
    shapes of what comes back.
    """

    there: Any
    shadow: Any


def pack(
    work: Any, x: Float[Array, "T D"], gate: Float[Array, "T K"], parcels: Any, journey: Any
) -> Sealed:
    """The rows of a journey, ready to be carried."""

    def forward(x, gate, parcels, journey):
        there = work.pack(x, gate, parcels, journey)
        rows = jax.eval_shape(work.load, x, gate, parcels, journey)
        back = jax.eval_shape(work.seal_gradient, rows.x, rows.gate)
        return Sealed(there, _zeros_of(back, x)), (parcels, journey)

    def backward(saved, grad):
        like = _zeros_of((x, gate), jax.tree.leaves(grad.shadow)[0])
        _, pull = jax.vjp(lambda x, gate: work.load(x, gate, *saved)[:2], *like)  # linear in both
        return *pull(work.open_gradient(grad.shadow)), None, None

    return _with_gradient(forward, backward)(x, gate, parcels, journey)


def carry(work: Any, sealed: Sealed, journey: Any) -> Sealed:
    """The exchange itself."""

    def forward(there, shadow, journey):
        there = work.carry(there, journey)
        arrived = jax.eval_shape(lambda: work.open(there, dtype))
        back = jax.eval_shape(work.seal_gradient, arrived.x, arrived.gate)
        return Sealed(there, _zeros_of(back, jax.tree.leaves(there)[0])), journey

    def backward(journey, grad):
        return None, work.carry_gradient(grad.shadow, journey), None

    dtype = jax.tree.leaves(sealed.shadow)[0].dtype
    return _with_gradient(forward, backward)(sealed.there, sealed.shadow, journey)


def unseal(work: Any, sealed: Sealed) -> Rows:
    """The rows that others sent here."""

    def forward(there, shadow):
        return work.open(there, dtype), None

    def backward(_, grad):
        return None, work.seal_gradient(grad.x, grad.gate)

    dtype = jax.tree.leaves(sealed.shadow)[0].dtype
    return _with_gradient(forward, backward)(sealed.there, sealed.shadow)


def together(*things: Any, before_gradient: Any = ()) -> tuple[Any, ...]:
    """An optimization barrier over sealed rows and trees of arrays: each, once all are there.

    Going back it ties their gradients to one another, for sealed rows those that come back, and to
    the arrays of `before_gradient`, which must be there as well.
    """
    if not any(isinstance(thing, Sealed) for thing in things):
        return jax.lax.optimization_barrier(things)
    there = tuple(a.there if isinstance(a, Sealed) else a for a in things)
    shadow = tuple(a.shadow if isinstance(a, Sealed) else None for a in things)

    def forward(there, shadow, before):
        there = jax.lax.optimization_barrier(there)
        pairs = zip(there, shadow, strict=True)
        return tuple(a if b is None else Sealed(a, b) for a, b in pairs), before

    def backward(before, grads):
        back = tuple(g.shadow if isinstance(g, Sealed) else g for g in grads)
        back, _ = jax.lax.optimization_barrier((back, before))
        are_sealed = [b is not None for b in shadow]
        return (
            tuple(None if sealed else g for g, sealed in zip(back, are_sealed, strict=True)),
            tuple(g if sealed else None for g, sealed in zip(back, are_sealed, strict=True)),
            None,
        )

    before = jax.lax.stop_gradient(before_gradient)
    return _with_gradient(forward, backward)(there, shadow, before)


def together_going_forth(*things: Any) -> tuple[Any, ...]:
    """An optimization barrier over trees of arrays, with none over their gradients."""

    def forward(*things):
        return jax.lax.optimization_barrier(things), None

    return _with_gradient(forward, lambda _, grads: grads)(*things)


def _with_gradient(forward, backward):
    """`forward` gives its value and what `backward` needs beside the gradient of that value."""
    function = jax.custom_vjp(lambda *operands: forward(*operands)[0])
    function.defvjp(forward, backward)
    return function


def _zeros_of(shapes: Any, like: Array) -> Any:
    return jax.tree.map(lambda a: zeros_alike(like, a.shape, a.dtype), shapes)
