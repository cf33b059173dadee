"""Keywords, and the audit that keeps evaluation sets out of them.

ReSyn drew its keywords from problems of the benchmarks it was then judged on. Here they come from a
person, as texts or a file, and are compared with what will be evaluated: names of known benchmark
tasks, and the texts of evaluation sets that are given. Questions of the environments that were made
are compared too, by runs of words.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.data.json_files import BadLine
from loong_jax.errors import ConfigError

MAX_KEYWORD_CHARS = 60
NGRAM = 8  # words that stand alike in a question and in an evaluation text
_TEXT_KEYS = ("question", "prompt", "problem", "input", "text")

# Tasks of benchmarks that results on reasoning are reported on, as their authors name them.
KNOWN_TASKS: Mapping[str, tuple[str, ...]] = {
    "BBH": (
        "boolean expressions", "causal judgement", "date understanding", "disambiguation qa",
        "dyck languages", "formal fallacies", "geometric shapes", "hyperbaton",
        "logical deduction", "movie recommendation", "multistep arithmetic", "navigate",
        "object counting", "penguins in a table", "reasoning about colored objects", "ruin names",
        "salient translation error detection", "snarks", "sports understanding",
        "temporal sequences", "tracking shuffled objects", "web of lies", "word sorting",
    ),
    "BBEH": (
        "boardgame qa", "boolean expressions", "buggy tables", "causal understanding",
        "disambiguation qa", "dyck languages", "geometric shapes", "hyperbaton", "linguini",
        "movie recommendation", "multistep arithmetic", "nycc", "object counting",
        "object properties", "sarc triples", "shuffled objects", "spatial reasoning", "sportqa",
        "temporal sequence", "time arithmetic", "web of lies", "word sorting", "zebra puzzles",
    ),
    "KOR-Bench": ("operation", "logic", "cipher", "puzzle", "counterfactual"),
    "ZebraLogic": ("zebra puzzles", "zebra logic"),
    "Sudoku-Bench": ("sudoku",),
}  # fmt: skip


def read(path: Path) -> list[str]:
    """Keywords of a file: one a line, `#` begins a comment; or a JSON list of texts."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [line.partition("#")[0] for line in text.splitlines()]
        words = json.loads(text) if path.suffix == ".json" else lines
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as keywords: {error}. Name another file."
        ) from None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{path} holds no list of texts. Write one keyword a line.")
    return cleaned(words)


def cleaned(words: Iterable[str]) -> list[str]:
    """Keywords in order, each once; ConfigError for none, or one that is a whole text."""
    found = list(dict.fromkeys(" ".join(word.split()).lower() for word in words if word.strip()))
    if not found:
        raise ConfigError("there is no keyword. Give at least one.")
    if long := [word for word in found if len(word) > MAX_KEYWORD_CHARS]:
        raise ConfigError(
            f"keyword {long[0][:80]!r} has more than {MAX_KEYWORD_CHARS} characters. A keyword is "
            "a few words, not a problem."
        )
    return found


def read_texts(path: Path) -> list[str]:
    """Texts of an evaluation set: JSON lines with a question, prompt, problem, input or text."""

    def text(record: dict[str, Any], _: int) -> str:
        key = next((key for key in _TEXT_KEYS if key in record), None)
        if key is None:
            raise BadLine(f"has none of the keys {', '.join(_TEXT_KEYS)}. Name what it asks so")
        return str(record[key])

    return json_files.read_lines(path, text, noun="text")


def audit(words: Sequence[str], sets: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Per keyword: tasks of known benchmarks it names, and how many texts of each set hold it."""
    bags = {name: [_words(text) for text in texts] for name, texts in sets.items()}
    return [
        {
            "keyword": word,
            "names_tasks": _named(word),
            "in_texts": {
                name: sum(_holds(bag, _words(word)) for bag in texts)
                for name, texts in bags.items()
            },
        }
        for word in words
    ]


def shared_runs(questions: Sequence[str], sets: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """By set, how many questions share a run of `NGRAM` words with one of its texts."""
    found = {}
    for name, texts in sets.items():
        known = {run for text in texts for run in _runs(text)}
        found[name] = sum(any(run in known for run in _runs(question)) for question in questions)
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _named(word: str) -> list[str]:
    mine = [_singular(part) for part in _words(word)]
    return [
        f"{bench}: {task}"
        for bench, tasks in KNOWN_TASKS.items()
        for task in tasks
        if [_singular(part) for part in _words(task)] == mine
    ]


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def _holds(bag: Sequence[str], word: Sequence[str]) -> bool:
    count = len(word)
    return any(list(bag[i : i + count]) == list(word) for i in range(len(bag) - count + 1))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)}
