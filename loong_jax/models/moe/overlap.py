"""Overlap of a layer's parts: all its barriers and gathers, which change no value.

A compiler is free to do what it can do early or late. Barriers pin the start of an exchange before
the dense work that hides it, and its end after; gradients are pinned the same way round. Weights of
that work, where they are sharded, are gathered outside of exchanges: those of FFN_0 beside
Attention_0, those of Attention_1 and FFN_1 while experts compute.

    chunk 1   dispatch  compute   combine
    chunk 2             dispatch  compute   combine
    beside    FFN_0                         Attention_1, FFN_1

Going back, FFN_0's weights are gathered, and the gradients of FFN_1's scattered, while experts
compute. The gradients of FFN_0's weights are scattered before Attention_0 goes back. Attention_1's
weights are gathered when its own backward pass needs them.

Where no row leaves its device nothing is pinned. Source: arXiv:2404.05019; arXiv:2509.01322,
sections 2.2 and, for chunks, 5 (training infrastructure).
"""

import functools
import operator
from collections.abc import Callable

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Int
from jaxtyping import PyTree as Tree  # of arrays

from loong_jax.models import parameters
from loong_jax.models.decoder import DenseFFN, Mask, States
from loong_jax.models.moe.attention import LatentAttention
from loong_jax.models.moe.exchange.transport import InTransit, with_gradient
from loong_jax.models.moe.experts import Chunk, Experts
from loong_jax.models.moe.router import Routing
from loong_jax.models.products import together_going_back

RESIDUAL = "residual"  # the name under which a checkpoint policy finds h1, h2 and h3


class Overlap:
    """One pass through a layer; its steps in the order of use."""

    def __init__(self, experts: Experts):
        self.experts = experts
        self.routing: Routing  # of the tokens, once dispatched
        self.x: States
        self.chunks: list[Chunk] = []
        self._ffn_0: parameters.Matrices = None  # its matrices, gathered

    def before_router(self, h1: States, ffn_0: DenseFFN) -> States:
        """`h1` once the weights of FFN_0 are there, which are gathered meanwhile.

        Its gradient passes on once theirs is there, scattered meanwhile.
        """
        sharded = ffn_0.sharded_matrices()
        if self.experts.sends_rows:
            h1, sharded = together_going_back(h1, sharded)
        h1, self._ffn_0 = self._in_order(h1, ffn_0.gathered(sharded, h1))
        return h1

    def dispatch(
        self, u: States, routing: Routing, mask: Mask, ffn_0: DenseFFN
    ) -> tuple[States, DenseFFN]:
        """Sends the tokens in `mask` to their experts, those of the first chunk.

        Work on the results runs during the exchange, not before it.
        """
        self.x, self.routing, experts = u, routing, self.experts
        self.chunks = [experts.pack(u, routing, mask, i) for i in range(experts.num_chunks(u))]
        self.chunks[0], u, self._ffn_0 = self._in_order(self.chunks[0], u, self._ffn_0)
        self.chunks[0] = experts.send(self.x, self.chunks[0])
        return u, ffn_0.with_matrices(self._ffn_0)

    def compute(
        self, h2: States, attention_1: LatentAttention, ffn_1: DenseFFN
    ) -> tuple[States, LatentAttention, DenseFFN]:
        """Runs the experts once the first rows have arrived and the work is done that hid them.

        The next work starts from the results, with weights that are gathered while experts run;
        the last rows are then under way back. Going back, the gradients of FFN_1's weights must be
        there before the rows' leave, and so must FFN_0's weights: what is gathered or scattered
        for either stays out of the rows' way.
        """
        experts, chunks, sharded = self.experts, self.chunks, ffn_1.sharded_matrices()
        chunks[0], h2, sharded = self._in_order(chunks[0], h2, sharded, before_gradient=self._ffn_0)
        h2, ahead = self._wait_for_all(h2, attention_1.sharded_matrices())
        ahead, weights = attention_1.gathered(ahead, h2), ffn_1.gathered(sharded, h2)
        self._compute_chunks()
        chunks[-1], h2, weights = self._in_order(chunks[-1], h2, weights)
        chunks[-1], h2, ahead = self._wait_for_all(chunks[-1], h2, ahead)
        h2 = checkpoint_name(h2, RESIDUAL)  # kept here, it waits for nothing going back
        chunks[-1] = experts.send_back(self.x, chunks[-1])
        return h2, attention_1.with_matrices(ahead), ffn_1.with_matrices(weights)

    def combine(self, y: States) -> tuple[States, States]:
        """The mixture, and `y`, the work that the combine was to hide behind."""
        self.chunks[-1], y = self._in_order(self.chunks[-1], y)
        return self.experts.mix(self.x, self.routing, self.chunks), y

    @property
    def num_overflowed(self) -> Int[Array, ""]:
        """Choices that waited for a later round of the exchange."""
        return functools.reduce(operator.add, (chunk.num_overflowed for chunk in self.chunks))

    def _compute_chunks(self) -> None:
        """Chunk i is computed while chunk i + 1 arrives and chunk i - 1 goes back."""
        experts, chunks, x = self.experts, self.chunks, self.x
        own_weights = experts.gathered_weights(x)
        for i in range(len(chunks)):
            is_last = i + 1 == len(chunks)
            if not is_last:  # leaves when this chunk is there
                chunks[i + 1], chunks[i] = self._in_order(chunks[i + 1], chunks[i])
                chunks[i + 1] = experts.send(x, chunks[i + 1])
            chunks[i] = experts.run(x, self.routing, chunks[i], i, own_weights)
            if i > 0:  # was to be back by now
                chunks[i - 1], chunks[i] = self._in_order(chunks[i - 1], chunks[i])
            if not is_last:
                chunks[i + 1], chunks[i] = self._in_order(chunks[i + 1], chunks[i])
                chunks[i] = experts.send_back(x, chunks[i])

    def _in_order(self, *things: Chunk | Tree, before_gradient: Tree = ()) -> tuple:
        """Ties things together: each is there only once all others are; so for their gradients,
        which wait for the arrays of `before_gradient` as well.
        """
        return self._tied(things, functools.partial(together, before_gradient=before_gradient))

    def _wait_for_all(self, *things: Chunk | Tree) -> tuple:
        """Ties things together in the forward pass alone; not at all with None among them: weights
        that are at hand.
        """
        are_there = all(a is not None for a in things)
        return self._tied(things, together_going_forth) if are_there else things

    def _tied(self, things: tuple, barrier: Callable[..., tuple]) -> tuple:
        if not self.experts.sends_rows:
            return things
        ordered = barrier(*(a.rows if isinstance(a, Chunk) else a for a in things))
        pairs = zip(things, ordered, strict=True)
        return tuple(a._replace(rows=b) if isinstance(a, Chunk) else b for a, b in pairs)


