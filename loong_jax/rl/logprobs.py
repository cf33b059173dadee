"""Log-probability and entropy of tokens under a policy, in nats.

Logits are made for the tokens that are asked for, `CHUNK_LOGITS` at a time, and again on the way
back: never float32 [B, T, V] of a large vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from loong_jax.data.packing import Predicted
from loong_jax.models.products import in_chunks
from loong_jax.sharding import by_rows, place_like

FEW_WORDS = 1024  # with a vocabulary up to here logits cost little beside the model
CHUNK_LOGITS = 2**26  # so many are made at a time on a device, and again on the way back


def listed_logprobs(
    logits_of: Callable[[Array], Array],
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    predicted: Predicted,
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability and entropy of what is `predicted`, where it stands in the rows; else 0.

    `logits_of(hidden_FND)` gives logits [F, N, V] of the states that predict.
    """

    def of_states(hidden_FnD, token_Fn):
        logits_FnV = logits_of(hidden_FnD).astype(jnp.float32) / temperature
        total_Fn = jax.nn.logsumexp(logits_FnV, axis=-1)
        fixed_FnV, fixed_Fn = jax.lax.stop_gradient((logits_FnV, total_Fn))
        weighed_FnV = jnp.exp(fixed_FnV - fixed_Fn[..., None]) * fixed_FnV
        return at(logits_FnV, token_Fn) - total_Fn, fixed_Fn - jnp.sum(weighed_FnV, axis=-1)

    hidden_FND, token_FN = by_rows(listed, hidden, tokens, *predicted)
    found = in_chunks(of_states, (hidden_FND, token_FN), chunk_rows(logits_of, hidden_FND), axis=1)
    logprob, entropy = (by_rows(_unlisted, tokens, predicted.place, a) for a in found)
    return logprob, entropy


def all_of(tokens: Int[Array, "B T"]) -> Predicted:
    """A list of all tokens, each row of the batch a part of its own."""
    place_BT = jax.lax.broadcasted_iota(jnp.int32, tokens.shape, 1)
    return Predicted(*(place_like(a, tokens) for a in (place_BT, place_BT - 1)))


def chunk_rows(logits_of: Callable[[Array], Array], hidden: Float[Array, "F N D"]) -> int:
    """Rows of a list whose logits are made at a time."""
    return max(1, CHUNK_LOGITS // jax.eval_shape(logits_of, hidden[:, :1]).shape[-1])


def listed(hidden_BTD, tokens_BT, place_FN, source_FN):
    """States and tokens of a list; on a mesh a device has the list of its own rows, and F is 1."""
    parts = len(place_FN)
    hidden_FSD = hidden_BTD.reshape(parts, -1, hidden_BTD.shape[-1])
    hidden_FND = jax.vmap(lambda hidden_SD, source_N: hidden_SD[source_N])(hidden_FSD, source_FN)
    take = jax.vmap(lambda tokens_S, place_N: tokens_S.at[place_N].get(mode="fill", fill_value=0))
    return hidden_FND, take(tokens_BT.reshape(parts, -1), place_FN)


def _unlisted(tokens_BT, place_FN, value_FN):
    """What was found of a list, where it belongs in the rows, and 0 elsewhere."""
    zeros_FS = jnp.zeros_like(tokens_BT, value_FN.dtype).reshape(len(place_FN), -1)
    put = jax.vmap(lambda zeros_S, place_N, value_N: zeros_S.at[place_N].set(value_N, mode="drop"))
    return put(zeros_FS, place_FN, value_FN).reshape(tokens_BT.shape)


def at(logits: Float[Array, "*rows V"], token: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    """The logit of each row's token."""
    sharding = jax.typeof(logits).sharding
    if sharding.mesh.empty:
        return jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    # words may be cut over devices, of which one has the token
    word = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    is_token = word == token[..., None]
    return jnp.sum(jnp.where(is_token, logits, 0.0), axis=-1)


def logprobs_of(
    logits: Float[Array, "B T V"],
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability of each token given those before it in its segment, and entropy.

    In nats, under `temperature`. The first token of a segment and padding have 0 for both; entropy
    carries no gradient. On a mesh every device must hold whole rows of the integer arrays, since
    what stands at position t is moved to t + 1; logits may be cut along T as the model likes.
    """
    log_probability = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature)
    following = place_like(jnp.roll(tokens, -1, axis=1), logits)
    chosen = at(log_probability, following)
    fixed = jax.lax.stop_gradient(log_probability)
    entropy = -jnp.sum(jnp.exp(fixed) * fixed, axis=-1)
    is_predicted = has_predecessor(segment_ids)
    logprob, entropy = (
        jnp.where(is_predicted, jnp.roll(place_like(found, tokens), 1, axis=1), 0.0)
        for found in (chosen, entropy)
    )
    return logprob, entropy


def has_predecessor(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """True where a token follows another one of its own segment."""
    same = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0)
    return jnp.pad(same, ((0, 0), (1, 0)))
