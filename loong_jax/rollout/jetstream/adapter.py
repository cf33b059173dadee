"""An engine for the Driver of `google-jetstream` 0.2.2, around one of ours.

That release has the older contract: prefill returns a prefix and no token, and the first token
comes out of the first `generate`. So what a slot drew last is withheld in the state and handed out
by the next step. What else its Driver expects, and does not say:

* A step must be valid in all its columns until the sample ends, so a block has one step.
* The longest prompt must be one of its own buckets, powers of two from 16.
* It deletes the arrays of a prefix after insert, so these must belong to nobody else; and it never
  frees a slot. Both rule out pages.
* A prompt that is too long is cut, and its length is passed on uncut.

Source: github.com/AI-Hypercomputer/JetStream, tag v0.2.2.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# pyright: reportMissingImports=false
from jetstream.engine import engine_api, token_utils, tokenizer_api, tokenizer_pb2

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError
from loong_jax.models.parameters import Weights
from loong_jax.rollout.engine_config import SampleRequest
from loong_jax.rollout.jetstream import JetStreamEngine, greedy_requests
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.slots import DecodeState, Prefix

FIRST_BUCKET = 16  # of the Driver's own list, which goes on by doubling


class AdaptedState(NamedTuple):
    """Slots, and what each drew last and nobody has seen."""

    inner: DecodeState
    token: jax.Array  # int32 [B]
    valid: jax.Array  # int32 [B], 0 where the sample had ended before
    length: jax.Array  # int32 [B], tokens of the sample up to that one


class JetStreamAdapter(JetStreamEngine, engine_api.Engine):
    """`engine` under the older contract, with one set of weights and of sampling settings."""

    def __init__(
        self,
        engine: SlotEngine,
        weights: Weights,
        *,
        sampling: SamplingSettings | None = None,
        seed: int = 0,
    ):
        """Without `sampling`, decodes greedily as long as the cache allows."""
        _refuse_misfit(engine)
        allow_driver()
        super().__init__(engine, engine_api.ResultTokens)
        self._weights = weights
        self._sampling, self._seed = sampling, seed
        self._count = itertools.count()
        self._withhold = jax.jit(_withhold, donate_argnums=0)

    def load_params(self, *args: Any, **kwargs: Any) -> Weights:
        return self._weights

    def prefill(
        self,
        *,
        params: Weights,
        existing_prefix: Any = None,
        padded_tokens: jax.Array,
        true_length: int,
    ) -> Prefix:
        if existing_prefix is not None:
            raise ConfigError("existing_prefix is not taken. Pass the whole prompt.")
        prompt = np.asarray(padded_tokens)[: min(true_length, len(padded_tokens))]
        (request,) = greedy_requests(self.engine, len(prompt), 1)
        stream = (self._seed, 0, 0, 0, next(self._count))
        request = SampleRequest(stream=stream, sampling=self._sampling or request.sampling)
        prefix, _ = self.engine.prefill_batch(
            params=params, prompts=[prompt], rows=[0], requests=[request]
        )
        return prefix

    def insert(self, prefix: Prefix, decode_state: AdaptedState, slot: int) -> AdaptedState:
        inner = self.engine.bulk_insert(prefix, decode_state.inner, [slot], members=[0])
        return self._withhold(decode_state._replace(inner=inner), prefix.slot.token[0], slot)

    def generate(
        self, params: Weights, decode_state: AdaptedState
    ) -> tuple[AdaptedState, engine_api.ResultTokens]:
        withheld = (decode_state.token, decode_state.valid, decode_state.length)
        inner, result = self.engine.generate(params, decode_state.inner)
        token, valid = result.tokens[:, 0], result.num_valid
        state = AdaptedState(inner, token, valid, decode_state.length + 1)
        shown = engine_api.ResultTokens(
            data=jnp.stack(withheld, axis=1),
            tokens_idx=(0, 1),
            valid_idx=(1, 2),
            length_idx=(2, 3),
            samples_per_slot=1,
        )
        return state, shown

    def init_decode_state(self, *args: Any, **kwargs: Any) -> AdaptedState:
        batch = self.max_concurrent_decodes
        empty = (jnp.zeros(batch, jnp.int32) for _ in range(3))
        return AdaptedState(self.engine.init_decode_state(), *empty)

    def get_tokenizer(self) -> tokenizer_pb2.TokenizerParameters:
        return tokenizer_pb2.TokenizerParameters(path="", extra_ids=0)

    def build_tokenizer(self, metadata: Any) -> "DriverTokenizer":
        return DriverTokenizer(self.engine.tokenizer)


class DriverTokenizer(tokenizer_api.Tokenizer):
    """One of our tokenizers as the Driver calls it."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    def encode(self, s: str, **kwargs: Any) -> tuple[jax.Array | np.ndarray, int]:
        """The tokens of `s`, padded to a bucket, and how many there are."""
        tokens = np.array(self._tokenizer.encode(s), np.int32)
        return token_utils.pad_tokens(tokens, self.bos_id, self.pad_id, **kwargs)

    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> str:
        return self._tokenizer.decode(token_ids)

    @property
    def pad_id(self) -> int:
        return self._tokenizer.pad_id

    @property
    def eos_id(self) -> int:
        return self._tokenizer.eos_id

    @property
    def bos_id(self) -> int:
        bos = self._tokenizer.bos_id
        return self.eos_id if bos is None else bos


def allow_driver() -> None:
    """The Driver uses a name that JAX has dropped, and ends the process where it is missing."""
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree.map  # type: ignore[attr-defined]


def _withhold(state: AdaptedState, token: jax.Array, slot: jax.Array) -> AdaptedState:
    return state._replace(
        token=state.token.at[slot].set(token),
        valid=state.valid.at[slot].set(1),
        length=state.length.at[slot].set(1),
    )


def _refuse_misfit(engine: SlotEngine) -> None:
    config = engine.config
    if config.pages is not None:
        raise ConfigError(
            "pages: the Driver never frees a slot, so its pages would not come back. Build the "
            "engine without pages."
        )
    if config.decode_steps != 1:
        raise ConfigError(
            f"decode_steps={config.decode_steps}: the Driver takes a column that is not valid for "
            "the end of a sample. Use decode_steps=1."
        )
    longest = config.prefill_lengths[-1]
    if longest < FIRST_BUCKET or longest & (longest - 1):
        raise ConfigError(
            f"prefill_lengths={config.prefill_lengths}: the longest must be one of the Driver's, "
            f"powers of two from {FIRST_BUCKET}."
        )
