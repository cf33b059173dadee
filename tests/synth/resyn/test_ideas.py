"""Keywords come from people, and are compared with what will be evaluated."""

import json

import pytest

from loong_jax.errors import ConfigError
from loong_jax.synth.resyn import ideas


def test_files_of_keywords(tmp_path):
    (tmp_path / "a.txt").write_text("Binary search  # a comment\n\n# none\nsorting\nSORTING\n")
    assert ideas.read(tmp_path / "a.txt") == ["binary search", "sorting"]
    (tmp_path / "c.txt").write_text("sudoku\n", encoding="utf-8-sig")
    assert ideas.read(tmp_path / "c.txt") == ["sudoku"]
    (tmp_path / "b.json").write_text('["graph  colouring", "sets"]')
    assert ideas.read(tmp_path / "b.json") == ["graph colouring", "sets"]


@pytest.mark.parametrize("text", ["", "# none\n", "x" * 200])
def test_what_is_no_list_of_keywords_is_refused(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ConfigError):
        ideas.read(tmp_path / "a.txt")
    (tmp_path / "b.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="no list"):
        ideas.read(tmp_path / "b.json")


def test_names_of_evaluated_tasks_are_found():
    rows = ideas.audit(["Web of lie", "word sorting", "sorting", "sudoku"], {})
    named = {row["keyword"]: row["names_tasks"] for row in rows}
    assert named["Web of lie"] == ["BBH: web of lies", "BBEH: web of lies"]
    assert named["sorting"] == []
    assert [row["keyword"] for row in rows if row["names_tasks"]] == [
        "Web of lie",
        "word sorting",
        "sudoku",
    ]


def test_texts_of_evaluation_sets_are_counted(tmp_path):
    path = tmp_path / "set.jsonl"
    texts = ["How many apples does Ann have in her small red basket?", "A graph\u2028colouring."]
    rows = [json.dumps({"question": text}, ensure_ascii=False) + "\n" for text in texts]
    path.write_text("".join(rows), encoding="utf-8")
    sets = {"set": ideas.read_texts(path)}
    (row, other) = ideas.audit(["graph colouring", "graph"], sets)
    assert (row["in_texts"], other["in_texts"]) == ({"set": 1}, {"set": 1})
    asked = ["So: how many apples does Ann have in her small purse?", "How many apples are left?"]
    assert ideas.shared_runs(asked, sets) == {"set": 1}
    path.write_text('{"answer": 1}\n')
    with pytest.raises(ConfigError, match="line 1"):
        ideas.read_texts(path)
