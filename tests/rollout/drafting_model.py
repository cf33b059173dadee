"""A small model whose drafts are often right, and engines over it, compiled once for all tests."""

import dataclasses
import functools

import jax
import numpy as np
from flax import nnx

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models import moe
from loong_jax.rollout.engine_config import PageConfig
from loong_jax.rollout.paged_engine import engine_for
from tests.doubles import tiny

MODEL = tiny.smallest_config(num_mtp_layers=1, num_layers=1)
NGRAM = moe.NgramEmbedding(max_order=3, num_splits=2, base_rows=300, eos_token=40)
WITH_NGRAMS = dataclasses.replace(MODEL, ngram=NGRAM)
LENGTH = 32  # of the cache
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


def logits_of(sequences: list[np.ndarray], num_rows: int) -> np.ndarray:
    """float64 [num_rows, LENGTH, V] of the plain model, in one forward pass."""
    tokens = np.zeros((num_rows, LENGTH), np.int32)
    mask = np.zeros((num_rows, LENGTH), bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return np.asarray(_forward()(model()[1], tokens, mask), np.float64)
