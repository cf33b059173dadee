"""An engine without a model, to time what is around engines: every token is the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.rollout.engine import ResultTokens

BLOCK_STEPS = 8
_TOKEN = 65


class NullEngine:
    """The part of the engine contract that `Replica` uses; responses end at their length limit."""

    max_concurrent_decodes = 16
    max_narrow_slots = 0
    max_prefill_length = 64
    max_prefill_prompts = 4
    max_prefill_members = 16

    def get_tokenizer(self) -> AsciiTokenizer:
        return AsciiTokenizer()

    def load_params(self, weights: Any) -> Any:
        return weights

    def warm_up(self, params: Any) -> None: ...

    def init_decode_state(self) -> tuple[()]:
        return ()

    def check_sampling(self, sampling: Any) -> None: ...

    def check_length(self, prompt_length: int, max_new_tokens: int) -> None: ...

    def prefill_length(self, prompt_length: int) -> int:
        return self.max_prefill_length

    def find(self, state: Any, prompts: Any, version: int) -> None: ...

    def num_chunks(self, prompts: Any, existing_prefix: Any = None) -> int:
        return 1

    def prefill_batch(self, *, requests: Sequence[Any], **_: Any) -> tuple[Any, ResultTokens]:
        return (), _tokens(len(requests), 1)

    def num_that_fit(self, prefix: Any, state: Any, members: Sequence[int]) -> int:
        return len(members)

    def bulk_insert(self, prefix: Any, state: Any, slots: Any, *, members: Any = None) -> Any:
        return state

    def reserve(self, state: Any, slots: Sequence[int]) -> bool:
        return True

    def generate(self, params: Any, state: Any) -> tuple[Any, ResultTokens]:
        return state, _tokens(self.max_concurrent_decodes, BLOCK_STEPS)

    def release(self, state: Any, slot: int, **_: Any) -> Any:
        return state

    def cancel(self, state: Any, slots: Sequence[int]) -> Any:
        return state

    def forget(self, state: Any, version: int) -> Any:
        return state

    def cache_pressure(self, state: Any) -> float:
        return 0.0

    def statistics(self, state: Any) -> dict[str, int]:
        return {}


def _tokens(num_samples: int, num_steps: int) -> ResultTokens:
    data = np.ones((num_samples, 2 * num_steps + 1), np.int32)
    data[:, :num_steps] = _TOKEN
    log_probs = np.zeros((num_samples, num_steps), np.float32)
    spans = (0, num_steps), (num_steps, 2 * num_steps), (2 * num_steps, 2 * num_steps + 1)
    return ResultTokens(data, log_probs, *spans)
