"""Context parallelism: the tokens of a sequence spread over the devices of a mesh axis.

In zigzag order the sequence is cut into twice as many chunks as there are devices, and device i of
n holds chunks i and 2n - 1 - i: an early one, which sees little, and a late one, which sees much.
All devices then have the same causal work; in plain order the last one has 2 - 1/n times the mean.
Source: arXiv:2407.21783, section 3.3.2.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from loong_jax.errors import ConfigError
from loong_jax.sharding import ShardingRules


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
    return _moved(x, 1, rules, back=False)


def leave(x: Shaped[Array, "..."], rules: ShardingRules, axis: int = 1) -> Shaped[Array, "..."]:
    """Moves tokens, along `axis`, back into the order of the sequence."""
    return _moved(x, axis, rules, back=True)


def _moved(
    x: Shaped[Array, "..."], axis: int, rules: ShardingRules, *, back: bool
) -> Shaped[Array, "..."]:
    if not _is_zigzag(rules):
        return x
    order(x.shape[axis], rules)
    parts, along = rules.parts("act_length"), rules.partition("act_length")[0]
    holder = {chunk: place // 2 for place, chunk in enumerate(_chunks(parts))}

    def sent(chunk: Shaped[Array, "..."], odd: int) -> Shaped[Array, "..."]:
        """Even or odd chunks, from where they stand in the sequence to their holder, or back."""
        pairs = [(at, holder[2 * at + odd]) for at in range(parts)]
        return jax.lax.ppermute(chunk, along, [(to, at) for at, to in pairs] if back else pairs)

    def on_one_device(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        device = jax.lax.axis_index(along)
        first, second = jnp.split(x, 2, axis=axis)
        if not back:
            first, second = sent(first, 0), sent(second, 1)
        # An even chunk is the early one of its holder where that has an even number.
        first, second = (
            jnp.where(device % 2 == 0, first, second),
            jnp.where(device % 2 == 0, second, first),
        )
        if back:
            first, second = sent(first, 0), sent(second, 1)
        return jnp.concatenate([first, second], axis=axis)

    spec = jax.typeof(x).sharding.spec
    return rules.shard_map(on_one_device, in_specs=spec, out_specs=spec)(x)


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
