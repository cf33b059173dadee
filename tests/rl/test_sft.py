import dataclasses
import itertools

import jax
import numpy as np
import pytest

from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.problems.response import render_response
from loong_jax.rl import checkpoint, optimizers, sft, trainer
from tests.doubles.toy_policy import toy_policy, toy_weights
from tests.doubles.unpacking import unpack

TOKENIZER = AsciiTokenizer()
ENCODE = sft.pair_encoder(TOKENIZER)


def pairs():
    for n in itertools.count():
        yield f"{n % 7}+1=", render_response(f"{n % 7} one more", str(n % 7 + 1))


def settings(num_steps=8, **changes):
    schedule = optimizers.WarmupCosine(peak=0.05, warmup_steps=2, num_steps=8)
    optimizer = optimizers.AdamW(schedule=schedule)
    shape = dict(rows=4, row_length=64) | changes
    return sft.SftSettings(optimizer=optimizer, num_steps=num_steps, **shape)


def start():
    return trainer.initial_state(toy_policy(), settings().optimizer, toy_weights())


def run(state, num_steps=8, **kwargs):
    return sft.run(toy_policy(), settings(num_steps), state, pairs(), ENCODE, **kwargs)


def test_the_loss_is_on_the_response_and_its_end():
    fields = sft.encode_pair(TOKENIZER, "1+1=", render_response("two", "2"))
    text = TOKENIZER.decode(fields["tokens"][fields["loss_mask"]])
    assert text == render_response("two", "2")
    assert TOKENIZER.decode(fields["tokens"][~fields["loss_mask"]]) == "<bos>1+1="
    without_end = sft.encode_pair(TOKENIZER, "1+1=", "2")
    assert without_end["tokens"][-1] == TOKENIZER.eos_id


def test_batches_hold_every_pair_once_in_order():
    given = list(itertools.islice(pairs(), 40))
    found, total = [], 0
    for batch, taken in sft.batches(iter(given), ENCODE, settings()):
        texts = [TOKENIZER.decode(t) for t in unpack(batch, "tokens")]
        assert len(texts) == taken
        found += texts
        total += taken
    assert total == 40
    assert sorted(found) == sorted("<bos>" + prompt + response for prompt, response in given)


def test_loss_falls_and_equals_the_mean_over_response_tokens():
    losses = []
    run(start(), on_step=lambda state, cursor, metrics: losses.append(metrics["loss"]))
    assert losses[-1] < losses[0] - 0.3
    batch, _ = next(sft.batches(pairs(), ENCODE, settings()))
    weights = jax.tree.map(lambda w: np.asarray(w, np.float64), toy_weights())
    total = []
    for tokens, mask in zip(unpack(batch, "tokens"), unpack(batch, "loss_mask"), strict=True):
        for t in np.nonzero(mask)[0]:
            seen = weights["embedding"][tokens[:t]]
            logits = (seen[-1] + seen.mean(axis=0)) @ weights["head"]
            total.append(np.log(np.exp(logits).sum()) - logits[tokens[t]])
    assert losses[0] == pytest.approx(np.mean(total), rel=1e-5)


@pytest.mark.parametrize("lists", [False, True])
def test_micro_batches_add_up_to_the_whole(lists):
    """Responses differ in length, so a mean of the micro-batches' means would be another."""
    policy = dataclasses.replace(toy_policy(), lists=lists)
    pairs = [(f"{n}=", "7" * (1 + n * n % 40)) for n in range(400)]

    def trained(micro_rows):
        seen = []
        given = settings(3, rows=5, micro_rows=micro_rows)
        report = lambda state, cursor, metrics: seen.append((cursor, metrics))  # noqa: E731
        state, _ = sft.run(policy, given, start(), pairs, ENCODE, on_step=report)
        return state.weights, seen

    (whole, expected), (weights, seen) = trained(0), trained(2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), weights, whole)
    for (cursor, metrics), (wanted_cursor, wanted) in zip(seen, expected, strict=True):
        assert cursor == wanted_cursor
        assert metrics["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
        assert metrics["packed_share"] == wanted["packed_share"]


def test_resume_equals_uninterrupted_bit_for_bit(tmp_path):
    whole, cursor = run(start())

    def save(state, cursor, metrics):
        if int(state.step) == 3:
            checkpoint.save(tmp_path, 3, trainer.to_arrays(state), {"cursor": cursor})

    run(start(), num_steps=4, on_step=save)
    found = checkpoint.restore(tmp_path)
    state = trainer.from_arrays(toy_policy(), settings().optimizer, toy_weights(), found.arrays)
    resumed, resumed_cursor = run(state, cursor=found.metadata["cursor"])
    assert resumed_cursor == cursor
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)


def test_pairs_that_end_too_soon_are_an_error():
    with pytest.raises(ValueError, match="the examples ended after 5, at step 1 of 8"):
        sft.run(toy_policy(), settings(), start(), list(itertools.islice(pairs(), 5)), ENCODE)
