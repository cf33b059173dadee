"""A checkpoint as Hugging Face has it, from fine-tuning to export, by one command each.

Tiny random models with a tokenizer of 8,192 tokens: conversations, then problems with Python as a
tool, evaluation, a merge of two, export, import. Every training command is killed with SIGKILL on
its way and resumed, and what it makes is bit for bit what it makes uninterrupted.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import jax
import numpy as np
import pytest

from loong_jax import cli
from loong_jax.data import chat_records, json_files, problem_files
from loong_jax.environments import split_of
from loong_jax.merge import checkpoints
from loong_jax.models.moe.config import NgramEmbedding
from tests import xla_flags
from tests.docs import reading
from tests.doubles import tiny_hf
from tests.processes import run_python, wait_until
from tests.sweeps import thinned

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

DOCS = reading.DOCS / "tutorials/own_model.md"
VOCABULARY = 8192
FAMILIES = {
    "longcat": lambda place: tiny_hf.write_longcat(place, vocab_size=VOCABULARY, num_layers=1),
    "longcat-ngram": lambda place: tiny_hf.write_longcat(
        place,
        vocab_size=VOCABULARY,
        num_layers=1,
        ngram=NgramEmbedding(max_order=3, num_splits=2, base_rows=101),
    ),
    "qwen2": lambda place: tiny_hf.write_qwen2(place, vocab_size=VOCABULARY),
}
SMALL = [
    "--engine.num-replicas", "1", "--engine.slots-per-replica", "4", "--engine.prefill-members",
    "4", "--engine.narrow-slots", "--verifiers.num-workers", "1", "--evaluation.num-problems", "2",
    "--evaluation.samples-per-problem", "1", "--evaluation.pass-at", "0", "--max-new-tokens", "24",
]  # fmt: skip
RL = [
    "--tools", "python", "--form", "plain", "--rl.num-steps", "3", "--rl.checkpoint-every", "1",
    "--rl.scheduler.groups-per-step", "2", "--rl.scheduler.deterministic", "--rl.group-size", "4",
    "--rl.objective.reduction.group-size", "4", "--rl.rows", "4",
    "--rl.reward.malformed", "-0.5", "--rl.learns-from-all",
    "--engine.groups-per-replica", "1", "--rl.optimizer.schedule.peak", "1e-4",
]  # fmt: skip


@pytest.fixture
def place(request, tmp_path):
    FAMILIES[request.param](tmp_path / "hf")
    # It learns to say 4 or 8, of which each is right half the time: rewards differ in a group.
    chats, problems = [], []
    for n in range(60):
        first, second = ("4", "8") if n % 2 else ("8", "4")
        asked = [f"What is {n}+{n}? \u00e9\u4e8c", first, "Sure?", second]
        roles = ["user", "assistant"] * 2
        messages = [{"role": r, "content": c} for r, c in zip(roles, asked, strict=True)]
        chats.append({"messages": messages})
        problems.append({"prompt": f"What is {n}+{int(first) - n}?", "gold": first})
    json_files.write_jsonl(tmp_path / "chat.jsonl", chats)
    json_files.write_jsonl(tmp_path / "mine.jsonl", problems)
    return tmp_path


def loong(place, *words, wanted=None):
    """Runs a command to its end; with `wanted`, kills it once that file is there, and again."""
    command = ["-m", "loong_jax.cli", *map(str, words)]
    flags = {"XLA_FLAGS": xla_flags.NOT_OPTIMIZED}
    if wanted is not None:
        first = subprocess.Popen(
            [sys.executable, *command], cwd=place, env=os.environ | flags, start_new_session=True
        )
        wait_until(lambda: wanted.exists() or first.poll() is not None, 900)
        assert first.poll() is None, "it ended before it could be killed"
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    done = run_python(*command, cwd=place, timeout=3000, **flags)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def same_weights(one, other):
    a, b = (checkpoints.load_weights(path) for path in (one, other))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    return a


@pytest.mark.release
@pytest.mark.parametrize("place", FAMILIES, indirect=True)
def test_one_command_each_and_killed_in_each(place):
    sft = ["train", "sft", "--start-from", "hf", "--data", "chat.jsonl", "--sft.num-steps", "80",
           "--sft.rows", "4", "--sft.checkpoint-every", "20",
           "--sft.optimizer.schedule.peak", "3e-3", *SMALL]  # fmt: skip
    loong(place, *sft, "--run-dir", "sft")
    loong(place, *sft, "--run-dir", "sft-killed",
          wanted=place / "sft-killed/stages/sft/checkpoints/40")  # fmt: skip
    same_weights(place / "sft/stages/sft", place / "sft-killed/stages/sft")

    rl = ["train", "rl", "--start-from", "sft", "--problems", "mine.jsonl", *RL, *SMALL]
    loong(place, *rl, "--run-dir", "rl")
    loong(place, *rl, "--run-dir", "rl-killed", wanted=place / "rl-killed/stages/rl/checkpoints/2")
    trained = same_weights(place / "rl/stages/rl", place / "rl-killed/stages/rl")
    before = checkpoints.load_weights(place / "sft/stages/sft")
    moved = jax.tree.map(lambda a, b: bool((np.asarray(a) != np.asarray(b)).any()), trained, before)
    assert any(jax.tree.leaves(moved))
    loong(place, *rl, "--run-dir", "rl-other", "--seed", "1")

    shown = loong(place, "eval", "rl", "--problems", "mine.jsonl", "--samples", "1", "--k", "1",
                  "--max-new-tokens", "8")  # fmt: skip
    assert "left out; --all-problems poses them" in shown
    loong(place, "merge", "ties", "--base", "sft/stages/sft", "--experts", "rl/stages/rl",
          "rl-other/stages/rl", "--names", "one", "other", "--output", "merged")  # fmt: skip
    loong(place, "eval", "merged", "--problems", "mine.jsonl", "--num-problems", "2", "--samples",
          "1", "--k", "1", "--max-new-tokens", "8")  # fmt: skip
    loong(place, "export-hf", "merged", "exported")
    files = {path.name for path in (place / "exported").iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= files
    published = json.loads((place / "hf/config.json").read_text())
    assert json.loads((place / "exported/config.json").read_text()) == published
    loong(place, "import-hf", "exported", "imported")
    same_weights(place / "merged", place / "imported")


def test_the_tutorials_files_pose_distinct_problems_that_no_conversation_answers(tmp_path):
    for written in re.findall(r"<<'END'\n(.*?)END", DOCS.read_text(), re.DOTALL):
        subprocess.run([sys.executable, "-c", written], cwd=tmp_path, check=True)
    for name in ("sums", "mine"):
        found = problem_files.read(tmp_path / f"{name}.jsonl")
        assert (len(found.problems), found.num_repeated) == (1000, 0)
        sides = Counter(split_of(problem.canonical) for problem in found.problems)
        assert min(sides.values()) > 64
    chats = json_files.read_jsonl(tmp_path / "chat.jsonl")
    assert not {c["prompt"] for c in chats} & {p.prompt for p in found.problems}
    assert len(chat_records.read(tmp_path / "chat.jsonl")) == 300


@pytest.mark.parametrize("place", thinned(FAMILIES, list(FAMILIES).index("qwen2")), indirect=True)
def test_the_tutorial_runs_as_printed(place, monkeypatch):
    """Save that its training is cut short by overrides."""
    blocks = re.findall(r"```\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "--start-from $MODEL" in block)
    short = {
        ("train", "sft"): ["--sft.num-steps", "2", "--sft.rows", "2", *SMALL],
        ("train", "rl"): ["--rl.num-steps", "1", *RL[6:], *SMALL],
    }
    monkeypatch.chdir(place)
    for line in example.splitlines()[1:]:
        _, *words = line.replace("$MODEL", "hf").split()
        more = reading.EVAL if words[0] == "eval" else short.get(tuple(words[:2]), [])
        assert cli.main([*words, *more]) == 0
    assert (place / "exported/tokenizer.json").exists()
