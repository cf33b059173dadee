"""Loong's question in miniature: RL on LoongEnv's problems, SFT on them, or neither.

The seeds are of a short family of the scripted author's own world, which a tiny model can learn. A
fifth of them no author sees; these are measured on. The cold start is taught worked seeds.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.bench.short_runs.running import Say
from loong_jax.bench.synth import settings
from loong_jax.bench.synth.runs import Arm
from loong_jax.bench.synth.settings import HELD_OUT_SHARE, LOONGENV, LoongSize
from loong_jax.data import json_files, problem_files
from loong_jax.data.response import NUM_MARKS, parse_response, render_response
from loong_jax.environments.problem import split_of
from loong_jax.errors import ConfigError
from loong_jax.launch.recipe import Recipe
from loong_jax.synth.loongenv import command, outputs, seeds
from loong_jax.synth.loongenv.command import LoongEnvOptions
from loong_jax.synth.scripted import families, world

FAMILY = families.CARDS
DOMAIN = FAMILY.domain  # of LoongBench
HURRIED = "~"  # a thought in which no value is written
DRAWS_PER_SEED = 20
Line = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Material:
    """Lines of files of problems."""

    worked: tuple[Line, ...]  # shown seeds with solutions
    synthetic: tuple[Line, ...]  # LoongEnv's items with solutions
    seeds: tuple[Line, ...]  # as many shown seeds as there are items, without solutions
    tests: tuple[Line, ...]  # held-out seeds
    left_out: int  # items too long for the model

    def about(self) -> dict[str, int]:
        return {
            "worked_seeds": len(self.worked),
            "synthetic_problems": len(self.synthetic),
            "seeds_in_rl": len(self.seeds),
            "held_out_seeds": len(self.tests),
            "items_left_out_as_too_long": self.left_out,
        }


def make_items(out: Path, size: LoongSize, say: Say) -> Path:
    """Problems by LoongEnv with the scripted author, over HTTP, once; goes on where it stopped."""
    file = out.parent / "seeds.jsonl"
    if not (out / "summary.json").exists():
        say("writing problems: loong synth loongenv with the scripted author, once")
        json_files.write_jsonl(file, rows(size.seeds))
        options = LoongEnvOptions(
            out=out, seeds=(file,), endpoint="scripted", domains=(DOMAIN,), items=size.items,
            num_attempts=2, cpu_s=2.0,
        )  # fmt: skip
        if command.main(options):
            raise ConfigError(f"the problems in {out} are not complete. Run the bench again.")
    return out


def rows(count: int) -> list[dict[str, Any]]:
    """`count` different seeds in LoongBench's schema; ConfigError where there are not so many."""
    rng, found = random.Random(0), {}
    for _ in range(DRAWS_PER_SEED * count):
        puzzle = world.draw(DOMAIN, rng, family=FAMILY)
        metadata = {"license": "Apache-2.0", "domain": DOMAIN, "required_dependencies": []}
        found.setdefault(
            puzzle.question,
            {"question": puzzle.question, "final_answer": puzzle.truth,
             "rationale": puzzle.program(), "metadata": metadata},
        )  # fmt: skip
        if len(found) == count:
            return list(found.values())
    raise ConfigError(f"size.loong.seeds={count} is more than there are: {len(found)}. Lower it.")


def worked(question: str) -> str:
    """A whole response to a seed; by a hash of the question, half of them write every value.

    Those think in the words of the scripted solver, and so of what LoongEnv keeps as solutions.
    """
    puzzle = world.read(question)
    if puzzle is None or puzzle.family.thought is None:
        raise ValueError(f"{question!r:.80} is no seed of the kind that can be worked here.")
    is_careful = random.Random(question).random() < 0.5
    thinking = puzzle.family.thought(puzzle.values) if is_careful else HURRIED
    return render_response(thinking, puzzle.truth)


def material(out: Path, size: LoongSize) -> Material:
    """What `make_items` made, on the sides of the split that it is used on."""
    found = seeds.load([out.parent / "seeds.jsonl"])
    shown = [_plain(outputs.held_out(seed)) for seed in found.shown(DOMAIN)]
    held_out = [_plain(outputs.held_out(seed)) for seed in found.held_out(DOMAIN)]
    trained = [line for line in shown if _side(line) == "train" and _fits(line)]
    tests = [line for line in held_out if _side(line) == "test" and _fits(line)][: size.tests]
    items = _items(out)
    synthetic = [line for line in items if _side(line) == "train" and _fits(line)]
    taught = trained[: size.demonstrations]
    if not synthetic or not tests or len(trained) < len(synthetic):
        raise ConfigError(
            f"{len(synthetic)} problems to train on, {len(trained)} seeds and {len(tests)} "
            "held-out seeds are too few. Raise size.loong.items and size.loong.seeds."
        )
    return Material(
        worked=tuple(line | {"solution": worked(line["prompt"])} for line in taught),
        synthetic=tuple(synthetic),
        seeds=tuple(trained[-len(synthetic) :]),
        tests=tuple(tests),
        left_out=sum(not _fits(line) for line in items),
    )


def _plain(line: Mapping[str, Any]) -> Line:
    return dict(line) | {"origin": "the scripted author's world"}


def _items(out: Path) -> list[Line]:
    """Kept items, each with one of the chains of thought that were accepted."""
    thoughts = {one["id"]: one for one in reversed(json_files.read_jsonl(out / "solutions.jsonl"))}
    return [
        line | {"solution": render_response(thoughts[line["id"]]["thinking"], line["gold"])}
        for line in json_files.read_jsonl(out / "problems.jsonl")
        if line["id"] in thoughts
    ]


def _side(line: Mapping[str, Any]) -> str:
    return split_of(problem_files.canonical(line["prompt"]), HELD_OUT_SHARE)


def _fits(line: Mapping[str, Any]) -> bool:
    """Whether prompt and solution are ASCII and short enough."""
    solution = parse_response(line["solution"]) if "solution" in line else None
    texts = [line["prompt"], *(solution or ())]
    num_written = NUM_MARKS + sum(map(len, solution or ()))
    is_short = len(line["prompt"]) < LOONGENV.prompt and num_written <= LOONGENV.response
    return is_short and all(text.isascii() for text in texts)


def cold_start(directory: Path, found: Material, size: LoongSize) -> Recipe:
    return _recipe(directory / "cold_start.jsonl", found.worked, found, size)(0)


def arms(directory: Path, found: Material, size: LoongSize) -> list[Arm]:
    """Three ways to go on from the cold start, with equal steps and equally many problems."""
    synthetic = _recipe(directory / "synthetic.jsonl", found.synthetic, found, size)
    only_seeds = _recipe(directory / "seeds_alone.jsonl", found.seeds, found, size)
    return [
        Arm(name="RL on LoongEnv", stage="rl", recipe=synthetic),
        Arm(name="SFT on LoongEnv", stage="sft_continued", recipe=synthetic),
        Arm(name="RL on seeds alone", stage="rl", recipe=only_seeds),
    ]


def _recipe(
    file: Path, lines: Sequence[Line], found: Material, size: LoongSize
) -> Callable[[int], Recipe]:
    json_files.write_jsonl(file, [*lines, *found.tests])
    return lambda seed: settings.recipe(file, len(found.tests), LOONGENV, size, seed)
