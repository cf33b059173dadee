"""`loong train RECIPE --help`: the settings that matter, with the recipe's values."""

import functools
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loong_jax import own
from loong_jax.own import OwnPart
from loong_jax.recipes import FusionStage, PackagedProblems, Recipe, RlStage, SampleStage, SftStage
from loong_jax.run import named

WIDTH = 98
_RECIPE = {  # field -> what it is; those that the recipe lacks are not shown
    "start_from": "weights and tokens to begin with: a directory or URL as Hugging Face has it, "
    "an import, a run or a stage",
    "teacher": "the same, of the weights to learn from",
    "data": "JSON lines of conversations or pairs to learn",
    "packages": "a directory of environment packages (docs/tutorials/own_environment.md)",
    "package_names": "of packages there; none: all",
    "levels": "of them that are posed; none: all",
    "max_prompt_chars": "packages with longer questions are left out",
    "problems": "JSON lines of problems of your own (docs/tutorials/own_problems.md)",
    "environments": "that problems come from, with commas between (docs/reference/environments.md)",
    "form": "of responses: longcat, think, think-answer, boxed, plain, completion, tagged",
    "max_new_tokens": "of a response, in training and evaluation",
    "dtype": "such as bfloat16, to compute in; masters stay float32",
    "lora": "a rank: adapters of it are trained over frozen weights",
    "mesh.fsdp": "devices that weights and rows are cut over; more axes, and those of replicas: "
    "docs/how-to/devices.md",
    "seed": "of fresh weights, problems and samples",
    "evaluation.num_problems": "held-out problems of a domain, posed after each stage",
    "engine.slots_per_replica": "samples that are written at the same time",
}
_STAGES: Mapping[type, Mapping[str, str]] = {
    SftStage: {
        "num_steps": "updates; a schedule of that length follows",
        "epochs": "passes over all examples of a file, in place of num_steps",
        "rows": "sequences of a batch",
        "row_length": "tokens of each, several examples packed; 0: what the longest needs",
        "optimizer": "by name: " + ", ".join(named.OPTIMIZERS),
        "optimizer.schedule.peak": "learning rate at its highest",
    },
    RlStage: {
        "num_steps": "updates",
        "scheduler.groups_per_step": "problems of an update",
        "group_size": "answers to each problem, compared with each other",
        "sampling.temperature": "of these answers",
        "scheduler.max_staleness": "by how many updates an answer may be older than the weights",
        "objective": "by name: " + ", ".join(named.OBJECTIVES),
        "scheduler": "by name: " + ", ".join(named.SCHEDULERS),
        "optimizer": "by name: " + ", ".join(named.OPTIMIZERS),
        "optimizer.schedule.peak": "learning rate at its highest",
        "rows": "sequences of a micro-batch: fewer take less memory",
        "checkpoint_every": "updates",
    },
    FusionStage: {
        "method": "by name: " + ", ".join(named.NAMES["method"]),
        "scales": "tried, of the change of all experts",
        "num_problems": "to choose by",
    },
    SampleStage: {
        "num_problems": "that the teacher answers, of each domain",
        "samples_per_problem": "by the teacher",
    },
}
_RUN = {
    "--run-dir {run_dir}": "where the run lives; with it alone a run goes on",
    "--only STAGE": "runs one stage alone",
    "--dry-run": "compiles the programs and says what memory a device needs; trains nothing",
    "--from RUN": "takes finished stages from another run",
    "--profile-steps N": "traces N training steps into stages/*/profile, for TensorBoard",
    "--log-level LEVEL": "debug, info, warning or error",
}


