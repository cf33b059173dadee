"""Drawing tokens: one random stream per sample, and the log-probability of what was drawn.

The key of a token is fold_in(run seed, problem, issue, attempt, position), so it depends on nothing
else: not on the slot, the batch, the replica or the time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


class Drawn(NamedTuple):
    token: Int[Array, "B"]
    log_prob: Float[Array, "B"]  # nats


def stream_keys(stream: UInt32[Array, "B 5"]) -> UInt32[Array, "B 2"]:
    """Key data of every sample: the first number is the seed, the others are folded into it."""

    def one(stream_5):
        key = jax.random.key(stream_5[0])
        for number in stream_5[1:]:
            key = jax.random.fold_in(key, number)
        return jax.random.key_data(key)

    return jax.vmap(one)(stream)


def draw(
    logits: Float[Array, "B V"],
    key: UInt32[Array, "B 2"],
    position: Int[Array, "B"],
    temperature: Float[Array, "B"],
    greedy: Bool[Array, "B"],
) -> Drawn:
    """One token per row from softmax(logits / temperature), or the likeliest where `greedy`.

    `position` is that of the drawn token, counted from the start of the prompt. Gumbel-max in
    float32: argmax(logits / temperature + Gumbel noise). The log-probability is that of the token
    under softmax(logits / temperature), for greedy tokens too.
    """
    scaled_BV = logits.astype(jnp.float32) / temperature[:, None]

    def noise(key_data, position):
        token_key = jax.random.fold_in(jax.random.wrap_key_data(key_data), position)
        return jax.random.gumbel(token_key, logits.shape[1:], jnp.float32)

    noise_BV = jax.vmap(noise)(key, position)
    noisy_BV = scaled_BV + jnp.where(greedy[:, None], 0.0, noise_BV)
    token_B = jnp.argmax(noisy_BV, axis=-1).astype(jnp.int32)
    log_prob_BV = jax.nn.log_softmax(scaled_BV, axis=-1)
    log_prob_B = jnp.take_along_axis(log_prob_BV, token_B[:, None], axis=-1)[:, 0]
    return Drawn(token_B, log_prob_B)
