"""The bench of curation on few records: its figures are shares, and its funnel adds up."""

import itertools
import json
import random

import pytest

from loong_jax import cli
from loong_jax.bench import curation, curation_cases, curation_corpora


def test_quality_names_every_filter():
    result = curation.measure_quality(6, 0)
    assert set(result) == set(curation.filters()) == set(curation_corpora.planted())
    for name, of in result.items():
        assert 0 <= of["recall"] <= 1
        assert (of["written"] is None) == (name not in curation_cases.CASES)
    assert "written by hand" in curation.quality_text(result)


def test_contamination_falls_with_the_distance():
    result = curation.measure_contamination(60, 0)
    alone = [row["alone"] for row in result["by_edits"]]
    near = [row["near_duplicate"] for row in result["by_edits"]]
    assert alone[0] == near[0] == 1.0
    assert alone[-1] < 0.5
    assert near[-1] < 0.2
    assert result["other"]["contamination"] <= 0.1
    assert result["other"]["near_duplicate"] <= 0.05
    assert "other prompts" in curation.contamination_text(result)


def test_corpora_hold_what_they_say():
    rng = random.Random(0)
    items = [curation_corpora.prompt(rng) for _ in range(20)]
    records = [json.loads(line) for line in curation_corpora.many(3000, 0, items)]
    assert len({record["id"] for record in records}) == 3000
    posed = sum(record["prompt"] in items for record in records) / 3000
    assert 0.005 < posed < 0.03
    assert len({record["prompt"] for record in records}) < 0.95 * 3000
    again = [json.loads(line) for line in curation_corpora.many(50, 0, items)]
    assert again == records[:50]


def test_edits_change_as_many_words():
    rng = random.Random(0)
    text = " ".join(f"w{i}" for i in range(30))
    for num in (0, 1, 4):
        left = set(curation_corpora.edited(text, num, rng).split()) & set(text.split())
        assert 30 - num <= len(left) <= 30


@pytest.mark.slow
def test_the_volume_runs_in_a_child_and_adds_up(tmp_path, capsys):
    words = ["--parts", "volume", "--records", "1500", "--json", str(tmp_path / "v.json")]
    assert cli.main(["bench", "curation", *words]) == 0
    assert "peak memory" in capsys.readouterr().out
    result = json.loads((tmp_path / "v.json").read_text())["volume"]
    stages = result["funnel"]["stages"]
    assert stages[0]["num_seen"] == 1500
    for one, following in itertools.pairwise(stages):
        assert one["num_kept"] == following["num_seen"]
    assert stages[-1]["num_kept"] == result["num_kept"]
    assert 0 < result["peak_memory_gb"] < 4


def test_bad_numbers_are_refused(capsys):
    assert cli.main(["bench", "curation", "--records", "0"]) == 1
    assert "not at least 1" in capsys.readouterr().err
