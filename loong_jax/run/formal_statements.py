"""The statements of `loong synth formal`: drawn, told in words, formalised by an author, proved."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.synth import opening
from loong_jax.synth.formal import formalise, propositional
from loong_jax.synth.formal.backends import Backend
from loong_jax.synth.formal.expert_iteration import Goal, Solution
from loong_jax.synth.formal.problems import Theorems
from loong_jax.synth.formal.statement import Statement
from loong_jax.verifiers.judge.client import Budget


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatementSettings:
    """How many statements of which kind, and who formalises them."""

    theorems: Theorems = dataclasses.field(default_factory=Theorems)
    num_problems: int = 1500  # told in words: for the cold start and the pool
    num_held_out: int = 200  # that measure, and never train
    cold_start_nodes: int = 5  # the largest proof that the search for the cold start may find
    author: str = "none"  # an address that ends in /v1, or "none": statements as they are drawn
    model: str = ""  # the name the endpoint knows

    def __post_init__(self):
        for name in ("num_problems", "num_held_out", "cold_start_nodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1. Raise it.")


class Statements(NamedTuple):
    """No two of all these are kin. `funnel` says where problems in words ended."""

    cold_start: list[Solution]
    pool: list[Goal]
    held_out: list[Goal]
    funnel: dict[str, int]


def make(settings: StatementSettings, directory: Path, backend: Backend, seed: int) -> Statements:
    """Statements of all three kinds. What an author said is kept in `directory`."""
    rng = np.random.default_rng(seed)
    drawn = _draw(settings, rng)
    held_out = [propositional.goal_of(*one) for one in drawn[: settings.num_held_out]]
    rest = drawn[settings.num_held_out :]
    funnel: dict[str, int] = {}
    if settings.author != "none":
        kin = {goal.kin for goal in held_out}
        rest, funnel = _formalised(rest, kin, settings, directory, backend, rng, seed)
    posed = [(statement, propositional.goal_of(statement, size)) for statement, size in rest]
    proved = propositional.cold_start(posed, settings.cold_start_nodes)
    if not proved:
        raise ConfigError(
            f"the search proves none of {len(posed)} statements. Raise cold_start_nodes or "
            "num_problems."
        )
    known = {solution.goal.uid for solution in proved}
    pool = [goal for _, goal in posed if goal.uid not in known]
    return Statements(proved, pool, held_out, funnel)


def _draw(settings: StatementSettings, rng: np.random.Generator) -> list[tuple[Statement, int]]:
    drawn: dict[str, tuple[Statement, int]] = {}
    wanted = settings.num_held_out + settings.num_problems
    for _ in range(100 * wanted):
        if len(drawn) == wanted:
            return list(drawn.values())
        posed, size = settings.theorems.draw(rng)
        drawn.setdefault(posed.kin, (posed, size))
    raise ConfigError(
        f"there are too few different theorems of at most {settings.theorems.max_size} steps for "
        f"{wanted} statements. Ask for fewer, or raise max_size."
    )


def _formalised(
    drawn: Sequence[tuple[Statement, int]],
    held_out_kin: Collection[str],
    settings: StatementSettings,
    directory: Path,
    backend: Backend,
    rng: np.random.Generator,
    seed: int,
) -> tuple[list[tuple[Statement, int]], dict[str, int]]:
    """What the author made of the problems, where it is kept; the funnel."""
    directory.mkdir(parents=True, exist_ok=True)
    problems = [formalise.told(posed, rng) for posed, _ in drawn]
    opened = opening.open_author(
        directory,
        opening.endpoint_of(settings.author, settings.model),
        settings={},
        budget=Budget(),
        max_parallel=16,
    )
    with opened as author:
        made = formalise.formalise(problems, author, backend, seed=seed)
    made = formalise.without_kin(made, held_out_kin)
    json_files.write_jsonl(directory / "formalised.jsonl", [one.record() for one in made])
    # What goes on are the author's own words for it, not what they were meant to say.
    kept = [
        (one.statement, size)
        for one, (_, size) in zip(made, drawn, strict=True)
        if one.is_kept and one.statement is not None
    ]
    return kept, formalise.funnel(made)
