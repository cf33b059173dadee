"""Problems of one's own in a run: on which side of the split, in which order, worked out how."""

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loong_jax import configs, remote
from loong_jax.data import json_files, problem_files
from loong_jax.data.problem_files import Posed, ProblemFile
from loong_jax.errors import ConfigError
from loong_jax.merge import published
from loong_jax.problems import response
from loong_jax.problems.problem import Problem, split_of
from loong_jax.recipes import FileProblems, ProblemSource, Recipe, RlStage, SftStage
from loong_jax.remote import AnyPath, RemotePath
from loong_jax.run import pipeline
from loong_jax.run.texts import Texts
from loong_jax.verifiers import own_table

COPY = "problems.jsonl"  # in the run directory: the file as the run began with it
MAX_NAMED = 8  # lines that one error names


def read(settings: FileProblems) -> ProblemFile:
    """Raises ConfigError where there is no file, or where lines of it are no problems."""
    if settings.file is None:
        raise ConfigError(
            "this recipe needs problems. Give --problems FILE.jsonl; "
            "docs/tutorials/own_problems.md says what the file holds."
        )
    status = settings.file.stat() if settings.file.exists() else None
    changed = None if status is None else (status.st_mtime_ns, status.st_size)
    return _read(settings.file, settings.verifiers, changed)


@functools.lru_cache(maxsize=4)
def _read(path: Path, own: tuple[str, ...], changed: object) -> ProblemFile:
    return problem_files.read(path, own)


def verifiers_of(problems: ProblemSource | None) -> dict[str, str]:
    """Verifiers of your own that problems may name: `table` of `verifiers.get_verifier`."""
    return own_table(problems.verifiers) if isinstance(problems, FileProblems) else {}


def refuse_other(settings: FileProblems, run_dir: Path) -> None:
    """ConfigError where the run began with another file."""
    copy, found = run_dir / COPY, _text(settings)
    pipeline.refuse_other(
        run_dir,
        settings.file,
        began=_described(copy.read_text(encoding="utf-8")) if copy.exists() else None,
        found=_described(found),
        remedy=f"Give --problems {copy} to go on",
    )


def keep_copy(settings: FileProblems, run_dir: Path) -> None:
    """Copies the problems into the run's directory; `refuse_other` compares with the copy."""
    if not (run_dir / COPY).exists():
        json_files.write_text(run_dir / COPY, _text(settings))


def _text(settings: FileProblems) -> str:
    read(settings)  # says what is wrong where there is none
    return Path(settings.file or "").read_text(encoding="utf-8")


