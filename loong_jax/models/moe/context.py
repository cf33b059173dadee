"""Context parallelism: the tokens of a sequence spread over the devices of a mesh axis.

In zigzag order the sequence is cut into twice as many chunks as there are devices, and device i of
n holds chunks i and 2n - 1 - i: an early one, which sees little, and a late one, which sees much.
All devices then have the same causal work; in plain order the last one has 2 - 1/n times the mean.
Source: arXiv:2407.21783, section 3.3.2.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from loong_jax.errors import ConfigError
from loong_jax.sharding import ShardingRules

Pairs: TypeAlias = list[tuple[int, int]]  # a device that sends, and the one that it sends to
# From what a device holds, where even and odd chunks go, and its number: the two chunks it gets.
Move: TypeAlias = Callable[
    [Shaped[Array, "..."], Pairs, Pairs, Int[Array, ""]],
    tuple[Shaped[Array, "..."], Shaped[Array, "..."]],
]


def order(num_tokens: int, rules: ShardingRules) -> np.ndarray:
    """The index in the sequence of the token at each place, device after device.

    Raises:
      ConfigError: zigzag order is asked for and the sequence has no equal chunks.
    """
    index = np.arange(num_tokens)
    if not _is_zigzag(rules):
        return index
    parts = rules.parts("act_length")
    if num_tokens % (2 * parts):
        raise ConfigError(
            f"{num_tokens} tokens cannot be cut into {2 * parts} equal chunks, two for each of "
            f"{parts} devices along the length. Pad them, or set zigzag=False."
        )
    return index.reshape(2 * parts, -1)[_chunks(parts)].reshape(-1)


def enter(x: Shaped[Array, "B T ..."], rules: ShardingRules) -> Shaped[Array, "B T ..."]:
    """Moves tokens from the order of the sequence into that of `order`."""

    def move(
        x: Shaped[Array, "B T ..."], even: Pairs, odd: Pairs, device: Int[Array, ""]
    ) -> tuple[Shaped[Array, "B half ..."], Shaped[Array, "B half ..."]]:
        first, second = jnp.split(x, 2, axis=1)
        first, second = _send(first, even, rules), _send(second, odd, rules)
        return jnp.where(device % 2 == 0, first, second), jnp.where(device % 2 == 0, second, first)

    return _moved(x, move, 1, rules)


def leave(x: Shaped[Array, "..."], rules: ShardingRules, axis: int = 1) -> Shaped[Array, "..."]:
    """Moves tokens, along `axis`, back into the order of the sequence."""

    def move(
        x: Shaped[Array, "..."], even: Pairs, odd: Pairs, device: Int[Array, ""]
    ) -> tuple[Shaped[Array, "..."], Shaped[Array, "..."]]:
        early, late = jnp.split(x, 2, axis=axis)
        first = jnp.where(device % 2 == 0, early, late)
        second = jnp.where(device % 2 == 0, late, early)
        even, odd = ([(to, at) for at, to in pairs] for pairs in (even, odd))
        return _send(first, even, rules), _send(second, odd, rules)

    return _moved(x, move, axis, rules)


def _moved(
    x: Shaped[Array, "..."], move: Move, axis: int, rules: ShardingRules
) -> Shaped[Array, "..."]:
    """`move` on every device, given where even and odd chunks go in zigzag order."""
    parts = rules.parts("act_length")
    if not _is_zigzag(rules):
        return x
    order(x.shape[axis], rules)
    holder = {chunk: place // 2 for place, chunk in enumerate(_chunks(parts))}
    even, odd = ([(at, holder[2 * at + half]) for at in range(parts)] for half in (0, 1))

    def on_one_device(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        device = jax.lax.axis_index(rules.partition("act_length")[0])
        return jnp.concatenate(move(x, even, odd, device), axis=axis)

    spec = jax.typeof(x).sharding.spec
    return rules.shard_map(on_one_device, in_specs=spec, out_specs=spec)(x)


def _send(x: Shaped[Array, "..."], pairs: Pairs, rules: ShardingRules) -> Shaped[Array, "..."]:
    return jax.lax.ppermute(x, rules.partition("act_length")[0], pairs)


def gather(
    latent: Float[Array, "B T C"], rope_key: Float[Array, "B T R"], rules: ShardingRules
) -> tuple[Float[Array, "B S C"], Float[Array, "B S R"]]:
    """On one device: what all devices along the length hold, in the order of the sequence."""
    parts = rules.parts("act_length")
    if parts == 1:
        return latent, rope_key
    both = jnp.concatenate([latent, rope_key], axis=-1)
    both = jax.lax.all_gather(both, rules.partition("act_length")[0], axis=1, tiled=True)
    if _is_zigzag(rules):
        chunks = both.reshape(both.shape[0], 2 * parts, -1, both.shape[-1])
        both = chunks[:, np.argsort(_chunks(parts))].reshape(both.shape)
    latent, rope_key = jnp.split(both, [latent.shape[-1]], axis=-1)
    return latent, rope_key


def _is_zigzag(rules: ShardingRules) -> bool:
    return rules.zigzag and rules.parts("act_length") > 1


def _chunks(parts: int) -> list[int]:
    """The chunks in the order in which devices hold them."""
    return [chunk for i in range(parts) for chunk in (i, 2 * parts - 1 - i)]
