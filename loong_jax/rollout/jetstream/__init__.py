"""Our engine under JetStream's contract with an engine, and under its Driver. Extra: `jetstream`.

Here is the contract of its git 29329e8 ("0.3.0"), beyond our scheduler's needs; `adapter` has that
of `google-jetstream` 0.2.2, for acceptance and for those who have JetStream running: its Driver
cannot cancel, returns no log-probabilities and ends the process on any error. `loong serve` speaks
its protocol without it.

Prompts come one at a time and padded, a request is greedy unless it says otherwise, and sizes are
properties under JetStream's names. JetStream itself is not imported: an engine is given the class
that it knows the results of a call by.
Source: github.com/AI-Hypercomputer/JetStream, jetstream/engine/engine_api.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from loong_jax.data.tokenizer import Tokenizer
from loong_jax.errors import ConfigError
from loong_jax.models.parameters import Weights
from loong_jax.rollout.engine_config import SampleRequest
from loong_jax.rollout.programs import CachedPrefixes, ResultTokens
from loong_jax.rollout.records import SamplingSettings
from loong_jax.rollout.slot_engine import SlotEngine


class JetStreamEngine:
    """`engine` under that contract."""

    samples_per_slot = 1
    colocated_cpus = None

    def __init__(self, engine: SlotEngine, results: Callable[..., Any]):
        self.engine, self._results = engine, results

    def load_params(self, weights: Weights) -> Weights:
        return self.engine.load_params(weights)

    def init_decode_state(self, *args: Any, **kwargs: Any) -> Any:
        return self.engine.init_decode_state()

    def prefill(
        self, *, request_id: Any = None, request: SampleRequest | None = None, **given: Any
    ) -> tuple[Any, Any]:
        """Without a `request`, decodes greedily as long as the cache allows. `given` are arguments
        of `prefill_multisampling`.
        """
        requests = None if request is None else [request]
        return self.prefill_multisampling(num_samples=1, requests=requests, **given)

    def prefill_multisampling(
        self,
        *,
        params: Weights,
        existing_prefix: Any = None,
        padded_tokens: jax.Array | np.ndarray,
        true_length: int,
        sampler: Any = None,
        rng: Any = None,
        num_samples: int,
        requests: Sequence[SampleRequest] | None = None,
    ) -> tuple[Any, Any]:
        _refuse_samplers(sampler, rng)
        if not isinstance(existing_prefix, CachedPrefixes | None):
            raise ConfigError(
                f"existing_prefix is a {type(existing_prefix).__name__}, no beginning of prompts. "
                "Pass what `find` returned for these prompts, or whole prompts alone."
            )
        prompt = np.asarray(padded_tokens).reshape(-1)[:true_length]
        prefix, result = self.engine.prefill_batch(
            params=params,
            prompts=[prompt],
            rows=[0] * num_samples,
            requests=requests or greedy_requests(self.engine, len(prompt), num_samples),
            existing_prefix=existing_prefix,
        )
        return prefix, self._shown(result)

    def insert(self, prefix: Any, decode_state: Any, slot: int, request_id: Any = None) -> Any:
        return self.engine.bulk_insert(prefix, decode_state, [slot], members=[0])

    def bulk_insert(self, prefix: Any, decode_state: Any, slots: Sequence[int]) -> Any:
        return self.engine.bulk_insert(prefix, decode_state, slots)

    def generate(self, params: Weights, decode_state: Any, sampler: Any = None) -> tuple[Any, Any]:
        _refuse_samplers(sampler)
        state, result = self.engine.generate(params, decode_state)
        return state, self._shown(result)

    def free_resource(self, slot: int) -> None:
        """Nothing to free: a slot of its own is overwritten by the next insert."""

    def get_prefix_destination_sharding(self) -> Any:
        mesh, caches = self.engine.devices.mesh, self.engine.devices.caches
        return None if mesh is None else jax.sharding.NamedSharding(mesh, caches)

    def get_tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def build_tokenizer(self, metadata: Any) -> Any:
        """`metadata` is what `get_tokenizer` returned."""
        return metadata

    @property
    def max_concurrent_decodes(self) -> int:
        return self.engine.config.slots_per_replica

    @property
    def max_prefill_length(self) -> int:
        return self.engine.config.prefill_lengths[-1]

    @property
    def mesh(self) -> Any:
        return self.engine.devices.mesh

    @property
    def use_chunked_prefill(self) -> bool:
        return self.engine.config.chunked_prefill

    @property
    def prefill_chunk_size(self) -> int:
        return self.max_prefill_length

    def _shown(self, result: ResultTokens) -> Any:
        steps = result.log_prob.shape[1]
        return self._results(
            data=result.data,
            tokens_idx=(0, steps),
            valid_idx=(steps, 2 * steps),
            length_idx=(2 * steps, 2 * steps + 1),
            samples_per_slot=1,
            log_prob=result.log_prob,
        )


def greedy_requests(engine: SlotEngine, length: int, count: int) -> list[SampleRequest]:
    """Greedy samples after a prompt of this length, as long as the cache allows."""
    room = max(engine.config.room(length), 1)
    sampling = SamplingSettings(greedy=True, max_new_tokens=room)
    return [SampleRequest(stream=(0, 0, 0, 0, i), sampling=sampling) for i in range(count)]


def _refuse_samplers(*given: Any) -> None:
    if any(one is not None for one in given):
        raise ConfigError(
            "sampler and rng are not taken: each sample brings its settings. Pass `requests`."
        )
