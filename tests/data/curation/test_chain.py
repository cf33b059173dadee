"""Every record in exactly one bin, and nothing done twice after a kill."""

import dataclasses
import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from loong_jax.data.curation import (
    balance,
    chain,
    code_problems,
    contamination,
    datasheet,
    duplicates,
    outcomes,
    prompts,
    recipes,
    responses,
    scorer,
    semantic,
    stages,
    tool_need,
)
from loong_jax.data.curation.chain import Chain
from loong_jax.data.curation.stages import Outcome
from loong_jax.errors import ConfigError


def write_corpus(path, num=57):
    """Every seventh prompt is cut off, every fifth repeats an earlier one, one line is no JSON."""
    with open(path, "w") as file:
        for i in range(num):
            text = f"What is the sum of {i - i % 5} and {i % 5 and i % 5 - 1} in base ten?"
            record = {"id": f"r{i}", "prompt": text + (" Then the" if i % 7 == 3 else "")}
            file.write(json.dumps(record) + "\n")
            if i == 20:
                file.write("\n{broken\n")
    return path


CHAIN = Chain(stages=(prompts.Incomplete(), duplicates.Duplicates(), prompts.MultiPart()),
              chunk_records=10)  # fmt: skip


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_ends_in_one_bin(tmp_path):
    corpus = write_corpus(tmp_path / "a.jsonl")
    funnel = chain.run(CHAIN, [corpus], tmp_path / "out")
    kept, dropped = lines(tmp_path / "out/kept.jsonl"), lines(tmp_path / "out/dropped.jsonl")
    assert funnel.num_records == 58 == len(kept) + len(dropped)
    assert len(kept) == funnel.num_kept
    ids = [record.get("id") for record in kept + dropped]
    assert sorted(filter(None, ids)) == sorted(f"r{i}" for i in range(57))
    by_stage = {stage.name: stage for stage in funnel.stages}
    for name, stage in by_stage.items():
        assert sum(r["dropped_by"] == name for r in dropped) == sum(stage.reasons.values())
    assert by_stage["read"].reasons == {"no JSON object": 1}
    assert by_stage["incomplete"].reasons == {"cut off": 8}
    # Of five numbers in a row two make the same sum; where the first is cut off, the second stays.
    firsts = {i for i in range(0, 57, 5) if i % 7 != 3}
    assert {r["id"] for r in dropped if r["dropped_by"] == "duplicates"} == {
        f"r{i + 1}" for i in firsts if i + 1 < 57 and (i + 1) % 7 != 3
    }