def _described(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"a file of {len(text.splitlines())} lines and digest {digest}"


# ---- sides --------------------------------------------------------------------------------------


def side(settings: FileProblems, domain: str, split: str) -> list[Posed]:
    """The file's problems of a domain on one side of the split, in an order that says nothing."""
    share, of_domain = settings.held_out_share, read(settings).posed
    found = [
        one
        for one in of_domain
        if one.problem.domain == domain and split_of(one.problem.canonical, share) == split
    ]
    return sorted(found, key=lambda one: (one.problem.canonical, one.problem.uid))


def domains(settings: FileProblems) -> tuple[str, ...]:
    """The domains with problems to train on. ConfigError where none has, or none is held out."""
    named = read(settings).by_domain()
    trained = tuple(domain for domain in named if side(settings, domain, "train"))
    held_out = (side(settings, domain, s) for domain in trained for s in ("test", "validation"))
    if not any(held_out):
        raise ConfigError(
            f"{settings.file} holds {len(read(settings).posed)} problems, and with held_out_share="
            f"{settings.held_out_share} none is left to "
            f"{'test with' if trained else 'train on'}. Add problems, or change "
            "--problems.held-out-share."
        )
    return trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """Endless examples: all of `given` again and again, each time in another order.

    `pair_at(number)` is a pure function of the number, so iterating twice gives the same pairs.
    """

    given: tuple[Any, ...]
    seed: int

    def __iter__(self) -> Iterator[Any]:
        return map(self.pair_at, itertools.count())

    def pair_at(self, number: int) -> Any:
        """Example `number`, counted from 0."""
        turn, place = divmod(number, len(self.given))
        return self.given[_order(len(self.given), self.seed, turn)[place]]


class FileStream(Pairs):
    """Problems of a file, the same way."""

    problem_at = Pairs.pair_at

    @classmethod
    def of(cls, settings: FileProblems, domain: str, split: str, seed: int) -> "FileStream":
        return cls(given=tuple(one.problem for one in side(settings, domain, split)), seed=seed)

    def take_distinct(self, count: int) -> list[Problem]:
        """The first `count`, or all where there are fewer."""
        return list(self.given[:count])


@functools.lru_cache(maxsize=16)
def _order(count: int, seed: int, turn: int) -> np.ndarray:
    return np.random.default_rng((seed, 2, turn)).permutation(count)


# ---- worked solutions ---------------------------------------------------------------------------


def solutions(settings: FileProblems, seed: int, texts: Texts) -> Pairs:
    """Worked solutions of problems to train on. ConfigError where the file has none."""
    found = tuple(
        (posed.problem if posed.messages else posed.problem.prompt, in_form(posed.solution, texts))
        for domain in domains(settings)
        for posed in side(settings, domain, "train")
        if posed.solution is not None
    )
    if not found:
        raise ConfigError(
            f"no problem of {settings.file} that is trained on has a solution, from which a cold "
            "start could learn. Write some, or give --start-from a model that answers already."
        )
    return Pairs(given=found, seed=seed)


def in_form(solution: str, texts: Texts) -> str:
    """A solution, which files hold in LongCat's tags, as the model is to write it."""
    thinking, answer, *_ = response.read(solution)
    return texts.render(thinking, answer)


# ---- fitting the recipe -------------------------------------------------------------------------


def refuse_misfit(recipe: Recipe, texts: Texts) -> None:
    """Raises ConfigError where there is nothing to measure on.

    And by line for what has no tokens or is too long for the recipe.
    """
    problems = recipe.problems
    assert isinstance(problems, FileProblems)
    named, held_out = domains(problems), recipe.evaluation.side
    if not any(side(problems, domain, held_out) for domain in named):
        raise ConfigError(
            f"{problems.file} holds no problem on the {held_out} side of its split, and "
            f"evaluation.side={held_out} measures there. Add problems, raise "
            "--problems.held-out-share, or change --evaluation.side."
        )
    limit, row_length, remedy = _room(recipe)
    bad: list[tuple[Posed, str]] = []
    for one in read(problems).posed:
        if one.problem.domain not in named:
            continue
        try:
            num_tokens, pair = len(texts.prompt(one.problem)), 0
            if one.solution is not None and row_length is not None:
                example = texts.example((one.problem.prompt, in_form(one.solution, texts)))
                pair = len(example["tokens"])
        except ValueError as error:
            bad.append((one, f"cannot be written in tokens: {error}"))
            continue
        if num_tokens > limit:
            room = f"beside a response there is room for {limit}. {remedy}"
            bad.append((one, f"has a prompt of {num_tokens} tokens, and {room}"))
        if row_length is not None and pair > row_length:
            room = f"sft.row_length is {row_length}. Raise it, or shorten the solution"
            bad.append((one, f"has {pair} tokens of prompt and solution, and {room}"))
    refuse_lines(problems, bad)


def _room(recipe: Recipe) -> tuple[int, int | None, str]:
    """Tokens that there are for a prompt, and for a prompt with its solution where these are read.

    What a recipe leaves open (0) bounds nothing. Last, what to do about a prompt that is longer.
    """
    cache = recipe.engine.cache_length or math.inf
    rooms: list[float] = [cache - recipe.evaluation.sampling.max_new_tokens]
    row_length = None
    for stage in recipe.stages.values():
        if isinstance(stage, RlStage):
            row = stage.row_length or math.inf
            rooms.append(min(cache, row) - stage.sampling.max_new_tokens)
        if isinstance(stage, SftStage) and stage.samples_of is None and stage.row_length:
            row_length = min(stage.row_length, row_length or stage.row_length)
    answer, longest = recipe.max_new_tokens, recipe.model.max_position
    positions = longest - (recipe.evaluation.sampling.max_new_tokens if answer is None else answer)
    if positions < min(rooms):
        return positions, row_length, f"The model has {longest} positions: lower --max-new-tokens"
    return int(min(rooms)), row_length, "Raise --engine.cache-length and --rl.row-length"


def refuse_lines(settings: FileProblems, bad: Sequence[tuple[Posed, str]]) -> None:
    """ConfigError that names the first bad lines; nothing where there is none."""
    if bad:
        lines = [f"line {posed.line} of {settings.file} {what}." for posed, what in bad[:MAX_NAMED]]
        if len(bad) > MAX_NAMED:
            lines.append(f"({len(bad) - MAX_NAMED} more bad lines)")
        raise ConfigError("\n".join(lines))


def recipes_of(directory: AnyPath) -> list[Recipe]:
    """The recipe of a run, or of the run that a stage belongs to; of a merge those of what it is
    of, its base first. Empty for any other directory.
    """
    if isinstance(directory, RemotePath):
        return []
    for run_dir in (directory, *directory.resolve().parents[:2]):
        if (run_dir / "config.json").exists() and (run_dir / "stages").is_dir():
            return [as_kept(configs.load(run_dir), run_dir)]
    if not (directory / published.REPORT).exists():
        return []
    report = json_files.read_json(directory / published.REPORT)
    merged = map(remote.located, (report["base"], *report["sources"].values()))
    return [recipe for source in merged for recipe in recipes_of(source)]


def as_kept(recipe: Recipe, run_dir: Path) -> Recipe:
    """The recipe of a run, with the copy of its problems that the run directory holds."""
    if isinstance(recipe.problems, FileProblems) and (run_dir / COPY).exists():
        kept = dataclasses.replace(recipe.problems, file=run_dir / COPY)
        return dataclasses.replace(recipe, problems=kept)
    return recipe
