"""Command-line options out of dataclasses: every plain field of a config can be overridden.

Knows: configs, own, remote.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from loong_jax import configs, own, remote
from loong_jax.remote import AnyPath

_REGISTRY = tyro.constructors.ConstructorRegistry()


def parse(
    options: Any, prog: str, arguments: Sequence[str], *, description: str | None = None
) -> Any:
    """Parses `arguments` into the dataclass `options`; where they do not fit, exits with 2.

    Help texts are the comments and docstrings beside the fields. A field that may hold several
    kinds of configs keeps the kind of its default, whose fields become options.
    """
    return tyro.cli(
        options,
        prog=prog,
        description=description,
        args=list(arguments),
        registry=_REGISTRY,
        config=(tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed),
    )


def parse_train(
    name: str, description: str, config: Any, arguments: Sequence[str], *, processes: Any = None
) -> Any:
    """Returns an object with `run_dir` and the recipe's `config`, overrides applied.

    `name` is the recipe's; `config` is what it returned. A recipe of stages has `only` and `source`
    besides; one that runs in all processes has `processes`, whose default is given.
    """
    besides = [option("processes", type(processes), processes, None)]
    if processes is None:
        has_form = hasattr(config, "form")  # a part of the recipe by the time that this is read
        has_file = getattr(getattr(config, "problems", None), "file", "") != ""
        besides = [
            option(field, kind | None, None, text, name=name)
            for field, kind, name, text, is_there in (
                ("only", str, None, "run this stage alone, after those it needs", True),
                ("source", Path, "from", _FROM, True),
                ("form_name", str, "form", _FORM, has_form),
                ("names", str, "environments", _ENVIRONMENTS, has_form),
                ("rank", int, "lora", _LORA, has_form),
                ("tool_names", str, "tools", _TOOLS, has_form),
                ("problems_file", Path, "problems", _PROBLEMS, not has_file),
            )
            if is_there
        ]
    options = dataclasses.make_dataclass(
        "TrainOptions",
        [
            option("run_dir", Path, Path("runs") / name, "where the run lives; resumed if there"),
            *besides,
            option("config", type(config), config, None, name=""),
        ],
        frozen=True,
        kw_only=True,
    )
    return parse(options, f"loong train {name}", arguments, description=description)


_FROM = "a run with finished stages that --only, or the recipe, starts from"
_FORM = "of responses: longcat, think, think-answer, boxed, plain, completion, tagged"
_ENVIRONMENTS = "that problems come from, with commas between, instead of the recipe's"
_LORA = "rank of adapters that train in place of the weights, in every stage"
_TOOLS = "that every problem offers, with commas between: python"
_PROBLEMS = "JSON lines of problems of your own, instead of the recipe's"


def with_defaults(config_type: type, **defaults: Any) -> type:
    """`config_type` with other defaults, each of which also settles the kind of its field."""
    fields = [
        option(name, type(value), value, own.docstring(value)) for name, value in defaults.items()
    ]
    chosen = dataclasses.make_dataclass(
        config_type.__name__, fields, bases=(config_type,), frozen=True, kw_only=True
    )
    # its source, where help texts are read from
    for name in ("__doc__", "__module__", "__qualname__", "__firstlineno__"):
        if name in vars(config_type):
            setattr(chosen, name, vars(config_type)[name])
    return chosen


def option(
    field: str, annotation: Any, default: Any, text: str | None, *, name: str | None = None
) -> tuple[str, Any, Any]:
    annotated = Annotated[annotation, tyro.conf.arg(name=name, help=text)]
    return field, annotated, dataclasses.field(default=default)


@_REGISTRY.primitive_rule
def _dtype_rule(info: Any) -> Any:
    """A field annotated jax.typing.DTypeLike is given by name: --model.dtype bfloat16."""
    if "jax" not in sys.modules:
        return None
    from jax.typing import DTypeLike

    if info.type not in (DTypeLike, DTypeLike | None):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="DTYPE",
        instance_from_str=lambda words: (
            None if words[0] == "None" else configs.dtype_of_name(words[0])
        ),
        is_instance=lambda value: value is None or configs.as_dtype(value) is not None,
        str_from_instance=lambda value: [str(configs.as_dtype(value))],
    )


@_REGISTRY.primitive_rule
def _place_rule(info: Any) -> Any:
    """A field annotated AnyPath is a path or a URL, of which `Path` would drop a slash."""
    if info.type not in (AnyPath, AnyPath | None):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH|URL",
        instance_from_str=lambda words: (
            None if words[0] == "None" and info.type != AnyPath else remote.located(words[0])
        ),
        is_instance=lambda value: value is None or isinstance(value, AnyPath),
        str_from_instance=lambda value: [str(value)],
    )