ANSWERED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
ODD = (
    None, True, 5, 3.5, "", "\ud800 half a pair", [], [1, None], {"a": 1}, [{"role": "assistant"}],
    [{"role": "assistant", "tool_calls": 5}],
    [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[" * 100_000}]}],
)  # fmt: skip
KEYS = (
    "id", "prompt", "messages", "gold", "response", "finish_reason", "outcomes", "answers", "tests",
    "arguments", "candidates", "solution", "outcomes_with_tools", "outcomes_without_tools",
    "judgements", "source", "domain", "licence", "notes",
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(recipes.RECIPES) - {"safety"}))
def test_values_of_another_kind_stop_no_run(tmp_path, name):
    corpus = tmp_path / "a.jsonl"
    whole = {
        "prompt": "What is the sum of 3 and 4 in base ten?",
        "gold": "7",
        "response": "It is 7.",
    }
    records = [whole | {key: value} for key in KEYS for value in ODD]
    records += [{"judgements": {"correctness": value}, "messages": ANSWERED} for value in ODD]
    records += [{"tests": [{"stdin": "1", "stdout": "1"}], "candidates": value} for value in ODD]
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    settings = recipes.get(name)(recipes.Given(against=(corpus,)))
    own = Chain(stages=tuple(s for s in settings if s.name != "contamination"))
    funnel = chain.run(own, [corpus], tmp_path / "out")
    assert funnel.num_records == len(records)
    kept = tmp_path / "out/kept.jsonl"
    assert len(lines(kept)) == funnel.num_kept
    datasheet.write(tmp_path, datasheet.describe(name, kept, funnel, own.stages))


def test_what_is_nested_too_deep_to_be_written_is_no_record(tmp_path):
    corpus = tmp_path / "a.jsonl"
    deep = ['{"prompt": "What is 3 + 4?", "x": ' + "[" * n + "]" * n + "}\n" for n in (90, 400)]
    corpus.write_text("".join(deep))
    funnel = chain.run(Chain(stages=()), [corpus], tmp_path / "out")
    assert funnel.stages[0].reasons == {"no JSON object": 1}
    assert len(lines(tmp_path / "out/kept.jsonl")) == 1


def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
    corpus = write_corpus(tmp_path / "a.jsonl")
    whole = chain.run(CHAIN, [corpus], tmp_path / "whole")
    script = """
import os, signal, sys
from pathlib import Path
from loong_jax.data.curation import chain
from tests.data.curation.test_chain import CHAIN
calls = 0
def progress(names, done, total):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
chain.run(CHAIN, [Path(sys.argv[1])], Path(sys.argv[2]), progress=progress)
"""
    for at in (4, 6, 9):  # in the first pass, between passes, among the sketches of the second
        command = [sys.executable, "-c", script, str(corpus), str(tmp_path / "killed"), str(at)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    done = sorted((tmp_path / "killed/work").rglob("*.json"))
    stamps = {path: path.stat().st_mtime_ns for path in done if "pass-00" in str(path)}
    assert len(stamps) == 6
    resumed = chain.run(CHAIN, [corpus], tmp_path / "killed")
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    for name in ("kept.jsonl", "dropped.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    without_time = [dataclasses.replace(stage, cpu_s=0.0) for stage in resumed.stages]
    assert without_time == [dataclasses.replace(stage, cpu_s=0.0) for stage in whole.stages]
    assert chain.run(CHAIN, [corpus], tmp_path / "killed") == resumed
    chain.clean(tmp_path / "killed")
    assert chain.run(CHAIN, [corpus], tmp_path / "killed") == resumed
    corpus.write_text(corpus.read_text() + '{"prompt": "One more?"}\n')
    with pytest.raises(ConfigError, match="has changed"):
        chain.run(CHAIN, [corpus], tmp_path / "killed")


def test_another_chain_is_refused(tmp_path):
    corpus = write_corpus(tmp_path / "a.jsonl", 5)
    chain.run(CHAIN, [corpus], tmp_path / "out")
    other = Chain(stages=(prompts.Incomplete(min_words=9),), chunk_records=10)
    with pytest.raises(ConfigError, match="other settings"):
        chain.run(other, [corpus], tmp_path / "out")


def test_chunks_do_not_change_the_result(tmp_path):
    corpus = write_corpus(tmp_path / "a.jsonl")
    for size in (1, 7, 1000):
        chain.run(dataclasses.replace(CHAIN, chunk_records=size), [corpus], tmp_path / f"{size}")
    kept = {(tmp_path / f"{size}" / "kept.jsonl").read_bytes() for size in (1, 7, 1000)}
    assert len(kept) == 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noting:
    name: str = "noting"

    def judge(self, records):
        return Outcome({0: "first: of a chunk"}, {i: {"place": i} for i in range(1, len(records))})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    name: str = "reading"

    def sketch(self, records):
        return {"place": np.array([stages.note_of(r, "place") for r in records])}

    def decide(self, sketch):
        return Outcome(notes={int(i): {"total": len(sketch["place"])} for i in range(3)})


def test_notes_reach_later_stages_and_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(chain.configs, "open_run", lambda *_args, **_kw: [])  # stages of a test
    corpus = tmp_path / "a.jsonl"
    corpus.write_text("".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(10)))
    run = Chain(stages=(Noting(), Reading()), chunk_records=5)
    funnel = chain.run(run, [corpus], tmp_path / "out")
    kept = lines(tmp_path / "out/kept.jsonl")
    assert [record["notes"].get("place") for record in kept] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert [record["notes"].get("total") for record in kept] == [8, 8, 8] + [None] * 5
    assert funnel.stages[1].reasons == {"first": 2}


def test_array_record_and_empty_corpora(tmp_path):
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(str(tmp_path / "b.array_record"), "group_size:1")
    for line in write_corpus(tmp_path / "a.jsonl").read_bytes().splitlines():
        if line.strip():
            writer.write(line)
    writer.close()
    for name in ("a.jsonl", "b.array_record"):
        chain.run(CHAIN, [tmp_path / name], tmp_path / name.partition(".")[0])
    assert (tmp_path / "a/kept.jsonl").read_bytes() == (tmp_path / "b/kept.jsonl").read_bytes()
    (tmp_path / "none.jsonl").write_text("")
    assert chain.run(CHAIN, [tmp_path / "none.jsonl"], tmp_path / "none").num_records == 0
    assert chain.run(Chain(stages=()), [tmp_path / "a.jsonl"], tmp_path / "c").num_kept == 57


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (code_problems.CodeStatement, {"min_tests": 0}), (balance.AnswerSources, {"per_prompt": 0}),
        (balance.Stratified, {"edges": (0.5, 0.2)}),
        (balance.Stratified, {"keep": (0.1, 2.0, 1.0)}), (balance.Mixture, {"shares": {}}),
        (balance.Mixture, {"shares": {"a": 0.0}}),
        (balance.Mixture, {"shares": {"a": 1.0}, "max_copies": 0}),
        (contamination.Overlap, {"min_share": 0}), (contamination.Overlap, {"ngram": 20}),
        (contamination.Overlap, {"max_items": 0}), (duplicates.Similarity, {"threshold": 0}),
        (duplicates.Similarity, {"threshold": 1.1}), (duplicates.Similarity, {"ngram": 0}),
        (duplicates.Similarity, {"num_bands": 33}),
        (outcomes.PassRate, {"at_least": 1, "at_most": 0.5}),
        (outcomes.PassRate, {"min_attempts": 0}), (outcomes.Balanced, {"min_minority": 0.6}),
        (outcomes.MajorityVote, {"min_share": 0}), (responses.Repetition, {"max_share": 0}),
        (responses.Form, {"form": "xml"}), (scorer.ScorerConfig, {"held_out_share": 1.0}),
        (semantic.SemanticContamination, {"embedder": None, "against": ()}),
        (tool_need.ToolNecessity, {"tau_3": 0.0}),
    ],
)  # fmt: skip
def test_settings_of_stages_that_cannot_be_are_refused(kind, settings):
    with pytest.raises(ConfigError):
        kind(**settings)


def test_bad_chains_and_inputs_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="share the name"):
        Chain(stages=(prompts.MultiPart(), prompts.MultiPart()))
    with pytest.raises(ConfigError, match="chunk_records=0"):
        Chain(stages=(), chunk_records=0)
    with pytest.raises(ConfigError, match="does not exist"):
        chain.run(CHAIN, [tmp_path / "nothing.jsonl"], tmp_path / "out")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match="ends in none"):
        chain.run(CHAIN, [tmp_path / "a.txt"], tmp_path / "out")
