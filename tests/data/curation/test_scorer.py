"""The scorer learns what a text shows, scores the same in JAX and NumPy, and survives a save."""

import random

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from loong_jax.data.curation import duplicates, scorer
from loong_jax.data.curation.scorer import Scored, Scorer, ScorerConfig
from loong_jax.errors import ConfigError

HARD = {"manifold": 0.9, "tensor": 0.8, "matrix": 0.6, "prime": 0.4}
EASY = ["apples", "coins", "sum", "add", "two", "cat"]
SMALL = ScorerConfig(num_buckets=512, width=8, hidden=8, epochs=20, batch=32)


def labelled(num, seed):
    rng = random.Random(seed)
    found = []
    for _ in range(num):
        words = rng.choices([*HARD, *EASY], k=8)
        difficulty = sum(HARD.get(word, 0) for word in words) / 8 + rng.gauss(0, 0.02)
        tags = [word for word in ("tensor", "coins") if word in words]
        found.append({"prompt": " ".join(words), "difficulty": 5 + 3 * difficulty, "tags": tags})
    return found


@pytest.fixture(scope="module")
def trained():
    return scorer.train(labelled(400, 0), SMALL)


def test_ranks_texts_it_has_not_seen(trained):
    fresh = labelled(200, 1)
    found, probability = trained[0].score([record["prompt"] for record in fresh])
    expected = [record["difficulty"] for record in fresh]
    assert stats.spearmanr(found, expected).statistic > 0.8
    assert abs(np.mean(found) - np.mean(expected)) < 0.1  # in the units of the labels
    has = np.array([["coins" in r["tags"], "tensor" in r["tags"]] for r in fresh])
    assert trained[0].tags == ("coins", "tensor")
    assert ((probability > 0.5) == has).mean() > 0.8
    assert trained[1]["num_train"] == 360
    assert trained[1]["spearman"] > 0.7


def test_numpy_says_what_jax_says(trained):
    texts = [record["prompt"] for record in labelled(9, 2)] + ["", "one"]
    model = trained[0]
    arrays = scorer._arrays(texts, model.num_buckets)
    rows = jnp.asarray(model.params["table"])[arrays["pieces"]] * arrays["weight"][:, :, None]
    raw, logits = scorer._heads(jnp, model.params, rows.sum(axis=1), arrays["plain"])
    difficulty, probability = model.score(texts)
    np.testing.assert_allclose(model.offset + model.scale * raw, difficulty, rtol=2e-5)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), probability, rtol=2e-5)


def test_pieces_are_single_words_and_pairs():
    found = scorer._pieces(["a b c", "", "a"], 1 << 40)
    assert found.counts.tolist() == [5, 0, 2]  # a lone word is its own pair
    assert found.values[5] == found.values[0]
    assert duplicates.shingles_of(["a"], 1).values[0] % (1 << 40) == found.values[0]
    assert len(set(found.values[:5].tolist())) == 5
    assert scorer._pieces(["x " * 5000], 64).counts.tolist() == [512]


def test_saved_and_used_as_a_stage(trained, tmp_path):
    trained[0].save(tmp_path / "scorer")
    again = Scorer.load(tmp_path / "scorer")
    texts = [record["prompt"] for record in labelled(5, 3)]
    for one, other in zip(trained[0].score(texts), again.score(texts), strict=True):
        np.testing.assert_array_equal(one, other)
    records = [{"prompt": "manifold tensor " * 6}, {"prompt": "coins two " * 6}]
    outcome = Scored(path=tmp_path / "scorer", at_least=5.5).judge(records)
    assert outcome.reasons[1].startswith("too easy")
    assert 0 not in outcome.reasons
    assert outcome.notes[0]["difficulty"] > outcome.notes[1]["difficulty"]
    assert "coins" in outcome.notes[1]["tags"]
    assert "coins" not in outcome.notes[0]["tags"]
    with pytest.raises(ConfigError, match="holds no scorer"):
        Scorer.load(tmp_path)


def test_the_same_seed_trains_the_same_scorer(trained):
    again, _ = scorer.train(labelled(400, 0), SMALL)
    np.testing.assert_array_equal(again.params["w1"], trained[0].params["w1"])


def test_too_few_labels_are_refused():
    with pytest.raises(ConfigError, match="9 records"):
        scorer.train(labelled(9, 0) + [{"prompt": "no label"}] * 20)
