"""The recipe of a command line: a named one, one of your own, or that of a run which goes on."""

import dataclasses
import inspect
from collections.abc import Sequence
from pathlib import Path

from loong_jax import configs
from loong_jax.errors import ConfigError
from loong_jax.launch import own_problems, recipes
from loong_jax.launch.recipe import FileProblems, Recipe, RlStage


def to_run(name: str | None, arguments: Sequence[str]) -> tuple[Recipe, str]:
    """The recipe that `loong train` starts with, before overrides, and what its help says.

    That is what the run in --run-dir was started with, where there is one; `name` may then be
    None. Raises ConfigError where it is a run of another recipe.
    """
    run_dir = value_of("--run-dir", arguments)
    if run_dir is None and name is not None:
        run_dir = f"runs/{_file_name(name)}"
    has_begun = run_dir is not None and (Path(run_dir) / "config.json").exists()
    if name is None:
        if not has_begun:
            raise ConfigError(
                f"there is no run in {run_dir or '--run-dir'} to go on with, and no recipe was "
                "named. Write: loong train RECIPE."
            )
        return _of_run(Path(str(run_dir))), "Goes on with the run in --run-dir."
    function = recipes.get_recipe(name)
    made = function()
    if not isinstance(made, Recipe):
        raise ConfigError(f"{name} returned {made!r:.80}, which is no Recipe. Return one.")
    text = inspect.getdoc(function) or ""
    if not has_begun:
        return with_sources(made, arguments), text
    began = _of_run(Path(str(run_dir)))
    if began.name != made.name:
        raise ConfigError(
            f"{run_dir} is a run of the recipe {began.name!r}, not of {made.name!r}. Name another "
            "--run-dir."
        )
    return began, text


def _of_run(run_dir: Path) -> Recipe:
    """What a run was started with; its problems are those it keeps."""
    return own_problems.as_kept(configs.load(run_dir), run_dir)


def with_sources(recipe: Recipe, arguments: Sequence[str]) -> Recipe:
    """The recipe with the kind of problems that `--problems FILE`, if it is there, asks for."""
    if value_of("--problems", arguments) and not isinstance(recipe.problems, FileProblems):
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


def _file_name(name: str) -> str:
    return name.rpartition(":")[2] if ".py:" in name else name
