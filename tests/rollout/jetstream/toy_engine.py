"""Our engine with the arithmetic of JetStream's own mock, so that its tests know what comes out.

A prompt of tokens t under weight w counts as sum(t) * w; after generated tokens g the next token is
that plus sum(g) / w, rounded down. The weight of the prefill is that of the engine that reads the
prompt, the other that of the engine that decodes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.rollout.devices import OneDevice
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.slot_engine import SlotEngine

VOCAB_SIZE = 2**13


class ToyTokenizer(AsciiTokenizer):
    """One token per character, and the special tokens of JetStream's test vocabulary."""

    vocab_size, pad_id, eos_id, bos_id = VOCAB_SIZE, 0, 1, 2
    end_ids = (eos_id,)

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Any) -> str:
        return "".join(chr(int(token)) for token in tokens)


class ToyOutput(NamedTuple):
    logits: Float[Array, "B T V"]


class ToyCache(NamedTuple):
    value: Float[Array, "1 2 B S 2"]  # what a position adds: of a prompt, and once it is generated


class ToyModel:
    """The `prefill` and `decode` of a model whose greedy token is that arithmetic."""

    def __init__(self, weights: dict[str, Any]):
        self._weight = weights["weight"]

    def prefill(self, tokens: Int[Array, "B T"], mask: Array):
        value_BT = jnp.where(mask, tokens, 0) * self._weight
        value = jnp.stack([value_BT, jnp.zeros_like(value_BT)], axis=-1)
        cache = jnp.broadcast_to(value[None, None], (1, 2, *value.shape))
        return ToyOutput(_certain(jnp.cumsum(value_BT, axis=1))), ToyCache(cache)

    def decode(self, tokens: Int[Array, "B"], positions: Int[Array, "B"], cache: ToyCache):
        batch = jnp.arange(tokens.shape[0])
        new = jnp.stack([jnp.zeros(tokens.shape), tokens.astype(jnp.float32)], axis=-1)
        value = cache.value.at[:, :, batch, positions].set(new[None, None], mode="drop")
        seen = jnp.arange(value.shape[3])[None] <= positions[:, None]
        total = jnp.sum(jnp.where(seen[..., None], value[0, 0], 0.0), axis=1)
        return _certain(total[:, 0] + total[:, 1] / self._weight), ToyCache(value)


def _certain(total: Float[Array, "*B"]) -> Float[Array, "*B V"]:
    return 100.0 * jax.nn.one_hot(total.astype(jnp.int32), VOCAB_SIZE)


def make_engine(batch_size: int, cache_length: int) -> SlotEngine:
    return SlotEngine(
        OneDevice(
            ToyModel,
            lambda batch, capacity: ToyCache(jnp.zeros((1, 2, batch, capacity, 2), jnp.float32)),
        ),
        ToyTokenizer(),
        EngineSettings(
            slots_per_replica=batch_size,
            cache_length=cache_length,
            # JetStream's own buckets: a prompt read by a large engine goes on in a small one.
            prefill_lengths=tuple(n for n in (16, 32, 64, 128, 256) if n <= cache_length),
            prefill_prompts=1,
            prefill_members=4,  # samples of one prompt, of which 0.3.0 asks for up to four
            decode_steps=1,
        ),
    )


def make_weights(weight: float) -> dict[str, Any]:
    return {"weight": jnp.float32(weight)}
