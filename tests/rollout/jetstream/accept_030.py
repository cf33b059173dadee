"""A pytest plugin: the tests of JetStream's git 29329e8 ("0.3.0") meet our engine.

    python -m pytest -p tests.rollout.jetstream.accept_030 CHECKOUT/jetstream/tests/core/...

Their files stay as they are; where they build their mock engine they get ours, which follows that
contract. It says that it does not chunk prompts, since it does so by itself, and it knows no LoRA.
"""

from typing import Any

from jetstream.engine import engine_api, mock_engine, token_utils, tokenizer_pb2

from loong_jax.rollout.jetstream import JetStreamEngine
from tests.rollout.jetstream import toy_engine


class Engine(JetStreamEngine):
    """Ours, with the two things that the Driver takes from JetStream itself: tokenizer, weights."""

    use_chunked_prefill = False  # type: ignore[assignment]

    def __init__(self, batch_size: int, cache_length: int, weight: float, **chunking: Any):
        del chunking
        super().__init__(toy_engine.make_engine(batch_size, cache_length), engine_api.ResultTokens)
        self._weights = toy_engine.make_weights(weight)

    def load_params(self) -> Any:  # type: ignore[override]
        return self._weights

    load_params_dict = load_params

    def get_tokenizer(self) -> Any:
        kind = tokenizer_pb2.TokenizerType.sentencepiece
        return tokenizer_pb2.TokenizerParameters(path="test", tokenizer_type=kind, extra_ids=0)

    def build_tokenizer(self, metadata: Any) -> Any:
        return token_utils.SentencePieceTokenizer(metadata)


mock_engine.TestEngine = Engine  # type: ignore[assignment,misc]
