"""The recipe of a command line: a named one, one of your own, or that of a run which goes on."""

import dataclasses
import inspect
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax import cli_help, configs, environments, recipes, remote
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.errors import ConfigError
from loong_jax.problems import response
from loong_jax.recipes import FileProblems, GeneratedProblems, Recipe, RlStage, SftStage, quickstart
from loong_jax.recipes.stages import Stage, of_length
from loong_jax.remote import AnyPath
from loong_jax.rl.lora import LoraConfig
from loong_jax.rl.optimizers import WarmupCosine
from loong_jax.run import own_problems, sizes, sources

logger = logging.getLogger(__name__)

# For models of their own tokens, where the recipe has the miniature's.
NEW_TOKENS = 256  # of a response
EPOCHS = 3.0  # of a file of examples
OF_ITS_START = ("rl", "sft")  # recipes that go on with the problems of the run they start from
# of learning rates: of weights, of adapters
PEAKS = {SftStage: (2e-5, 2e-4), RlStage: (2e-6, 2e-5)}


class Chosen(NamedTuple):
    name: str
    config: Any  # a Recipe, before overrides
    text: str  # what the help says of it
    is_new: bool  # there is no run of it yet


def to_run(name: str | None, arguments: Sequence[str]) -> Chosen:
    """The recipe that `loong train` starts with.

    That is what the run in --run-dir was started with, where there is one; `name` may then be
    None. Raises ConfigError where it is a run of another recipe.
    """
    run_dir = value_of("--run-dir", arguments) or (name and f"runs/{_short(name)}")
    began: Any = None
    if run_dir is not None and (Path(run_dir) / "config.json").exists():
        began = own_problems.as_kept(configs.load(Path(run_dir)), Path(run_dir))
    if name is None and began is None:
        raise ConfigError(
            f"no recipe was named, and {run_dir or '--run-dir'} holds no run to resume. Write "
            "`loong train RECIPE`, or name the directory of a run by --run-dir."
        )
    if name is None:
        return Chosen(began.name, began, "Goes on with the run in --run-dir.", False)
    function = recipes.get_recipe(name)
    made, text = function(), inspect.getdoc(function) or ""
    if began is None:
        return Chosen(_short(name), with_sources(made, arguments), text, True)
    if began.name != made.name:
        raise ConfigError(
            f"{run_dir} is a run of the recipe {began.name!r}, not of {made.name!r}. Name another "
            "--run-dir."
        )
    return Chosen(_short(name), began, text, False)


def with_sources(recipe: Any, arguments: Sequence[str]) -> Any:
    """The recipe with the kinds of problems and of the form that options ask for.

    `--problems FILE` is a kind of its own; with `--data` alone there are none to pose. Models of
    their own tokens write longer responses than characters allow, and are fine-tuned more gently
    than the miniature is trained, unless options say otherwise.
    """
    if not isinstance(recipe, Recipe):
        return recipe
    recipe = _with_problems(_with_form(recipe, arguments), arguments)
    start = value_of("--start-from", arguments)
    start = recipe.start_from if start is None else remote.located(start)
    if start is None:
        return recipe
    model = sources.find(start).config
    if recipe.model_of_start:  # now, so that --model.* changes the one found
        recipe = dataclasses.replace(recipe, model=model, model_of_start=False)
    if model.vocab_size == AsciiTokenizer.vocab_size:
        return recipe
    if recipe.max_new_tokens is None and not any("max-new-tokens" in word for word in arguments):
        recipe = dataclasses.replace(recipe, max_new_tokens=NEW_TOKENS)
    return recipe.mapped(lambda name, stage: _tuned(recipe, name, stage, arguments))


