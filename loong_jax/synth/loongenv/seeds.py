"""Seeds in LoongBench's schema: questions with a program that answers them.

As published: one JSON array per domain (`<domain>/seed_dataset.json`), or JSON lines. A row has
question, final_answer, rationale (the program) and metadata: license, domain,
required_dependencies, answer_tolerance and more.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.errors import ConfigError, VerifierError
from loong_jax.problems.problem import split_of
from loong_jax.verifiers.judge.client import content_hash
from loong_jax.verifiers.loongbench import domains
from loong_jax.verifiers.loongbench.rationales import package_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seed:
    id: str
    domain: str  # a name of verifiers.loongbench.domains
    question: str
    gold: str
    code: str
    packages: tuple[str, ...]  # names alone
    licence: str
    tolerance: float = 0.0

    @property
    def is_held_out(self) -> bool:
        """True for a fifth of all seeds, which no author ever sees, by a hash of the question."""
        return split_of(f"loongenv:{' '.join(self.question.split())}") != "train"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedSet:
    by_domain: Mapping[str, tuple[Seed, ...]]
    skipped: Mapping[str, int]  # why rows were left out -> how many

    def shown(self, domain: str) -> list[Seed]:
        return [seed for seed in self.by_domain[domain] if not seed.is_held_out]

    def held_out(self, domain: str) -> list[Seed]:
        return [seed for seed in self.by_domain[domain] if seed.is_held_out]


def load(paths: Sequence[Path]) -> SeedSet:
    """All rows of files and directories, each question once, in the order of names and lines.

    ConfigError for a path without rows. Rows without question, program or answer are counted.
    """
    found: dict[str, Seed] = {}
    skipped: Counter[str] = Counter()
    for path in paths:
        num_before = len(found) + skipped.total()
        for file in _files(path):
            for number, row in enumerate(_rows(file)):
                seed = _seed(row, f"{file.parent.name}/{file.stem}/{number:04d}")
                if isinstance(seed, str):
                    skipped[seed] += 1
                elif " ".join(seed.question.split()) in found:
                    skipped["asked before"] += 1
                else:
                    found[" ".join(seed.question.split())] = seed
        if len(found) + skipped.total() == num_before:
            raise ConfigError(f"{path} holds no seeds. Name .json or .jsonl files of LoongBench.")
    by_domain: dict[str, list[Seed]] = {}
    for seed in found.values():
        by_domain.setdefault(seed.domain, []).append(seed)
    return SeedSet(
        by_domain={name: tuple(seeds) for name, seeds in sorted(by_domain.items())},
        skipped=dict(skipped),
    )


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise ConfigError(f"{path} does not exist. Name files or directories of seeds.")
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*.json*")
        if file.suffix in (".json", ".jsonl") and file.name.lower() != "manifest.json"
    )


def _rows(file: Path) -> Iterable[Any]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            rows = json.loads(text)
            return rows if isinstance(rows, list) else [rows]
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as seeds: {error}. Mend or remove it.") from None


def _seed(row: Any, place: str) -> Seed | str:
    if not isinstance(row, Mapping):
        return "no object"
    try:
        read = domains.read_row(row)
    except VerifierError as error:
        return str(error).partition("=")[0]
    if not read.question.strip():
        return "no question"
    if not read.rationale.strip():
        return "no program"
    metadata = row.get("metadata") or {}
    return Seed(
        id=str(row.get("uid") or row.get("id") or place),
        domain=read.domain.name,
        question=read.question.strip(),
        gold=read.gold,
        code=read.rationale,
        packages=tuple(sorted({package_name(name) for name in read.packages} - {""})),
        licence=str(metadata.get("license") or "unknown"),
        tolerance=read.tolerance,
    )


def digest(seeds: SeedSet) -> str:
    return content_hash(
        [dataclasses.astuple(seed) for found in seeds.by_domain.values() for seed in found]
    )
