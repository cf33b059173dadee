"""Parts of a stage by name: `--rl.objective dapo --sft.optimizer muon`.

Each part is a dataclass of one kind or another, whose fields are options. What the command line
names takes the place of the recipe's own. `FILE.py:FUNCTION` is one of your own: a function that
takes the stage and returns its part, or a class of schedulers.
"""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from loong_jax import recipes
from loong_jax.errors import ConfigError
from loong_jax.own import OwnPart
from loong_jax.recipes import SCHEDULERS, Recipe, RlStage, Scheduler
from loong_jax.recipes.stages import OwnPolicy
from loong_jax.rl.objectives import OBJECTIVES, Objective
from loong_jax.rl.optimizers import AdamW, Muon, Optimizer
from loong_jax.run.choosing import value_of

OPTIMIZERS: dict[str, type] = {"adamw": AdamW, "muon": Muon}
NAMES: Mapping[str, Mapping[str, Any]] = {  # field of a stage -> what can be named there
    "objective": OBJECTIVES,
    "scheduler": SCHEDULERS,
    "optimizer": OPTIMIZERS,
}
_KINDS = {
    "objective": (Objective,),
    "scheduler": get_args(Scheduler),
    "optimizer": get_args(Optimizer),
}


def choose(recipe: Recipe, arguments: Sequence[str]) -> tuple[Recipe, list[str]]:
    """The recipe with the parts that `arguments` name, and the arguments that are left.

    Raises ConfigError where a name is none, or a function of one's own returns something else.
    """
    left = list(arguments)
    stages = dict(recipe.stages)
    for stage_name, stage in recipe.stages.items():
        prefix = f"--{stage_name.replace('_', '-')}"
        if isinstance(stage, RlStage):
            stage = _sized(stage, prefix, left)
        for field in NAMES:
            option = f"{prefix}.{field}"
            name = value_of(option, left)
            if name is not None and hasattr(stage, field):
                left = _without(option, left)
                stage = dataclasses.replace(stage, **{field: _part(field, option, name, stage)})
        _refuse_misspelt(prefix, left)
        stages[stage_name] = stage
    return dataclasses.replace(recipe, stages=stages), left


def own_parts(recipe: Recipe) -> list[Any]:
    """The schedulers, signals and clips of one's own in a recipe, made of their settings.

    ConfigError for what their files raise: to be called before anything runs.
    """
    stages = [stage for stage in recipe.stages.values() if isinstance(stage, RlStage)]
    policies = [
        stage.scheduler.policy for stage in stages if isinstance(stage.scheduler, OwnPolicy)
    ]
    named = [part for stage in stages for part in (stage.objective.signal, stage.objective.clip)]
    return policies + [part.part for part in named if isinstance(part, OwnPart)]


def _part(field: str, option: str, name: str, stage: Any) -> Any:
    if ".py:" in name:
        found = recipes.own_function(name)
        if field == "scheduler" and isinstance(found, type):
            return OwnPolicy.named(name, **_fields(stage.scheduler))
        part = found(stage)
        if not isinstance(part, _KINDS[field]):
            kinds = ", ".join(kind.__name__ for kind in _KINDS[field])
            raise ConfigError(f"{option}={name} returned {part!r:.80}. Return one of {kinds}.")
        return part
    _refuse_unknown(option, name, NAMES[field])
    if field == "objective":
        return OBJECTIVES[name](stage.group_size, stage.sampling.max_new_tokens)
    return _like(getattr(stage, field), NAMES[field][name])


def _like(old: Any, kind: Callable[..., Any]) -> Any:
    """A config of that kind, with the settings that it has in common with the old one."""
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in _fields(old).items() if name in known})


def _fields(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _sized(stage: RlStage, prefix: str, arguments: Sequence[str]) -> RlStage:
    """The stage with the sizes that the arguments override, in its objective too."""

    def given(option: str, default: int) -> int:
        word = value_of(f"{prefix}.{option}", arguments) or ""
        return int(word) if word.isdecimal() else default

    size = given("group-size", stage.group_size)
    length = given("sampling.max-new-tokens", stage.sampling.max_new_tokens)
    reduction: Any = stage.objective.reduction
    sizes = {"group_size": size, "max_response_tokens": length}
    known = {name: value for name, value in sizes.items() if hasattr(reduction, name)}
    return dataclasses.replace(
        stage,
        group_size=size,
        row_length=given("row-length", stage.row_length),
        sampling=dataclasses.replace(stage.sampling, max_new_tokens=length),
        objective=dataclasses.replace(
            stage.objective, reduction=dataclasses.replace(reduction, **known)
        ),
    )


def _refuse_misspelt(prefix: str, arguments: Sequence[str]) -> None:
    """Of an option whose value is a name, which the parser of the others does not know."""
    for word in arguments:
        stage, _, name = word.partition("=")[0].rpartition(".")
        if stage == prefix and (meant := difflib.get_close_matches(name, NAMES, 1, 0.8)):
            raise ConfigError(f"{word} is no option. Write {prefix}.{meant[0]}.")


def _refuse_unknown(option: str, name: str, names: Mapping[str, Any]) -> None:
    if name not in names:
        raise ConfigError(
            f"{option}={name} names nothing. Choose one of: {', '.join(names)}; or a function of "
            "your own that takes the stage: FILE.py:FUNCTION."
        )


def _without(option: str, arguments: Sequence[str]) -> list[str]:
    """The words without the option and its value."""
    left, words = list[str](), iter(arguments)
    for word in words:
        if word == option:
            next(words, None)
        elif not word.startswith(f"{option}="):
            left.append(word)
    return left
