"""Batches of which each device gets its own rows, and training with them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.rl import optimizers, policy_model, sft
from loong_jax.rl.sft import ShardedFeed, first_cursors
from loong_jax.sharding import ShardingRules, make_mesh
from tests.doubles.toy_policy import toy_policy
from tests.doubles.unpacking import unpack

TOKENIZER = AsciiTokenizer()
ENCODE = sft.pair_encoder(TOKENIZER)
RULES = ShardingRules(mesh=make_mesh(fsdp=2, expert=2, tensor=2))


def pair_at(number):
    return f"{number}+1=", "x" * (number % 5) + str(number + 1)


def settings(rows=8, **changes):
    adam = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-3))
    return sft.SftSettings(optimizer=adam, num_steps=3, rows=rows, row_length=32, **changes)


def make_feed(cursors=None, **changes):
    with jax.set_mesh(RULES.mesh):
        cursors = first_cursors(RULES) if cursors is None else cursors
        return ShardedFeed(pair_at, ENCODE, settings(**changes), RULES, cursors)


def texts_of(batch):
    host = {name: np.asarray(array) for name, array in batch.items()}
    return [TOKENIZER.decode(tokens) for tokens in unpack(host, "tokens")]


def test_every_pair_is_fed_once_and_part_f_feeds_every_fth():
    assert RULES.parts("act_batch") == 4
    feed = make_feed()
    batches = [next(feed)[0] for _ in range(3)]
    found = [text for batch in batches for text in texts_of(batch)]
    cursors = np.asarray(feed.cursors())
    parts = [range(f, f + 4 * c, 4) for f, c in enumerate(cursors)]
    encoded = [sft.encode_pair(TOKENIZER, *pair_at(n)) for n in itertools.chain(*parts)]
    given = [TOKENIZER.decode(fields["tokens"]) for fields in encoded]
    assert sorted(found) == sorted(given)
    assert len(set(found)) == len(found)
    first_rows = {n: np.asarray(a)[:2] for n, a in batches[0].items()}  # two rows to each part
    own = sft.batches((pair_at(n) for n in itertools.count(0, 4)), ENCODE, settings(rows=2))
    expected, _ = next(own)
    for name, array in expected.items():
        np.testing.assert_array_equal(first_rows[name], array)


def test_cursors_go_on_where_they_stood():
    feed = make_feed()
    next(feed)
    resumed = make_feed(feed.cursors())
    jax.tree.map(np.testing.assert_array_equal, next(resumed), next(feed))
    np.testing.assert_array_equal(resumed.cursors(), feed.cursors())


def test_micro_batches_hold_what_the_whole_holds():
    (whole,), parts = next(make_feed()), next(make_feed(micro_rows=4))
    assert [part["tokens"].shape for part in parts] == [(4, 32)] * 2
    for name, array in whole.items():  # two rows of each of four devices, one after another
        first, second = (np.asarray(part[name]) for part in parts)
        np.testing.assert_array_equal(np.asarray(array)[::2], first)
        np.testing.assert_array_equal(np.asarray(array)[1::2], second)
    filled = next(make_feed(micro_rows=3))  # a row of each device, then another, then none
    assert [part["tokens"].shape for part in filled] == [(4, 32)] * 3
    assert not np.any(filled[2]["segment_ids"])


def test_rows_are_cut_and_devices_hold_them_whole():
    (batch,) = next(make_feed())
    for array in batch.values():
        assert array.shape == (8, 32)
        assert {shard.data.shape for shard in array.addressable_shards} == {(2, 32)}
    with pytest.raises(ConfigError, match="rows=6 cannot be shared among 4 devices"):
        make_feed(rows=6)


def test_log_probabilities_do_not_depend_on_how_logits_are_cut():
    rules = ShardingRules(mesh=make_mesh(data=2, context=4))
    batch = next(iter(sft.batches(map(pair_at, itertools.count()), ENCODE, settings())))[0]
    table = jax.random.normal(jax.random.key(0), (TOKENIZER.vocab_size, TOKENIZER.vocab_size))

    def states(weights, batch):
        tokens = batch["tokens"]
        tokens = rules.place(tokens, "act_batch", "act_length") if on_mesh else tokens
        table = weights["table"]
        logits = rules.take(table, tokens, "act_vocab") if on_mesh else table[tokens]
        return logits, jnp.zeros((1, 1), jnp.int32), None

    model = dataclasses.replace(
        toy_policy(), states=states, logits=lambda _, num_tokens: lambda x: x
    )

    def found(table, batch):
        return policy_model.replayed_logprobs(model, {"table": table}, batch, 0.7)[:2]

    on_mesh = False
    alone = jax.jit(found)(table, batch)
    on_mesh = True
    with jax.set_mesh(rules.mesh):
        spec = rules.spec("act_batch", "act_keys")
        cut = jax.jit(found)(
            jax.device_put(table, rules.spec(None, None)), jax.device_put(batch, spec)
        )
    log_p = np.asarray(table, np.float64) / 0.7
    log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    tokens, segments = batch["tokens"], batch["segment_ids"]
    follows = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    entropy = -(np.exp(log_p) * log_p).sum(axis=1)
    oracle = (
        np.where(follows, log_p[tokens[:, :-1], tokens[:, 1:]], 0.0),
        np.where(follows, entropy[tokens[:, :-1]], 0.0),
    )
    for one, other, expected in zip(alone, cut, oracle, strict=True):
        np.testing.assert_allclose(one[:, 1:], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(one[:, 0], 0.0)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
