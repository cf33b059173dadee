"""The sources of a recipe's problems."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tyro

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
        """By name of the package; ConfigError where there is none to pose."""
        from loong_jax.recipes import packaged

        return packaged.by_domain(self)


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
