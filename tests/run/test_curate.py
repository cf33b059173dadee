"""`loong curate` from files to everything that lies beside a corpus."""

import json
import random

import pytest

from loong_jax import cli
from loong_jax.data import problem_files
from loong_jax.data.curation import recipes
from loong_jax.errors import ConfigError
from tests.data.curation import corpora


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def raw(tmp_path):
    rng = random.Random(0)
    records = [
        {"id": f"r{i}", "prompt": corpora.prompt(rng), "gold": str(i), "licence": "MIT",
         "outcomes": [True, False, True, False]}
        for i in range(40)
    ]  # fmt: skip
    records[3]["prompt"] = "True or false: 7 is a prime number."
    records[5]["prompt"] = records[4]["prompt"]
    records[6]["outcomes"] = [True] * 4
    return write(tmp_path / "raw.jsonl", records)


def test_a_run_leaves_everything(raw, tmp_path, capsys):
    first = json.loads(raw.read_text().splitlines()[0])
    bench = write(tmp_path / "bench.jsonl", [{"id": "aime-1", "prompt": first["prompt"]}])
    out = tmp_path / "out"
    words = ["curate", "rl", "--input", str(raw), "--against", str(bench), "--output", str(out)]
    assert cli.main(words) == 0
    assert "36 of 40 records kept" in capsys.readouterr().out
    dropped = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    assert {(r["id"], r["dropped_by"]) for r in dropped} == {
        ("r0", "contamination"),
        ("r3", "true_false"),
        ("r5", "duplicates"),
        ("r6", "balanced_outcomes"),
    }
    assert len(problem_files.read(out / "problems.jsonl").problems) == 36
    sheet = json.loads((out / "datasheet.json").read_text())
    assert sheet["name"] == "out"
    assert sheet["fields"]["licence"] == {"MIT": 36}
    assert len(sheet["decontaminated_against"][0]["sha256"]) == 64
    text = (out / "DATASHEET.md").read_text()
    assert "bench.jsonl" in text
    assert "balanced_outcomes" in text
    assert (out / "funnel.png").read_bytes().startswith(b"\x89PNG")
    assert not (out / "work").exists()
    assert cli.main(words) == 0  # again: nothing is left to do
    assert "36 of 40 records kept" in capsys.readouterr().out
    assert cli.main([*words, "--skip", "true_false"]) == 1
    assert "other settings" in capsys.readouterr().err


def test_around_the_recipes(raw, tmp_path, capsys):
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(20)]
    file = write(tmp_path / "gsm8k.jsonl", rows)
    words = ["--input", str(file), "--output", str(tmp_path / "new.jsonl")]
    assert cli.main(["curate", "convert", "gsm8k", *words]) == 0
    assert "20 records" in capsys.readouterr().out
    labelled = [{"prompt": f"word{i % 5} x", "difficulty": i % 5 / 5} for i in range(60)]
    write(tmp_path / "labelled.jsonl", labelled)
    words = ["--input", str(tmp_path / "labelled.jsonl"), "--output", str(tmp_path / "scorer")]
    assert cli.main(["curate", "train-scorer", *words, "--epochs", "2"]) == 0
    assert "spearman" in capsys.readouterr().out
    words = ["--input", str(raw), "--scorer", str(tmp_path / "scorer"), "--output",
             str(tmp_path / "scored")]  # fmt: skip
    assert cli.main(["curate", "problems", *words]) == 0
    kept = (tmp_path / "scored/kept.jsonl").read_text().splitlines()
    assert all("difficulty" in json.loads(line)["notes"] for line in kept)
    words = ["--input", str(tmp_path / "scored/kept.jsonl"), "--output", str(tmp_path / "sets")]
    assert cli.main(["curate", "corpus", *words, "--name", "scored"]) == 0
    assert f"{len(kept)} examples" in capsys.readouterr().out


def test_help_teaches_and_mistakes_are_named(raw, tmp_path, capsys):
    assert cli.main(["curate", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in recipes.RECIPES)
    assert cli.main(["curate", "convert", "--help"]) == 0
    assert "livecodebench" in capsys.readouterr().out
    assert cli.main(["curate", "nothing"]) == 1
    assert "is no recipe" in capsys.readouterr().err
    words = ["--input", str(raw), "--output", str(tmp_path / "o"), "--skip", "nothing"]
    assert cli.main(["curate", "rl", *words]) == 1
    assert "no stages" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_every_recipe_makes_a_chain_that_can_be_saved(tmp_path):
    from loong_jax import configs
    from loong_jax.data.curation.chain import Chain

    bare = recipes.Given()
    full = recipes.Given(
        against=(tmp_path / "a",), rollouts=tmp_path / "b", rollouts_without_tools=tmp_path / "c",
        embeddings=tmp_path / "d", scorer=tmp_path / "e", seed=3)  # fmt: skip
    for recipe in recipes.RECIPES.values():
        for given in (bare, full):
            chain = Chain(stages=recipe(given))
            assert configs.from_json(configs.to_json(chain)) == chain
    with pytest.raises(ConfigError):
        recipes.get("nothing")
