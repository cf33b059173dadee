"""Proportions: answers by source, strata by lot, mixtures; and clusters by meaning."""

import collections

import numpy as np
import pytest

from loong_jax.data.curation import responses, semantic, stages
from loong_jax.data.curation.balance import AnswerSources, Mixture, Stratified
from loong_jax.errors import ConfigError


def kept(stage, records):
    if hasattr(stage, "judge"):
        outcome = stages.judge(stage, records)
    else:
        outcome = stage.decide(stage.sketch(records))
    return [i for i in range(len(records)) if i not in outcome.reasons], outcome


def test_answers_come_from_all_sources_in_turn():
    records = [
        {"prompt": f"Prompt {i % 2}", "response": f"r{i}", "source": "abc"[min(2, i // 10)]}
        for i in range(24)
    ]
    found, outcome = kept(AnswerSources(per_prompt=4, per_source=2), records)
    for prompt in (0, 1):
        sources = collections.Counter(records[i]["source"] for i in found if i % 2 == prompt)
        assert sum(sources.values()) == 4
        assert set(sources) == {"a", "b", "c"}
    assert collections.Counter(outcome.reasons.values())["too many of a source"] == 24 - 2 * 3 * 2
    few = [{"prompt": "One", "response": "r", "source": "a"}]
    assert kept(AnswerSources(), few)[0] == [0]


def test_strata_are_thinned_by_their_shares():
    records = [{"prompt": f"p{i}", "difficulty": (i % 4) / 4} for i in range(8000)]
    stage = Stratified(edges=(0.25, 0.5), keep=(0.1, 0.5, 1.0))
    found, _ = kept(stage, records)
    counts = collections.Counter(i % 4 for i in found)
    assert counts[2] == counts[3] == 2000
    assert abs(counts[0] - 200) < 5 * np.sqrt(180)
    assert abs(counts[1] - 1000) < 5 * np.sqrt(500)
    backwards, _ = kept(stage, records[::-1])
    assert sorted(7999 - i for i in backwards) == found  # the same luck in any order
    assert kept(stage, [{"prompt": "no value"}])[0] == [0]
    noted = {"prompt": "x", "difficulty": 0.0, "notes": {"difficulty": 0.9}}
    assert kept(Stratified(edges=(0.5,), keep=(0.0, 1.0)), [noted])[0] == [0]


def test_mixtures_have_the_shares_that_were_asked_for():
    records = [{"prompt": f"p{i}", "domain": "stem"} for i in range(800)]
    records += [{"prompt": f"q{i}", "domain": "code"} for i in range(150)]
    records += [{"prompt": "r", "domain": "other"}]
    stage = Mixture(shares={"stem": 1.0, "code": 1.0})
    found, outcome = kept(stage, records)
    total = collections.Counter()
    for i in found:
        total[records[i]["domain"]] += outcome.notes.get(i, {}).get("copies", 1)
    assert total == {"stem": 475, "code": 475}
    copies = {note["copies"] for note in outcome.notes.values()}
    assert copies == {3, 4}
    assert outcome.reasons[950] == "not mixed: other"
    few = kept(Mixture(shares={"code": 1.0, "stem": 0.01}, max_copies=2), records)[1]
    assert {note["copies"] for note in few.notes.values()} == {2}


def test_features_count_marks_per_thousand_words():
    found = responses.of_text(
        "Wait, is that right? Let me check it. Alternatively add 3. " + "x " * 89
    )
    assert found["words"] == 100
    assert found["reflection"] == 20.0
    assert found["verification"] == 10.0
    assert found["exploration"] == 10.0
    assert responses.of_text("") == {"words": 0, **dict.fromkeys(responses.MARKS, 0.0)}


def test_what_means_the_same_goes(tmp_path):
    rng = np.random.default_rng(0)
    base = rng.standard_normal((40, 16))
    vectors = np.concatenate([base, base[:10] + 0.01 * rng.standard_normal((10, 16))])
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "v.ids").write_text("\n".join(f"r{i}" for i in range(50)) + "\n")
    embedder = semantic.VectorFile(path=tmp_path / "v.npy")
    records = [{"id": f"r{i}", "prompt": "x"} for i in range(50)]
    for num_clusters in (1, 4):
        stage = semantic.Semantic(embedder=embedder, num_clusters=num_clusters)
        found, outcome = kept(stage, records)
        assert found == list(range(40))
        assert {note["cluster"] for note in outcome.notes.values()} <= set(range(num_clusters))
    with pytest.raises(ConfigError, match="no vector"):
        stage.sketch([{"id": "r77", "prompt": "x"}])


def test_what_means_the_same_as_an_item_goes(tmp_path):
    rng = np.random.default_rng(3)
    base = rng.standard_normal((30, 12))
    base[5] = base[21] + 0.01 * rng.standard_normal(12)  # record 5 is item 21 in other words
    np.save(tmp_path / "v.npy", base)
    (tmp_path / "v.ids").write_text("".join(f"r{i}\n" for i in range(30)))
    items = "".join(f'{{"id": "r{i}", "prompt": "x"}}\n' for i in range(20, 30))
    (tmp_path / "bench.jsonl").write_text(items)
    embedder = semantic.VectorFile(path=tmp_path / "v.npy")
    stage = semantic.SemanticContamination(embedder=embedder, against=(tmp_path / "bench.jsonl",))
    outcome = stage.judge([{"id": f"r{i}", "prompt": "y"} for i in range(20)])
    assert list(outcome.reasons) == [5]
    assert outcome.reasons[5].startswith("same meaning as: r21")


@pytest.mark.parametrize("block", [7, 64])
def test_earlier_ones_stay_across_blocks(monkeypatch, block):
    monkeypatch.setattr(semantic, "_BLOCK", block)
    rng = np.random.default_rng(1)
    vectors = semantic.unit(rng.standard_normal((30, 3)))
    stays = []
    for i in range(30):  # the plain loop
        if all(vectors[i] @ vectors[j] < 0.8 for j in stays):
            stays.append(i)
    gone = semantic.first_alike(vectors, 0.8)
    assert sorted(set(range(30)) - set(gone)) == stays
    angles = np.radians([0, 30, 60, 90])  # each is alike to its neighbours alone
    assert semantic.first_alike(np.stack([np.cos(angles), np.sin(angles)], 1), 0.8) == [1, 3]


def test_clusters_are_those_of_separated_points():
    rng = np.random.default_rng(2)
    centres = np.eye(3)
    vectors = semantic.unit(np.repeat(centres, 20, 0) + 0.05 * rng.standard_normal((60, 3)))
    found = semantic.kmeans(vectors, 3, num_rounds=10, seed=4)
    groups = {tuple(sorted(set(found[i : i + 20].tolist()))) for i in (0, 20, 40)}
    assert len(groups) == 3 or len(set(found.tolist())) < 3
    assert len(semantic.kmeans(np.zeros((0, 3)), 3, num_rounds=1, seed=0)) == 0
