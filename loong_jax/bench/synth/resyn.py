"""Environments of ReSyn as files of problems: one for the cold start, one for each arm.

An environment has one of three roles. Trained ones are posed by RL; arms of fewer environments pose
the first of those that broader arms pose. Half of the others are in the cold start and not posed by
RL, and half are in neither. All are measured on the same held-out problems.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.bench.short_runs.running import Say
from loong_jax.bench.synth import choosing, settings
from loong_jax.bench.synth.instances import Instance, demonstrations, draw, spread
from loong_jax.bench.synth.runs import Arm
from loong_jax.bench.synth.settings import DOMAIN, RESYN, ResynSize
from loong_jax.data import json_files, packages
from loong_jax.data.packages import Package
from loong_jax.environments import modules
from loong_jax.environments.modules import ModuleRunner
from loong_jax.errors import ConfigError
from loong_jax.launch.recipe import Recipe
from loong_jax.synth.resyn import command
from loong_jax.synth.resyn.command import ResynOptions

KEYWORDS = (
    "arithmetic", "order", "string", "sequence", "modular", "bits", "stack", "number", "navigation",
    "merge", "graph", "filter", "conversion", "automaton", "alphabet", "time", "symmetry", "subset",
    "statistics", "set", "search", "repetition", "permutation", "equation", "parity",
)  # fmt: skip
ATTEMPTS = 20  # of the scripted solver per level
QUESTIONS = 12  # of a level, from which the template of an environment's questions is read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """An environment with what was drawn of it, by level from 1."""

    package: Package
    train: tuple[tuple[Instance, ...], ...]  # of the levels that the cold start or RL shows
    test: tuple[tuple[Instance, ...], ...]  # of these and of the next one

    @property
    def name(self) -> str:
        return self.package.name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Material:
    """Environments in the order in which arms take them, and then the unseen ones."""

    trained: tuple[Drawn, ...]
    shown: tuple[Drawn, ...]  # in the cold start, never posed by RL
    never_shown: tuple[Drawn, ...]

    @property
    def every(self) -> tuple[Drawn, ...]:
        return self.trained + self.shown + self.never_shown

    def tests(self, size: ResynSize) -> list[Instance]:
        """The held-out problems that are asked: those of the levels that RL poses.

        Those of other levels as well for trained environments, where the part measures these.
        """
        trained = {env.name for env in self.trained if size.other_levels}
        return [
            one
            for env in self.every
            for level, ones in enumerate(env.test, start=1)
            if level in size.levels or env.name in trained
            for one in ones
        ]

    def groups_of_learning(self, size: ResynSize) -> dict[str, Callable[[str], bool]]:
        """What the arm of learning is asked, by name: which held-out problems are looked at."""
        seen, posed = self.trained, size.levels
        held_out = [n for n in range(1, size.top_level + 1) if n not in posed]
        return {
            f"seen environments, {_listed(posed)}, posed": _chosen(seen, posed),
            **{f"seen environments, {_place(n, size)}": _chosen(seen, [n]) for n in held_out},
            f"unseen environments, in the cold start alone, {_listed(posed)}": _chosen(
                self.shown, posed
            ),
            f"unseen environments, never shown, {_listed(posed)}": _chosen(self.never_shown, posed),
        }

    def groups_of_breadth(self, size: ResynSize) -> dict[str, Callable[[str], bool]]:
        few, many, posed = size.environments[-1], size.environments[0], size.levels
        unseen = self.shown + self.never_shown
        return {
            f"the {few} of every arm, {_listed(posed)}": _chosen(self.trained[:few], posed),
            f"the {many} of the broadest, {_listed(posed)}": _chosen(self.trained, posed),
            f"posed by no arm, {_listed(posed)}": _chosen(unseen, posed),
        }

    def about(self) -> dict[str, Any]:
        roles = {"trained": self.trained, "shown": self.shown, "never_shown": self.never_shown}
        return {role: [env.package.uid for env in found] for role, found in roles.items()}


def _listed(levels: Sequence[int]) -> str:
    return f"level{'s' if len(levels) > 1 else ''} {' and '.join(map(str, levels))}"


def _place(level: int, size: ResynSize) -> str:
    """What is to be known of a level that RL does not pose."""
    where = "beyond" if level > size.levels[-1] else "between"
    where = "below" if level < size.levels[0] else where
    by = "in the cold start alone" if level <= size.cold_levels else "shown by nothing"
    return f"level {level}, {where} those posed, {by}"


def _chosen(found: Sequence[Drawn], levels: Sequence[int]) -> Callable[[str], bool]:
    """True for uids of held-out problems of these environments at these levels."""
    uids = {
        one.uid
        for env in found
        for level in levels
        for one in env.test[level - 1]
    }  # fmt: skip
    return uids.__contains__


def make_packages(out: Path, say: Say) -> Path:
    """Environments by the scripted author over HTTP, once; a run that was stopped goes on."""
    words = out.parent / "keywords.txt"
    if not (out / "report.json").exists():
        say("writing environments: loong synth resyn with the scripted author, once")
        json_files.write_text(words, "\n".join(KEYWORDS) + "\n")
        options = ResynOptions(out=out, keywords=words, endpoint="scripted", attempts=ATTEMPTS)
        if command.main(options):
            raise ConfigError(f"the environments in {out} are not complete. Run the bench again.")
    return out / "packages"


def material(directory: Path, size: ResynSize) -> Material:
    """Draws of the environments below `directory`; ConfigError where there are too few."""
    runner = modules.shared_runner()
    max_chars = RESYN.prompt - 1  # beside the mark that begins a text
    fitting = [
        package
        for package in choosing.shuffled(packages.read_all(directory))
        if choosing.fits(package, size.top_level, max_chars)
    ]
    drawn = [one for p in fitting if (one := _drawn(runner, p, size, max_chars)) is not None]
    questions = {one.name: [i.prompt for i in one.train[0][:QUESTIONS]] for one in drawn}
    by_name = {one.name: one for one in drawn}
    different = choosing.distinct([one.package for one in drawn], questions)
    num_trained = size.environments[0]
    chosen = choosing.require(different, num_trained + size.unseen, str(directory))
    for package in chosen:
        packages.require_sound(package)
    ordered = [by_name[package.name] for package in chosen]
    num_shown = num_trained + (size.unseen + 1) // 2
    return Material(
        trained=tuple(ordered[:num_trained]),
        shown=tuple(ordered[num_trained:num_shown]),
        never_shown=tuple(ordered[num_shown:]),
    )


def _drawn(runner: ModuleRunner, package: Package, size: ResynSize, max_chars: int) -> Drawn | None:
    """None where it has too few instances for the narrowest arm, too few tests, or long ones."""
    most = size.instances // size.environments[-1]
    train, test = [], []
    taken: set[str] = set()  # a higher level may pose a question of a lower one
    for level in range(1, size.top_level + 1):
        wanted = {size.side: size.tests}
        if level in size.levels:
            wanted["train"] = most
        if level <= size.cold_levels:
            wanted["train"] = max(wanted.get("train", 0), size.demonstrations)
        found = draw(runner, package, level, wanted, taken)
        taken |= {one.canonical for ones in found.values() for one in ones}
        test.append(tuple(found[size.side]))
        if level <= size.shown_levels:
            train.append(tuple(found["train"]))
    every = [one for level in (*train, *test) for one in level]
    if (
        sum(len(train[level - 1]) for level in size.levels) < most
        or min(map(len, test)) < size.fewest_tests
        or not train[0]
    ):
        return None
    if max(len(one.prompt) for one in every) > max_chars:
        return None
    return Drawn(package=package, train=tuple(train), test=tuple(test))


def arm_name(num_environments: int, size: ResynSize) -> str:
    return f"{num_environments}x{size.instances // num_environments}"


def instances(found: Material, num_environments: int, size: ResynSize) -> list[Instance]:
    """What an arm of breadth trains on: equally many instances, whatever the environments."""
    each = size.instances // num_environments
    return [
        one
        for env in found.trained[:num_environments]
        for one in spread([env.train[level - 1] for level in size.levels], each)
    ]


def cold_start(directory: Path, found: Material, size: ResynSize) -> Recipe:
    """The recipe of the cold start, whose file is written below `directory`."""
    shown = [
        one
        for env in found.trained + found.shown
        for level in env.train[: size.cold_levels]
        for one in level[: size.demonstrations]
    ]
    lines = demonstrations(modules.shared_runner(), shown, RESYN.response, size.habits, DOMAIN)
    return _recipe(directory / "cold_start.jsonl", lines, found, size)(0)


def arms(directory: Path, found: Material, size: ResynSize) -> list[Arm]:
    """RL on instances of more or fewer environments, with files below `directory`."""
    return [
        Arm(
            name=arm_name(count, size),
            stage="rl",
            recipe=_recipe(
                directory / f"{arm_name(count, size)}.jsonl",
                [one.line(DOMAIN) for one in instances(found, count, size)],
                found,
                size,
            ),
        )
        for count in size.environments
    ]


def _recipe(
    file: Path, lines: Sequence[Mapping[str, Any]], found: Material, size: ResynSize
) -> Callable[[int], Recipe]:
    """By seed. The order of lines says nothing, so that what is tried of a file is of all of it."""
    tests = [one.line(DOMAIN) for one in found.tests(size)]
    mixed = sorted([*lines, *tests], key=lambda line: (line["prompt"][::-1], line["uid"]))
    json_files.write_jsonl(file, mixed)
    return lambda seed: settings.recipe(file, len(tests), RESYN, size, seed, size.side)
