"""A small model whose drafts are often right, and engines over it, compiled once for all tests."""

import dataclasses
import functools

import jax
import numpy as np
from flax import nnx

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models import moe
from loong_jax.rollout import slots
from loong_jax.rollout.engine_config import PageConfig, SampleRequest
from loong_jax.rollout.paged_engine import engine_for
from tests.doubles import tiny

MODEL = tiny.smallest_config(num_mtp_layers=1, num_layers=1)
NGRAM = moe.NgramEmbedding(max_order=3, num_splits=2, base_rows=300, eos_token=40)
WITH_NGRAMS = dataclasses.replace(MODEL, ngram=NGRAM)
LENGTH = 32  # of the cache
NEAR_TIE = 1e-4  # nats between the two best tokens that rounding may exchange
PAGES = PageConfig(num_pages=24, page_size=4)  # too few for all slots


@functools.cache
def model(config=MODEL):
    """Graph and weights. Both the model and its head mostly look at the last token alone."""
    graphdef, weights = moe.init_weights(config, jax.random.key(0))
    embed = MODEL.hidden_size
    projection = np.zeros((2 * embed, embed), np.float32)
    projection[:embed] = 4 * np.eye(embed)
    weights["mtp"]["projection"] = jax.numpy.asarray(projection)
    weights["embedding"] = weights["embedding"] * 4
    weights["head"] = weights["head"] * 2
    return graphdef, weights


@functools.cache
def engine(*, config=MODEL, pages: bool = False, drafts: bool = False):
    graphdef, _ = model(config)
    shapes = tiny.engine_shapes(
        slots_per_replica=32,
        cache_length=LENGTH,
        prefill_members=32,
        chunked_prefill=True,
        truncation=True,
        max_stop_ids=1,
        speculation=drafts,
        pages=PAGES if pages else None,
    )
    return engine_for(graphdef, config, AsciiTokenizer(), shapes)


@functools.cache
def _forward():
    graphdef, _ = model()
    return jax.jit(lambda w, x, mask: nnx.merge(graphdef, nnx.State(w))(x, mask=mask).logits)


def logits_of(sequences: list[np.ndarray], num_rows: int, length: int = LENGTH) -> np.ndarray:
    """float64 [num_rows, length, V] of the plain model, in one forward pass."""
    tokens = np.zeros((num_rows, length), np.int32)
    mask = np.zeros((num_rows, length), bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return np.asarray(_forward()(model()[1], tokens, mask), np.float64)


@jax.jit
def _noise(stream, positions):
    """[positions, V]: Gumbel noise of the tokens at these positions of a sample."""
    key = slots.stream_keys(stream[None])[0]
    keys = jax.vmap(lambda p: jax.random.fold_in(jax.random.wrap_key_data(key), p))(positions)
    return jax.vmap(lambda k: jax.random.gumbel(k, (MODEL.vocab_size,)))(keys)


def count_near_ties(groups, *, num_rows: int, seed: int, length: int = LENGTH) -> int:
    """Tokens of the policy that rounding decided; raises AssertionError for one that differs.

    Each finished sample is read in one forward pass, and every token drawn from its logits and the
    noise of the sample's stream.
    """
    rollouts = [(g.ticket, r) for g in groups.values() for r in g.rollouts]
    sequences = [np.concatenate([r.prompt, r.tokens]) for _, r in rollouts]
    ties = 0
    for (ticket, rollout), logits in zip(
        rollouts, logits_of(sequences, num_rows, length), strict=False
    ):
        start, sampling = len(rollout.prompt), rollout.sampling
        mine = np.flatnonzero(rollout.loss_mask)
        at = np.arange(len(mine)), rollout.tokens[mine]
        scaled = logits[start - 1 + mine] / sampling.temperature
        log_prob = scaled - scaled.max(axis=1, keepdims=True)
        log_prob -= np.log(np.exp(log_prob).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(rollout.engine_logprob[mine], log_prob[at], atol=1e-5)
        assert not rollout.engine_logprob[~rollout.loss_mask].any()
        noisy = scaled
        if not sampling.greedy:
            request = SampleRequest.of(ticket, rollout.attempt, sampling, seed=seed)
            stream, positions = np.array(request.stream, np.uint32), np.arange(length) + start
            noisy = scaled + np.asarray(_noise(stream, positions))[mine]
        lost = noisy.max(axis=1) - noisy[at]
        assert lost.max() < NEAR_TIE
        ties += int((lost > 0).sum())
    return ties