def settings_that_matter(name: str, recipe: Recipe, text: str) -> str:
    """The recipe's own words `text`, then its main settings with their values."""
    lines = [f"usage: loong train {name} [settings]", ""]
    lines += [text.rstrip(), ""] if text else []
    lines.append("the run:")
    run_dir = f"runs/{name.rpartition(':')[2]}"
    lines += _described((option.format(run_dir=run_dir), what) for option, what in _RUN.items())
    lines += ["", "the recipe:"]
    read = {field: what for field, what in _RECIPE.items() if _is_read(recipe, field)}
    lines += _described((f"{_option(f)} {_value(recipe, f)}", what) for f, what in read.items())
    for kind, fields in _STAGES.items():
        same = [stage for stage, settings in recipe.stages.items() if isinstance(settings, kind)]
        if not same:
            continue
        first, *others = same
        stage = recipe.stages[first]
        also = f" (and so for {', '.join(others)})" if others else ""
        lines += ["", f"stage {first}{also}:"]
        lines += _described(
            (f"{_option(first, field)} {_value(stage, field)}", what)
            for field, what in fields.items()
            if _is_option(stage, field)
        )
        lines += _described(_of_own_parts(first, stage, fields))
    lines += [
        "",
        f"`loong train {name} --help-all` lists every setting. A part that has a name may be one",
        "of your own: FILE.py:FUNCTION or FILE.py:CLASS (docs/tutorials/own_objective.md).",
    ]
    return "\n".join(lines)


_PARTS = ("scheduler", "objective.signal", "objective.clip", "method")  # may be your own


def _of_own_parts(name: str, stage: Any, shown: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The fields of parts of your own, with the comments beside them."""
    for place in _PARTS:
        part = _part(stage, place)
        for field, value in part.settings.items() if isinstance(part, OwnPart) else ():
            if f"{place}.{field}" not in shown:
                said = own.comments(part).get(field) or f"of {Path(part.kind).name}"
                yield f"{_option(name, place, field)} {value}", said


def _part(config: Any, place: str) -> Any:
    return functools.reduce(lambda found, one: getattr(found, one, None), place.split("."), config)


_OF_PACKAGES = ("packages", "package_names", "levels", "max_prompt_chars")


def _is_read(recipe: Recipe, field: str) -> bool:
    if field in _OF_PACKAGES:
        return isinstance(recipe.problems, PackagedProblems)
    if field == "data":
        return any(isinstance(stage, SftStage) for stage in recipe.stages.values())
    return field != "teacher" or recipe.learns_from_teacher


def _is_option(stage: Any, field: str) -> bool:
    """Of one of your own only what is a field of it."""
    part, _, setting = field.partition(".")
    found: Any = getattr(stage, part, None)
    is_own = setting and isinstance(found, OwnPart)
    return setting in found.settings if is_own else hasattr(stage, part)


def _described(pairs: Any) -> list[str]:
    wrapper = textwrap.TextWrapper(
        WIDTH, initial_indent="  ", subsequent_indent=" " * 45, break_on_hyphens=False
    )
    return [line for left, what in pairs for line in wrapper.wrap(f"{left:<42} {what}")]


def _option(*names: str) -> str:
    return f"--{'.'.join(names)}".replace("_", "-")


def _value(config: Any, field: str) -> str:
    """A field's value as the command line takes it; a part by its name."""
    value = _part(config.problems if field in _OF_PACKAGES else config, field)
    if field in _WORDS:
        return _WORDS[field]
    if field == "objective":
        sizes = config.group_size, config.sampling.max_new_tokens
        return next((name for name, of in named.OBJECTIVES.items() if of(*sizes) == value), "NAME")
    if field in named.NAMES:
        if isinstance(value, OwnPart):
            return Path(value.kind).name
        kinds = [key for key, kind in named.NAMES[field].items() if kind is type(value)]
        return next(iter(kinds), "NAME")
    if value is None:
        other = {"start_from": "DIR", "teacher": "DIR", "form": "NAME"}
        return other.get(field, field.rpartition("_")[2].upper())
    if field == "form":
        return value.name
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


_WORDS = {  # in the place of values
    "lora": "RANK",
    "environments": "NAMES",
    "package_names": "NAMES",
    "levels": "1 2 3",
    "packages": "DIR",
    "data": "FILE",
    "problems": "FILE",
}
