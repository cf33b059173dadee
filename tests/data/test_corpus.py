"""Corpora as array_record data sets: nothing lost, order by seed, places saved, no TensorFlow."""

import collections
import json
import subprocess
import sys

import pytest

from loong_jax.data import corpus
from loong_jax.errors import ConfigError


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    home = tmp_path_factory.mktemp("corpus")
    with open(home / "kept.jsonl", "w") as file:
        for i in range(20):
            record = {"id": f"r{i}", "prompt": f"\u4f60 {i}", "licence": "MIT", "x": [i, None]}
            file.write(json.dumps(record | ({"notes": {"copies": 3}} if i == 7 else {})) + "\n")
    return corpus.build([home / "kept.jsonl"], home / "datasets", name="small")


def test_every_record_comes_back(directory):
    source = corpus.read(directory)
    counts = collections.Counter(record["id"] for record in source)
    assert counts == {f"r{i}": 3 if i == 7 else 1 for i in range(20)}
    assert {r["id"]: r["x"] for r in source} == {f"r{i}": [i, None] for i in range(20)}
    assert all(record["prompt"] == f"\u4f60 {record['id'][1:]}" for record in source)


def test_iterators_go_on_where_they_were(directory):
    source = corpus.read(directory)
    steps = corpus.batches(source, batch=3, seed=1)
    first = [next(steps) for _ in range(4)]
    place = steps.get_state()
    after = [next(steps) for _ in range(9)]  # beyond the first epoch
    again = corpus.batches(source, batch=3, seed=1)
    again.set_state(place)
    assert [next(again) for _ in range(9)] == after
    other = corpus.batches(source, batch=3, seed=2)
    assert [next(other) for _ in range(4)] != first


def test_shards_share_the_corpus(directory):
    source = corpus.read(directory)
    parts = []
    for i in (0, 1):
        steps = corpus.batches(source, batch=1, seed=0, num_epochs=1, shard=(i, 2))
        parts.append([record["id"] for batch in steps for record in batch])
    assert sorted(parts[0] + parts[1]) == sorted(record["id"] for record in source)


def test_no_tensorflow_is_imported(directory):
    code = (
        "import sys; from pathlib import Path; from loong_jax.data import corpus;"
        f"next(corpus.batches(corpus.read(Path({str(directory)!r})), batch=2, seed=0));"
        "print('tensorflow' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_what_is_no_corpus_is_refused(directory, tmp_path):
    with pytest.raises(ConfigError, match="no data set"):
        corpus.read(tmp_path)
    with pytest.raises(ConfigError, match="no data set"):
        corpus.read(directory, split="test")
    with pytest.raises(ConfigError, match="no name"):
        corpus.build([tmp_path], tmp_path, name="Not A Name")
    source = corpus.read(directory)
    with pytest.raises(ConfigError, match="fewer than a batch"):
        corpus.batches(source, batch=23, seed=0)
    with pytest.raises(ConfigError, match="shard"):
        corpus.batches(source, batch=2, seed=0, shard=(2, 2))
