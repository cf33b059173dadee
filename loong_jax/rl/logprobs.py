"""Log-probability and entropy of tokens under a policy, in nats.

Logits are made for the tokens that are asked for, `CHUNK_LOGITS` at a time, and again on the way
back, unless they are no more than that on a device without a mesh. No chunk is of more than half
of all tokens: nothing holds a whole float32 [B, T, V].
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from loong_jax.data.packing import Predicted
from loong_jax.models.decoder import LogitsOf
from loong_jax.models.products import in_chunks
from loong_jax.sharding import by_rows, place_like

CHUNK_LOGITS = 2**26  # so many are made at a time on a device, and again on the way back


def listed_logprobs(
    logits: Callable[[int], LogitsOf],
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    predicted: Predicted | None,
    temperature: Float[Array, ""] | float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Log-probability and entropy of what is `predicted`, where it stands in the rows; else 0.

    Without a list that is each token but the first of a segment and padding. `logits(num_tokens)`
    gives what makes logits [F, N, V] of the states [F, N, D] that predict. Entropy carries no
    gradient.
    """

    def of_states(
        hidden_FnD: Float[Array, "F n D"], token_Fn: Int[Array, "F n"]
    ) -> tuple[Float[Array, "F n"], Float[Array, "F n"]]:
        logits_FnV = logits_of(hidden_FnD).astype(jnp.float32) / temperature
        home_Fn, token_Fn = token_Fn, place_like(token_Fn, logits_FnV)
        total_Fn = jax.nn.logsumexp(logits_FnV, axis=-1)
        entropy_Fn = entropy_of(*jax.lax.stop_gradient((logits_FnV, total_Fn)))
        logprob_Fn = at(logits_FnV, token_Fn) - total_Fn
        return place_like(logprob_Fn, home_Fn), place_like(entropy_Fn, home_Fn)

    place, source = predicted or all_of(tokens)
    hidden_FND, token_FN = by_rows(listed, hidden, tokens, place, source)
    logits_of = logits(token_FN.size)
    rows, again = chunk_rows(logits_of, hidden_FND, tokens)
    found = in_chunks(of_states, (hidden_FND, token_FN), rows, axis=1, recompute=again)
    logprob, entropy = (by_rows(_unlisted, tokens, place, a) for a in found)
    if predicted is not None:
        return logprob, entropy
    follows = has_predecessor(segment_ids)
    return jnp.where(follows, logprob, 0.0), jnp.where(follows, entropy, 0.0)


def all_of(tokens: Int[Array, "B T"]) -> Predicted:
    """A list of all tokens, the first of each part predicted by what stands before none."""
    num_rows, length = jax.typeof(tokens).sharding.shard_shape(tokens.shape)
    shape = tokens.shape[0] // num_rows, num_rows * length
    place_FN = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    return Predicted(*(place_like(a, tokens) for a in (place_FN, place_FN - 1)))


def chunk_rows(
    logits_of: LogitsOf, hidden: Float[Array, "F N D"], tokens: Int[Array, "B T"]
) -> tuple[int, bool]:
    """Rows of a list of some of `tokens` whose logits are made at a time, and false where those of
    the whole list are few enough to be kept for the way back.
    """
    most = CHUNK_LOGITS // jax.eval_shape(logits_of, hidden[:, :1]).shape[-1]
    rows = max(1, min(most, tokens.size // len(hidden) // 2))
    return rows, hidden.shape[1] > most or not jax.typeof(hidden).sharding.mesh.empty


def listed(
    hidden: Float[Array, "B T D"],
    tokens: Int[Array, "B T"],
    place: Int[Array, "F N"],
    source: Int[Array, "F N"],
) -> tuple[Float[Array, "F N D"], Int[Array, "F N"]]:
    """States and tokens of a list; on a mesh a device has the list of its own rows, and F is 1."""
    parts = len(place)
    hidden_FSD = hidden.reshape(parts, -1, hidden.shape[-1])
    hidden_FND = jax.vmap(lambda hidden_SD, source_N: hidden_SD[source_N])(hidden_FSD, source)
    take = jax.vmap(lambda tokens_S, place_N: tokens_S.at[place_N].get(mode="fill", fill_value=0))
    return hidden_FND, take(tokens.reshape(parts, -1), place)


def _unlisted(
    tokens: Int[Array, "B T"], place: Int[Array, "F N"], value: Float[Array, "F N"]
) -> Float[Array, "B T"]:
    """Scatters the values of a list to their places in the rows; 0 elsewhere."""
    zeros_FS = jnp.zeros_like(tokens, value.dtype).reshape(len(place), -1)
    put = jax.vmap(lambda zeros_S, place_N, value_N: zeros_S.at[place_N].set(value_N, mode="drop"))
    return put(zeros_FS, place, value).reshape(tokens.shape)


def at(logits: Float[Array, "*rows V"], token: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    """The logit of each row's token."""
    sharding = jax.typeof(logits).sharding
    if sharding.mesh.empty:
        return jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    # words may be cut over devices, of which one has the token
    words = NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[-1]))
    word = jax.lax.broadcasted_iota(jnp.int32, logits.shape[-1:], 0, out_sharding=words)
    is_token = jnp.expand_dims(word, range(token.ndim)) == token[..., None]
    return jnp.sum(jnp.where(is_token, logits, 0.0), axis=-1)


def entropy_of(
    logits: Float[Array, "*rows V"], total: Float[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """That of softmax(logits), of which `total` is the logsumexp."""
    if jax.typeof(logits).sharding.mesh.empty:
        # of a matrix: with a third axis XLA for CPU takes three times as long to sum the products
        flat = logits.reshape(-1, logits.shape[-1])
        weight = jnp.exp(flat - total.reshape(-1, 1))
        return total - jnp.sum(weight * flat, axis=-1).reshape(total.shape)
    return total - jnp.sum(jnp.exp(logits - total[..., None]) * logits, axis=-1)


def has_predecessor(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """True where a token follows another one of its own segment."""
    same = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0)
    return jnp.pad(same, ((0, 0), (1, 0)))
