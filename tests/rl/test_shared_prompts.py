"""Rows that hold a prompt once for all its responses, and logits of few tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loong_jax.data import packing
from loong_jax.errors import ConfigError
from loong_jax.models import moe
from loong_jax.models.moe import MoEConfig, NgramEmbedding
from loong_jax.models.moe.kernels.splash import Splash
from loong_jax.rl import batching, local_trainer, logprobs, objectives, optimizers, sft, trainer
from loong_jax.rl.batching import Layout
from loong_jax.rl.policy_model import policy_of
from tests.doubles import tiny
from tests.doubles.toy_policy import (
    group_of,
    listing_policy,
    toy_batches,
    toy_group,
    toy_policy,
    toy_weights,
)
from tests.rl.test_trainer import accumulate

OBJECTIVE = objectives.gspo_objective(group_size=4)
OPTIMIZER = optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-2))
SHARED = Layout(lists=True, shares_prompts=True)


# prompts of 5 to 8 tokens, responses of 2 to 9, one masked, one group with nothing to learn from
GROUPS = [group_of(n, (1.0, 0.0, None, 0.0), n) for n in range(3)] + [group_of(3, (None,) * 4, 3)]


def programs(model, shares_prompts=None):
    return trainer.make_programs(model, OBJECTIVE, OPTIMIZER, 0, False, shares_prompts)


def make_batches(layout, rows=4, row_length=48, groups=GROUPS):
    return toy_batches(groups, rows=rows, row_length=row_length, layout=layout)


def gradient(model, batches):
    return accumulate(programs(model), toy_weights(), batches, num_groups=3, temperature=0.7)


def settings(row_length=48, score_rows=4):
    return local_trainer.TrainerSettings(
        objective=OBJECTIVE,
        optimizer=OPTIMIZER,
        max_staleness=0,
        row_length=row_length,
        score_rows=score_rows,
    )


def test_loss_and_gradient_are_those_of_flat_rows():
    flat = gradient(toy_policy(), make_batches(batching.FLAT))
    sharing = dataclasses.replace(toy_policy(), sees_parents=True)
    # one row holds several groups, or a group takes several rows, or there are micro-batches
    for model, layout, rows, row_length in (
        (listing_policy(), SHARED, 4, 48),
        (listing_policy(), SHARED, 4, 96),
        (listing_policy(), SHARED, 2, 18),
        (listing_policy(), Layout(lists=True), 4, 48),
        (sharing, Layout(shares_prompts=True), 4, 48),
        (sharing, Layout(shares_prompts=True), 2, 18),
    ):
        batches = make_batches(layout, rows, row_length)
        found = gradient(model, batches)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8),
            found._replace(load=0),
            flat._replace(load=0),
        )
    assert len(make_batches(SHARED, 2, 18)) > 1


def test_a_prompt_stands_once_before_its_responses():
    (unlisted,) = make_batches(Layout(shares_prompts=True), rows=8, row_length=96)
    assert unlisted.predicted is not None
    assert unlisted.tokens.size == unlisted.predicted.place.size == 8 * 96  # always as many
    (batch,) = make_batches(SHARED, rows=8, row_length=96)
    prompt, valid = GROUPS[0].rollouts[0].prompt, [0, 1, 3]
    tokens = np.concatenate([prompt, *(GROUPS[0].rollouts[i].tokens for i in valid)])
    np.testing.assert_array_equal(batch.tokens[0, : len(tokens)], tokens)
    assert batch.segment_ids[0].max() == 12  # all three groups: a prompt and three responses each
    assert batch.tokens.shape == (1, 96)  # no more rows than are needed
    num_tokens = sum(len(r.tokens) for g in GROUPS for r in g.rollouts if r.reward is not None)
    assert np.sum(batch.segment_ids > 0) == num_tokens + 5 + 6 + 7
    assert batch.predicted is not None
    assert batch.predicted.place.shape == (1, 96)  # what is predicted, filled up
    assert np.sum(batch.predicted.place < 96) == num_tokens


def seen_by_hand(rollouts, row_length):
    """Which tokens each token of a row sees, from the responses themselves, token by token."""
    seen = np.zeros((row_length, row_length), bool)
    start = len(rollouts[0].prompt)
    for t in range(start):
        seen[t, : t + 1] = True
    for rollout in rollouts:
        for t in range(len(rollout.tokens)):
            seen[start + t, : len(rollouts[0].prompt)] = True
            seen[start + t, start : start + t + 1] = True
        start += len(rollout.tokens)
    return seen


def test_the_tokens_of_a_response_see_the_prompt_and_their_own():
    group = toy_group(5, (1.0, 0.0, 1.0))
    (batch,) = make_batches(SHARED, 1, 64, [group])
    assert batch.parent_ids is not None
    segment, parent = batch.segment_ids[0], batch.parent_ids[0]
    index = np.arange(64)
    same = (segment[:, None] == segment[None]) | (parent[:, None] == segment[None])
    seen = same & (segment > 0)[None] & (segment > 0)[:, None] & (index[:, None] >= index[None])
    np.testing.assert_array_equal(seen, seen_by_hand(group.rollouts, 64))
    np.testing.assert_array_equal(
        seen.sum(axis=1)[segment > 0], batch.positions[0][segment > 0] + 1
    )


@pytest.mark.parametrize("row_length", [14, 24, 96])
def test_scores_are_those_of_flat_rows(row_length):
    weights, group = toy_weights(), toy_group(9, (1.0,) * 5)
    flat = local_trainer.group_logprobs(programs(toy_policy()), weights, group, settings(32))
    for model, shares in ((listing_policy(), None), (listing_policy(), False)):
        found = local_trainer.group_logprobs(
            programs(model, shares), weights, group, settings(row_length, 2)
        )
        for a, b, rollout in zip(found, flat, group.rollouts, strict=True):
            assert len(a) == len(rollout.tokens)
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_rollout_longer_than_a_row_is_named():
    for layout in (SHARED, batching.FLAT):
        with pytest.raises(ConfigError, match=r"rollout \d of ticket \d has \d+ tokens, [567] of"):
            make_batches(layout, row_length=12)
    with pytest.raises(ConfigError, match="row_length=9"):
        local_trainer.group_logprobs(programs(toy_policy()), toy_weights(), GROUPS[0], settings(9))


def test_who_cannot_share_says_so():
    with pytest.raises(ConfigError, match="shares_prompts=True"):
        programs(toy_policy(), True)
    assert programs(toy_policy()).layout == batching.FLAT
    assert programs(listing_policy(sees_parents=False)).layout == Layout(lists=True)
    assert programs(listing_policy(), False).layout == Layout(lists=True)
    assert programs(listing_policy()).layout == SHARED
    assert programs(longcat()).layout == Layout(shares_prompts=True)
    assert programs(longcat(attention=Splash())).layout == batching.FLAT
    assert programs(longcat(ngram=NgramEmbedding(max_order=3, base_rows=8))).layout == batching.FLAT


def longcat(attention=None, ngram=None):
    config = MoEConfig.tiny(attention=attention, ngram=ngram)
    return policy_of(moe.abstract_weights(config)[0], config)


def test_logits_in_chunks_are_logits_at_once(monkeypatch):
    batches = make_batches(SHARED)
    whole = gradient(listing_policy(), batches)
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 7 * 128 + 5)
    trainer.make_programs.cache_clear()
    chunked = gradient(listing_policy(), batches)
    trainer.make_programs.cache_clear()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-8), chunked, whole
    )


def test_supervised_loss_is_the_same_with_a_list():
    stage = sft.SftSettings(optimizer=OPTIMIZER, num_steps=1, rows=2, row_length=32)
    pairs = [("1+1=", "2"), ("12+30=", "42"), ("4+4=", "8")]
    (batch, _), *_ = sft.batches(pairs, sft.pair_encoder(tiny.tokenizer()), stage)
    (listed,) = sft.micro_batches(batch, 1, lists=True)
    listed = jax.tree.map(jnp.asarray, listed)
    plain = {name: a for name, a in listed.items() if name != "predicted"}
    gradient_of = jax.jit(jax.value_and_grad(sft.sft_loss, has_aux=True), static_argnames="model")
    (loss, _), found = gradient_of(toy_weights(), listed, model=listing_policy())
    (expected, _), other = gradient_of(toy_weights(), plain, model=toy_policy())
    assert listed["predicted"].place.size < listed["tokens"].size
    assert loss == pytest.approx(float(expected), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), found, other)


def test_lists_are_filled_up_to_few_lengths():
    for count, length in ((0, 8), (8, 8), (9, 16), (33, 64), (64, 64)):
        mask = (np.arange(64) < count).reshape(4, 16)
        assert packing.predicted({}, mask).place.shape == (1, length)


def test_a_step_of_the_trainer_takes_the_layout_of_its_model(tmp_path):
    """The whole way: what flat rows train, shared ones do."""
    after = []
    for model in (toy_policy(), listing_policy()):
        compiled, weights = programs(model), toy_weights()
        groups = [
            local_trainer.score_group(compiled, weights, dataclasses.replace(g), settings())
            for g in GROUPS
        ]
        batches = make_batches(compiled.layout, groups=groups)
        state = compiled.initial(weights)
        state, metrics = trainer.train_step(compiled, model, state, batches, 4, 1.0)
        assert metrics["ratio/mean_by_lag"]["0"] == pytest.approx(1, abs=1e-5)
        after.append((state.weights["head"], metrics["entropy"]))
    np.testing.assert_allclose(after[0][0], after[1][0], rtol=1e-3, atol=1e-5)
    assert after[0][1] == pytest.approx(after[1][1], rel=1e-5)