def _tuned(recipe: Recipe, name: str, stage: Stage, arguments: Sequence[str]) -> Stage:
    """A stage that has the miniature's schedule, with one for a model that was trained before."""
    if not isinstance(stage, SftStage | RlStage):
        return stage
    schedule, peak = stage.optimizer.schedule, PEAKS[type(stage)][stage.lora is not None]
    if isinstance(stage, RlStage):
        if schedule not in (quickstart.RL_SCHEDULE, quickstart.SHORT_SCHEDULE):
            return stage
        schedule = dataclasses.replace(schedule, peak=peak)
    elif vars(schedule) != vars(quickstart.SFT_SCHEDULE) | {"num_steps": stage.num_steps}:
        return stage
    else:
        given = value_of(f"--{name.replace('_', '-')}.num-steps", arguments) or ""
        steps = int(given) if given.isdecimal() else stage.num_steps
        data = value_of("--data", arguments) or recipe.data
        has_end = data is not None or isinstance(recipe.problems, FileProblems)
        epochs = EPOCHS if has_end and not given else None
        warmup = 0 if epochs else min(math.ceil(sizes.WARMUP_SHARE * steps), steps // 2)
        stage = dataclasses.replace(stage, epochs=epochs)
        schedule = WarmupCosine(peak=peak, warmup_steps=warmup, num_steps=max(steps, 1))
    optimizer = dataclasses.replace(stage.optimizer, schedule=schedule)
    return dataclasses.replace(stage, optimizer=optimizer)


def _with_problems(recipe: Recipe, arguments: Sequence[str]) -> Recipe:
    has_file = value_of("--problems", arguments) is not None
    if (names := value_of("--environments", arguments)) is not None:
        for name in (found := names.split(",")):
            if name not in environments.ENVIRONMENTS and not name.startswith(environments.GYM):
                raise ConfigError(
                    f"--environments {name}: there is no environment of this name. Choose from: "
                    f"{', '.join(sorted(environments.ENVIRONMENTS))}."
                )
        domains = {name: recipes.DomainProblems(environment=name) for name in found}
        return _posing(recipe, GeneratedProblems(domains=domains))
    if has_file:
        is_file = isinstance(recipe.problems, FileProblems)
        return recipe if is_file else _posing(recipe, FileProblems())
    if value_of("--data", arguments) is not None:
        return dataclasses.replace(recipe, problems=None)
    start = value_of("--start-from", arguments)
    if recipe.name in OF_ITS_START and start is not None:
        return _posing_those_of(recipe, remote.located(start), arguments)
    return recipe


def _posing_those_of(recipe: Recipe, start: AnyPath, arguments: Sequence[str]) -> Recipe:
    """The recipe with the problems, form, tools and lengths of the run that weights are from."""
    run = next(iter(own_problems.recipes_of(start)), None)
    if run is None or run.problems is None:
        whose = "the quickstart" if isinstance(recipe.problems, GeneratedProblems) else recipe.name
        logger.info("poses the problems of %s; --problems FILE gives others", whose)
        return recipe
    logger.info("poses the problems of the run %s", start)
    length = recipe.max_new_tokens
    if length is None and not any("max-new-tokens" in word for word in arguments):
        length = run.max_new_tokens or run.evaluation.sampling.max_new_tokens
    return dataclasses.replace(
        _posing(recipe, run.problems),
        max_new_tokens=length,
        form=recipe.form or run.form,
        tools=recipe.tools or run.tools,
    )


def _posing(recipe: Recipe, problems: recipes.ProblemSource) -> Recipe:
    """The recipe with other problems, all of which every stage poses."""
    return dataclasses.replace(recipe.changed(RlStage, domains=()), problems=problems, experts=())


def _with_form(recipe: Recipe, arguments: Sequence[str]) -> Recipe:
    if (name := value_of("--form", arguments)) is not None:
        recipe = dataclasses.replace(recipe, form=response.form_named(name))
    if (names := value_of("--tools", arguments)) is not None:
        given = recipes.ToolSettings(names=tuple(names.split(",")), describe=True, offers_all=True)
        recipe = dataclasses.replace(recipe, tools=given)
    if (rank := value_of("--lora", arguments)) is not None and rank.isdigit():
        recipe = recipe.changed(SftStage | RlStage, lora=LoraConfig(rank=int(rank)))
    return recipe


def finished(config: Any, before: Any, arguments: Sequence[str]) -> Any:
    """A recipe after overrides: a stage of other length has a schedule of that length.

    `before` is what the overrides changed. A schedule whose length was given keeps it.
    """
    if not isinstance(config, Recipe):
        return config

    def fitting(name: str, stage: Stage) -> Stage:
        option = f"--{name.replace('_', '-')}.optimizer.schedule.num-steps"
        is_given = any(word.split("=")[0] == option for word in arguments)
        if is_given or not isinstance(stage, SftStage | RlStage):
            return stage
        old: Any = before.stages[name]
        if stage.num_steps == old.num_steps:
            return stage
        return of_length(dataclasses.replace(stage, num_steps=old.num_steps), stage.num_steps)

    return config.mapped(fitting)


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option among words of a command line; None where it is not there."""
    return cli_help.take(option, arguments)[0] or None


def _short(name: str) -> str:
    return name.rpartition(":")[2] if ".py:" in name else name
