"""Replicas end samples at stop texts: with the token at which the text of all first holds one."""

import pickle

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from loong_jax.rollout.attempts import Attempt, Job
from loong_jax.rollout.records import SamplingSettings, Ticket
from loong_jax.rollout.text_stream import TextStream
from tests.doubles.fake_model import fake_problem

TICKET = Ticket(number=0, problem=fake_problem(0))
SILENT = 256  # a token without a text, as ids are that a vocabulary is padded with


def decode(tokens):
    """As tokenizers that fall back to bytes: those of a run that is no text are U+FFFD each."""
    data = bytes(token for token in tokens if token != SILENT)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(data)


def end_in_blocks(tokens, stops, size, is_moved):
    """How many tokens are kept of those that come `size` at a time."""
    sampling = SamplingSettings(stops=stops)
    attempt = Attempt(Job(TICKET, np.zeros(1, np.int32), 1, sampling, 0), 0, 0)
    for start in range(0, len(tokens), size):
        new = np.array(tokens[start : start + size], np.int32)
        attempt.extend(new, np.zeros(len(new), np.float32))
        if attempt.cut_at_stop(decode):
            break
        if is_moved:
            attempt = pickle.loads(pickle.dumps(attempt))
    return attempt.length


def end_of_stream(tokens, stops):
    stream = TextStream(decode, stops)
    for number, token in enumerate(tokens, 1):
        stream.push(token)
        if stream.is_stopped:
            return number
    return len(tokens)


characters = st.sampled_from([*(list(c.encode()) for c in "abé漢字😀"), [SILENT] * 9])


@given(
    st.lists(characters, max_size=24).map(
        lambda parts: [token for part in parts for token in part]
    ),
    st.lists(st.text("abé漢字", min_size=1, max_size=3), min_size=1, max_size=2).map(tuple),
    st.integers(1, 16),
    st.booleans(),
)
@example(list(("漢字" * 9 + "語尾" + "漢字" * 9).encode()), ("語尾",), 8, False)
@example([*b"aE", *[SILENT] * 20, *b"ND and on"], ("END",), 4, False)
def test_replica_and_stream_end_a_sample_alike(tokens, stops, size, is_moved):
    found = (n for n in range(1, len(tokens) + 1) if any(s in decode(tokens[:n]) for s in stops))
    expected = next(found, len(tokens))
    assert end_in_blocks(tokens, stops, size, is_moved) == expected
    assert end_of_stream(tokens, stops) == expected
