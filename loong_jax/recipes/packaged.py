"""Environment packages as the problems of a recipe.

A package is named `package:DIRECTORY` where a recipe names an environment, so everything that
poses, demonstrates and judges problems works with it as with one of our own.
"""

import functools
from collections.abc import Iterable
from pathlib import Path

from loong_jax.data import packages
from loong_jax.data.packages import Package
from loong_jax.environments.modules import ModuleEnvironment
from loong_jax.errors import ConfigError
from loong_jax.recipes.problems import DomainProblems, PackagedProblems

PREFIX = "package:"


def is_package(environment: str) -> bool:
    return environment.startswith(PREFIX)


@functools.cache
def environment_of(environment: str) -> ModuleEnvironment:
    """The environment that `package:DIRECTORY` names; ConfigError where it is none."""
    return packages.read(environment.removeprefix(PREFIX)).environment()


def by_domain(problems: PackagedProblems) -> dict[str, DomainProblems]:
    """By name of the package: its environment and the levels to pose.

    Raises ConfigError for a directory without packages, a name that is not there, and where no
    package is left.
    """
    if not problems.directory:
        raise ConfigError(
            "packages is empty. Name a directory of environment packages: --packages OUT/packages, "
            "which `loong synth resyn --out OUT` writes."
        )
    found = {package.name: package for package in _read_all(problems.directory)}
    if missing := [name for name in problems.names if name not in found]:
        raise ConfigError(
            f"{problems.directory} holds no package {missing[0]!r}. Choose of {sorted(found)}."
        )
    chosen = {}
    for name in problems.names or sorted(found):
        levels = _levels(found[name], problems)
        if levels and _fits(found[name], levels, problems.max_prompt_chars):
            place = Path(problems.directory) / found[name].uid
            chosen[name] = DomainProblems(environment=f"{PREFIX}{place}", levels=levels)
    if not chosen:
        raise ConfigError(
            f"no package in {problems.directory} has levels {problems.levels or 'at all'} with "
            f"questions of at most {problems.max_prompt_chars} characters. Raise max_prompt_chars, "
            "and the engine's lengths with it, or ask for other levels."
        )
    return chosen


def require_sound(domains: Iterable[DomainProblems]) -> None:
    """Tries every package of a recipe before it may reward; ConfigError for one that is unsound."""
    for domain in domains:
        if is_package(domain.environment):
            _require_sound(domain.environment)


@functools.cache
def _require_sound(environment: str) -> None:
    packages.require_sound(packages.read(environment.removeprefix(PREFIX)))


@functools.cache
def _read_all(directory: str) -> list[Package]:
    return packages.read_all(directory)


def _levels(package: Package, problems: PackagedProblems) -> tuple[int, ...]:
    return tuple(n for n in package.levels if n in (problems.levels or package.levels))


def _fits(package: Package, levels: tuple[int, ...], max_chars: int) -> bool:
    """By the longest questions that its examination met; a package that does not say fits."""
    longest = package.about.get("prompt_chars") or [0] * len(package.levels)
    by_level = dict(zip(package.levels, longest, strict=True))
    return max(by_level[level] for level in levels) <= max_chars
