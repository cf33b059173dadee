"""The sources of a recipe's problems."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tyro

from loong_jax.errors import ConfigError
from loong_jax.own import absolute
from loong_jax.recipes.domains import DomainProblems
from loong_jax.recipes.packaged import PackagedProblems
from loong_jax.verifiers import own_table


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
