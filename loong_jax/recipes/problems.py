"""The sources of a recipe's problems: environments of ours, packages of them, files.

A package is named `package:DIRECTORY` where a recipe names an environment, so everything that
poses, demonstrates and judges problems works with it as with one of our own.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import tyro

from loong_jax.data import packages
from loong_jax.environments.modules import ModuleEnvironment
from loong_jax.errors import ConfigError
from loong_jax.own import absolute
from loong_jax.verifiers import own_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class DomainProblems:
    """The source of one domain's problems."""

    environment: str  # of loong_jax.environments.get_environment, or package:DIRECTORY
    levels: tuple[int, ...] = (1, 2, 3, 4, 5)
    level_shares: tuple[float, ...] = ()  # () for equal shares
    demonstration_share: float = 1.0  # of the cold start's pairs, on any common scale

    def __post_init__(self):
        if self.level_shares and len(self.level_shares) != len(self.levels):
            raise ConfigError(
                f"level_shares={self.level_shares} must have one share for each of levels="
                f"{self.levels}, or be ()."
            )
        if not all(0 < share < math.inf for share in self.level_shares):
            raise ConfigError(
                f"level_shares={self.level_shares} must be positive and finite. Leave out the "
                "levels that are not to be posed."
            )
        if not 0 <= self.demonstration_share < math.inf:
            raise ConfigError(
                f"demonstration_share={self.demonstration_share} must be finite and at least 0. "
                "Use 1 where all domains have the same."
            )

    @property
    def level_weights(self) -> dict[int, float]:
        shares = self.level_shares or (1.0,) * len(self.levels)
        return dict(zip(self.levels, shares, strict=True))


logger = logging.getLogger(__name__)
PREFIX = "package:"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackagedProblems:
    """Environment packages below a directory, each a domain of its own, all posed by turns."""

    # a directory of packages, such as OUT/packages of `loong synth resyn`
    directory: Annotated[str, tyro.conf.arg(name="packages", prefix_name=False)] = ""
    # of packages; () for all
    names: Annotated[tuple[str, ...], tyro.conf.arg(name="package_names", prefix_name=False)] = ()
    # () for those of each package
    levels: Annotated[tuple[int, ...], tyro.conf.arg(prefix_name=False)] = ()
    # packages with longer questions at these levels are left out
    max_prompt_chars: Annotated[int, tyro.conf.arg(prefix_name=False)] = 64

    def __post_init__(self):
        if self.directory:  # found again from wherever a run goes on
            object.__setattr__(self, "directory", str(Path(self.directory).resolve()))

    def by_domain(self) -> dict[str, DomainProblems]:
        """By name of the package: its environment and the levels to pose.

        Raises ConfigError for a directory without packages, a name that is not there, and where no
        package is left.
        """
        if not self.directory:
            raise ConfigError(
                "packages is empty. Name a directory of environment packages: --packages DIR, as "
                "you make them yourself (docs/tutorials/own_environment.md), or OUT/packages, "
                "which `loong synth resyn --out OUT` writes."
            )
        found = {package.name: package for package in _read_all(self.directory)}
        if missing := [name for name in self.names if name not in found]:
            raise ConfigError(
                f"{self.directory} holds no package {missing[0]!r}. Choose of {sorted(found)}."
            )
        named = self.names or sorted(found)
        known = sorted({level for name in named for level in found[name].levels})
        if unknown := sorted(set(self.levels) - set(known)):
            raise ConfigError(
                f"levels={self.levels}: no package of {self.directory} has level {unknown[0]}. "
                f"Choose among {', '.join(map(str, known))}."
            )
        chosen, too_long = {}, {}
        for name in named:
            place = f"{PREFIX}{Path(self.directory) / found[name].uid}"
            has = found[name].levels
            if not (levels := tuple(n for n in has if n in (self.levels or has))):
                continue
            longest = max(_longest(place, level) for level in levels)
            if longest > self.max_prompt_chars:
                too_long[name] = longest
            else:
                chosen[name] = DomainProblems(environment=place, levels=levels)
        if not chosen:
            lengths = ", ".join(f"{name} up to {longest}" for name, longest in too_long.items())
            raise ConfigError(
                f"no package in {self.directory} has levels {self.levels or 'at all'} with "
                f"questions of at most {self.max_prompt_chars} characters"
                + (f" (max_prompt_chars); there are: {lengths}" if lengths else "")
                + ". Raise --max-prompt-chars by as much as --sft.row-length, --rl.row-length and "
                "--engine.cache-length, or ask for other levels."
            )
        for name, longest in too_long.items():
            _say_left_out(name, longest, self.max_prompt_chars)
        return chosen


def is_package(environment: str) -> bool:
    return environment.startswith(PREFIX)


@functools.cache
def environment_of(environment: str) -> ModuleEnvironment:
    """The environment that `package:DIRECTORY` names; ConfigError where it is none."""
    return packages.read(environment.removeprefix(PREFIX)).environment()


@functools.cache
def _say_left_out(name: str, longest: int, bound: int) -> None:
    logger.warning(
        "package %s is left out: its questions have up to %d characters, --max-prompt-chars is %d",
        name, longest, bound,
    )  # fmt: skip


def require_sound(domains: Iterable[DomainProblems]) -> None:
    """Tries every package of a recipe before it may reward; ConfigError for one that is unsound."""
    for domain in domains:
        if is_package(domain.environment):
            _require_sound(domain.environment.removeprefix(PREFIX))


@functools.cache
def _require_sound(directory: str) -> None:
    packages.require_sound(packages.read(directory))


_read_all = functools.cache(packages.read_all)


@functools.cache
def _longest(environment: str, level: int) -> int:
    """Characters of the longest question that its examination met, or that is drawn now."""
    package = packages.read(environment.removeprefix(PREFIX))
    if known := package.about.get("prompt_chars"):
        return known[package.levels.index(level)]
    return packages.longest_question(package, level)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedProblems:
    """Problems of our own environments, by domain."""

    domains: Annotated[Mapping[str, DomainProblems], tyro.conf.arg(name="")]

    def __post_init__(self):
        if not self.domains:
            raise ConfigError("domains is empty. Give at least one domain and its environment.")

    def by_domain(self) -> dict[str, DomainProblems]:
        return dict(self.domains)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileProblems:
    """Problems of one's own, from a file of JSON lines: docs/tutorials/own_problems.md.

    A hash of what a problem asks decides whether it is trained on, so the sides stay the same when
    lines are added.
    """

    file: Annotated[Path | None, tyro.conf.arg(name="problems", prefix_name=False)] = None
    held_out_share: float = 0.1  # of the problems for tests, and as much for validation
    # of your own, FILE.py:CLASS, that lines may name; the first is for lines that name none
    verifiers: Annotated[tuple[str, ...], tyro.conf.arg(name="verifier", prefix_name=False)] = ()

    def __post_init__(self):
        whole = tuple(absolute(name) for name in self.verifiers)
        object.__setattr__(self, "verifiers", whole)
        own_table(whole)  # refuses what names no class
        if not 0 < self.held_out_share < 0.5:
            raise ConfigError(
                f"held_out_share={self.held_out_share} must lie between 0 and 0.5: it goes to "
                "tests and again to validation. Use a value such as 0.1."
            )


ProblemSource = GeneratedProblems | PackagedProblems | FileProblems