def together(*things: InTransit | Tree, before_gradient: Tree = ()) -> tuple:
    """An optimization barrier over rows and trees of arrays: each, once all are there.

    Going back it ties their gradients to one another, for rows in transit those that come back, and
    to the arrays of `before_gradient`, which must be there as well.
    """
    if not any(isinstance(thing, InTransit) for thing in things):
        return jax.lax.optimization_barrier(things)
    packed = tuple(a.packed if isinstance(a, InTransit) else a for a in things)
    shadow = tuple(a.shadow if isinstance(a, InTransit) else None for a in things)

    def forward(packed: tuple, shadow: tuple, before: Tree) -> tuple[tuple, Tree]:
        packed = jax.lax.optimization_barrier(packed)
        pairs = zip(packed, shadow, strict=True)
        return tuple(a if b is None else InTransit(a, b) for a, b in pairs), before

    def backward(before: Tree, grads: tuple) -> tuple[tuple, tuple, None]:
        back = tuple(g.shadow if isinstance(g, InTransit) else g for g in grads)
        back, _ = jax.lax.optimization_barrier((back, before))
        are_rows = [b is not None for b in shadow]
        return (
            tuple(None if is_row else g for g, is_row in zip(back, are_rows, strict=True)),
            tuple(g if is_row else None for g, is_row in zip(back, are_rows, strict=True)),
            None,
        )

    before = jax.lax.stop_gradient(before_gradient)
    return with_gradient(forward, backward)(packed, shadow, before)


def together_going_forth(*things: Tree) -> tuple:
    """An optimization barrier over trees of arrays, with none over their gradients."""

    def forward(*things: Tree) -> tuple[tuple[Tree, ...], None]:
        return jax.lax.optimization_barrier(things), None

    return with_gradient(forward, lambda _, grads: grads)(*things)
