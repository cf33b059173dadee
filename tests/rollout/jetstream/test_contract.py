"""What JetStream alone asks of an engine, over one of ours; its own tests are beside."""

import numpy as np
import pytest

from loong_jax.errors import ConfigError
from loong_jax.rollout.jetstream import JetStreamEngine
from tests.doubles import fake_model

WEIGHTS = fake_model.fake_weights(0, eos_logit=-9.0)
PROMPT = np.arange(40, 51, dtype=np.int32)


def made():
    return JetStreamEngine(fake_model.fake_engine(cache_length=24), dict)


def read(engine, **arguments):
    return engine.prefill(
        params=WEIGHTS, padded_tokens=np.pad(PROMPT, (0, 5)), true_length=11, **arguments
    )


def test_without_a_request_decodes_greedily_as_long_as_the_cache_allows():
    engine = made()
    prefix, first = read(engine)
    assert first["data"][0, first["length_idx"][0]] == 1
    state = engine.insert(prefix, engine.init_decode_state(), 2)
    tokens = first["data"][0, slice(*first["tokens_idx"])].tolist()
    for _ in range(4):
        state, result = engine.generate(WEIGHTS, state)
        valid = np.asarray(result["data"][2, slice(*result["valid_idx"])], bool)
        tokens += np.asarray(result["data"][2, slice(*result["tokens_idx"])])[valid].tolist()
        assert result["data"][2, result["length_idx"][0]] == len(tokens)
    table, sequence = np.asarray(WEIGHTS["table"]), PROMPT.tolist()
    for token in tokens:
        assert token == table[sum(sequence) % len(table)].argmax()
        sequence.append(token)
    assert len(sequence) == 24 + 1


def test_samples_of_one_prompt_are_told_apart_by_slot():
    engine = made()
    prefix, first = engine.prefill_multisampling(
        params=WEIGHTS, padded_tokens=PROMPT, true_length=11, num_samples=3
    )
    assert first["data"][:4, slice(*first["valid_idx"])].ravel().tolist() == [1, 1, 1, 0]
    state = engine.bulk_insert(prefix, engine.init_decode_state(), [4, 0, 7])
    _, result = engine.generate(WEIGHTS, state)
    rows = result["data"][:, slice(*result["valid_idx"])].sum(axis=1)
    assert np.flatnonzero(np.asarray(rows)).tolist() == [0, 4, 7]


def test_what_it_cannot_do_is_refused():
    engine = made()
    prefix, _ = read(engine)
    with pytest.raises(ConfigError, match="existing_prefix is a Prefix"):
        read(engine, existing_prefix=prefix)
    with pytest.raises(ConfigError, match="sampler"):
        read(engine, sampler=lambda logits: logits)
    assert (engine.max_concurrent_decodes, engine.max_prefill_length) == (8, 24)
