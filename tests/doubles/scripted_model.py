"""A model that writes turns by heart, to test what happens between them.

It has the `prefill` and `decode` of `loong_jax.models.moe.LongcatFlash` and a cache that matters:
which turn it is in, and how far it has come, it knows only from the tokens in there. A turn begins
behind the `?` of a prompt, or behind what tools have answered.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from loong_jax.data.tokenizer import SPECIAL_TOKENS, AsciiTokenizer
from loong_jax.rollout.slot_engine import SlotEngine
from tests.doubles.fake_model import FakeCache, FakeOutput, engine_over

ANSWERED = SPECIAL_TOKENS["</longcat_tool_response>"]
MAX_TURNS, MAX_LENGTH = 4, 128  # of a script: all have one shape, so nothing compiles twice
ANY_DIGIT = "#"  # in a script: each digit is as likely as the others


class ScriptedModel:
    def __init__(self, weights: dict[str, Any]):
        self._script = weights["script"]  # [turns, length, V]

    def prefill(
        self,
        tokens: Int[Array, "B T"],
        mask: Bool[Array, "B T"],
        cache: FakeCache | None = None,
        start: Int[Array, "B"] | None = None,
    ):
        if cache is None or start is None:
            cached = jnp.broadcast_to(tokens[None, None, :, :, None], (1, 2, *tokens.shape, 1))
            return FakeOutput(self._logits(tokens)), FakeCache(cached)
        batch = jnp.arange(tokens.shape[0])[:, None]
        position = start[:, None] + jnp.arange(tokens.shape[1])[None]
        at = jnp.where(mask, position, cache.token.shape[3])
        written = cache.token.at[:, :, batch, at, 0].set(tokens[None, None], mode="drop")
        logits = self._logits(written[0, 0, :, :, 0])
        return FakeOutput(logits.at[batch, position].get(mode="clip")), FakeCache(written)

    def decode(self, tokens: Int[Array, "B"], positions: Int[Array, "B"], cache: FakeCache):
        batch = jnp.arange(tokens.shape[0])
        written = cache.token.at[:, :, batch, positions, 0].set(tokens[None, None], mode="drop")
        return self._logits(written[0, 0, :, :, 0])[batch, positions], FakeCache(written)

    def _logits(self, tokens: Int[Array, "B S"]) -> Float[Array, "B S V"]:
        position_1S = jnp.arange(tokens.shape[1])[None]
        is_start = (tokens == ANSWERED) | (tokens == ord("?"))
        start_BS = jax.lax.cummax(jnp.where(is_start, position_1S, 0), axis=1)
        turn_BS = jnp.cumsum(tokens == ANSWERED, axis=1)
        return self._script.at[turn_BS, position_1S - start_BS].get(mode="clip")


def scripted_weights(turns: Sequence[str], *, sharpness: float = 30.0) -> dict[str, Any]:
    """Writes `turns` one after the other, the last one again and again.

    `sharpness` is by how much the token of the script is above the others, in nats.
    """
    tokenizer = AsciiTokenizer()
    lines = [tokenizer.encode(turn) for turn in turns]
    assert len(lines) <= MAX_TURNS
    assert max(map(len, lines)) < MAX_LENGTH
    lines += lines[-1:] * (MAX_TURNS - len(lines))
    script = np.zeros((MAX_TURNS, MAX_LENGTH, tokenizer.vocab_size), np.float32)
    script[:, :, tokenizer.eos_id] = sharpness
    for row, line in enumerate(lines):
        for column, token in enumerate(line):
            likely = range(48, 58) if token == ord(ANY_DIGIT) else [token]
            script[row, column] = 0
            script[row, column, list(likely)] = sharpness
    return {"script": jnp.asarray(script)}


def scripted_engine(**shapes: Any) -> SlotEngine:
    own = dict(slots_per_replica=4, cache_length=320, prefill_lengths=(16, 32), prefill_prompts=3)
    own |= dict(decode_steps=8, chunked_prefill=True)
    return engine_over(ScriptedModel, **own | shapes)
