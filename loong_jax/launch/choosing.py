"""The recipe of a command line: a named one, one of your own, or that of a run which goes on."""

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax import configs
from loong_jax.errors import ConfigError
from loong_jax.launch import own_problems, recipes
from loong_jax.launch.recipe import FileProblems, Recipe, RlStage


class Chosen(NamedTuple):
    name: str
    config: Any  # a Recipe, before overrides
    text: str  # what the help says of it


def to_run(name: str | None, arguments: Sequence[str]) -> Chosen:
    """The recipe that `loong train` starts with.

    That is what the run in --run-dir was started with, where there is one; `name` may then be
    None. Raises ConfigError where it is a run of another recipe.
    """
    run_dir = value_of("--run-dir", arguments)
    if run_dir is None and name is not None:
        run_dir = f"runs/{_short(name)}"
    began = None
    if run_dir is not None and (Path(run_dir) / "config.json").exists():
        began = _of_run(Path(run_dir))
    if name is None:
        if began is None:
            raise ConfigError(
                f"there is no run in {run_dir or '--run-dir'} to go on with, and no recipe was "
                "named. Write: loong train RECIPE."
            )
        return Chosen(began.name, began, "Goes on with the run in --run-dir.")
    function = recipes.get_recipe(name)
    made, text = function(), inspect.getdoc(function) or ""
    if began is None:
        return Chosen(_short(name), with_sources(made, arguments), text)
    if began.name != made.name:
        raise ConfigError(
            f"{run_dir} is a run of the recipe {began.name!r}, not of {made.name!r}. Name another "
            "--run-dir."
        )
    return Chosen(_short(name), began, text)


def _of_run(run_dir: Path) -> Recipe:
    """What a run was started with; its problems are those it keeps."""
    return own_problems.as_kept(configs.load(run_dir), run_dir)


def with_sources(recipe: Any, arguments: Sequence[str]) -> Any:
    """The recipe with the kind of problems that `--problems FILE`, if it is there, asks for."""
    asks = value_of("--problems", arguments) is not None and isinstance(recipe, Recipe)
    if asks and not isinstance(recipe.problems, FileProblems):
        stages = {
            name: dataclasses.replace(stage, domains=()) if isinstance(stage, RlStage) else stage
            for name, stage in recipe.stages.items()
        }
        return dataclasses.replace(recipe, problems=FileProblems(), stages=stages, experts=())
    return recipe


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option among words of a command line; None where it is not there."""
    for place, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and place + 1 < len(arguments):
            return arguments[place + 1]
    return None


def _short(name: str) -> str:
    return name.rpartition(":")[2] if ".py:" in name else name
