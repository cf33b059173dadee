"""The files of a run: candidates, items with their transcripts, problems to train on."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.problems.problem import Domain
from loong_jax.synth.authors import CallStore
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.synth.loongenv.run import Made
from loong_jax.synth.loongenv.seeds import Seed, SeedSet

NUM_LEVELS = 5
_ROOMS: dict[str, Domain] = {"logic": "logic", "programming": "code"}  # of others: stem


def write(
    directory: Path, made: Made, seeds: SeedSet, domains: Iterable[str], calls: CallStore,
    author: str,
) -> None:  # fmt: skip
    """Writes all files anew. Their bytes depend on settings, seeds and replies alone."""
    by_id = {seed.id: seed for found in seeds.by_domain.values() for seed in found}
    kept = made.kept
    files: dict[str, Iterable[dict[str, Any]]] = {
        "candidates": map(dataclasses.asdict, made.candidates),
        "items": (item(one, by_id, calls) for one in kept),
        "problems": (problem(one, by_id, author) for one in kept),
        "solutions": (line for one in kept for line in solutions(one)),
        "held_out": (held_out(seed) for name in domains for seed in seeds.held_out(name)),
    }
    for name, lines in files.items():
        json_files.write_jsonl(directory / f"{name}.jsonl", lines)


def problem(one: Candidate, seeds: Mapping[str, Seed], author: str) -> dict[str, Any]:
    """A line of problems.jsonl, in the format of data/problem_files."""
    return {
        "id": one.id,
        "prompt": one.question,
        "gold": one.answer,
        "verifier": "loongbench",
        "arguments": {"domain": one.domain},
        "domain": _ROOMS.get(one.domain, "stem"),
        "level": level(one),
        "origin": f"loongenv/{one.strategy}, author {author}",
        "licence": licence(one, seeds),
    }


def held_out(seed: Seed) -> dict[str, Any]:
    """A seed that no author saw, as a problem to measure on."""
    tolerance = {"tolerance": seed.tolerance} if seed.tolerance else {}
    return {
        "id": seed.id,
        "prompt": seed.question,
        "gold": seed.gold,
        "verifier": "loongbench",
        "arguments": {"domain": seed.domain, **tolerance},
        "domain": _ROOMS.get(seed.domain, "stem"),
        "origin": "loongbench, held out",
        "licence": seed.licence,
    }


def item(one: Candidate, seeds: Mapping[str, Seed], calls: CallStore) -> dict[str, Any]:
    """A kept candidate with everything that was said about it."""
    transcripts = [calls.get(key) for key in one.calls]
    return {
        **dataclasses.asdict(one),
        "accuracy": one.accuracy,
        "level": level(one),
        "licence": licence(one, seeds),
        "transcripts": [said for said in transcripts if said is not None],
    }


def solutions(one: Candidate) -> list[dict[str, Any]]:
    """The accepted chains of thought, each reasoning once."""
    right = {a.reasoning: a for a in one.attempts if a.verdict == "correct"}
    known = {"id": one.id, "prompt": one.question}
    return [known | {"thinking": a.reasoning, "answer": a.answer} for a in right.values()]


def level(one: Candidate) -> int:
    """1 where every attempt was right, 5 where hardly one was."""
    return 1 + round((NUM_LEVELS - 1) * (1 - (one.accuracy or 0.0)))


def licence(one: Candidate, seeds: Mapping[str, Seed]) -> str:
    """The licences of the seeds that were shown, since an item may stay close to them."""
    return " AND ".join(sorted({seeds[name].licence for name in one.seeds}))
