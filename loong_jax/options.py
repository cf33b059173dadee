"""Command-line options out of dataclasses: every plain field of a config can be overridden."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from loong_jax import configs, remote
from loong_jax.remote import AnyPath


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Writes the page of a run anew, from what the run directory holds: RUN_DIR/report.html.

    A run writes its page when it ends; this also serves one that is still going or was stopped.
    Example: loong report runs/quickstart
    """

    run_dir: tyro.conf.Positional[Path]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Says what this machine can and cannot do, and what to do about it.

    The exit status is 0 unless something required is missing. Example: loong doctor --json
    """

    json: bool = False  # print one JSON object instead of lines for people


_Source = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SRC")]
_Destination = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DST")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportHfOptions:
    """Makes a checkpoint of ours from a directory in the published layout.

    DST gets weights/, as a finished stage has them, and model.json, the model's config. An import
    that was stopped goes on when the same command runs again. Example:
    loong import-hf longcat-flash-chat checkpoints/chat
    """

    source: Annotated[tyro.conf.Positional[AnyPath], tyro.conf.arg(metavar="SRC")]  # or a URL
    destination: _Destination  # made unless it is there
    dtype: str | None = None  # of matrices, such as bfloat16; as stored unless given


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportGgufOptions:
    """Makes a directory in the published layout from a GGUF file of a Llama, Qwen2 or Qwen3 model.

    DST gets config.json, model.safetensors, and the tokenizer with its template. What quantisation
    lost stays lost. Example: loong import-gguf SmolLM2-135M-Instruct.Q4_1.gguf checkpoints/smollm2
    """

    source: _Source  # one .gguf file
    destination: _Destination  # made unless it is there
    dtype: str = "float32"  # of all weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportHfOptions:
    """Writes a checkpoint of ours in the published layout: config.json and safetensors files.

    SRC is a run (its last finished stage), a stage of one, what `loong import-hf` or `loong merge`
    made, or a directory of checkpoints. An export that was killed is started over when the same
    command runs again. Example: loong export-hf runs/quickstart exported
    """

    source: _Source  # weights of ours and their config
    destination: _Destination  # made unless it is there
    # of one file, in 10^9 bytes; unless given the files are those of the import, else of 5 at most
    max_shard_gb: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Judges every line of a JSON-lines file; the output has one verdict a line, in order.

    Most records have `answer` (a whole response or the answer alone) and `gold`;
    docs/reference/verifiers.md says what each verifier reads. A line that is no record is
    ungradable.

    Example: loong verify math --input cases.jsonl --output verdicts.jsonl
    """

    input: Path  # records, one JSON object a line
    output: Path  # {"verdict", "reason", "evidence", ...} a line; replaced when all is done


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
    if processes is None:
        besides = [
            _option("only", str | None, None, "run this stage alone, after those it needs"),
            _option(
                "source",
                Path | None,
                None,
                "a run with finished stages that --only, or the recipe, starts from",
                name="from",
            ),
        ]
        if hasattr(config, "form"):  # which is a part of the recipe by the time that this is read
            text = "of responses: longcat, think, think-answer, boxed, plain, completion, tagged"
            besides.append(_option("form_name", str | None, None, text, name="form"))
            text = "that problems come from, with commas between, instead of the recipe's"
            besides.append(_option("names", str | None, None, text, name="environments"))
            text = "rank of adapters that train in place of the weights, in every stage"
            besides.append(_option("rank", int | None, None, text, name="lora"))
            text = "that every problem offers, with commas between: python"
            besides.append(_option("tool_names", str | None, None, text, name="tools"))
        if getattr(getattr(config, "problems", None), "file", "") == "":
            text = "JSON lines of problems of your own, instead of the recipe's"
            besides.append(_option("problems_file", Path | None, None, text, name="problems"))
    else:
        besides = [_option("processes", type(processes), processes, None)]
    options = dataclasses.make_dataclass(
        "TrainOptions",
        [
            _option("run_dir", Path, Path("runs") / name, "where the run lives; resumed if there"),
            *besides,
            _option("config", type(config), config, None, name=""),
        ],
        frozen=True,
        kw_only=True,
    )
    return parse(options, f"loong train {name}", arguments, description=description)


def parse_launch(machines: type, actions: Sequence[str], arguments: Sequence[str]) -> Any:
    """Returns an object with `action, dry_run` and `machines`, of the type given."""
    options = dataclasses.make_dataclass(
        "LaunchOptions",
        [
            _option("action", tyro.conf.Positional[Literal[tuple(actions)]], "all", "what to do"),
            _option("dry_run", bool, False, "print the commands and run none of them"),
            _option("machines", machines, dataclasses.MISSING, None, name=""),
        ],
        frozen=True,
        kw_only=True,
    )
    text = "Runs a recipe on a TPU slice. Overrides of the recipe follow after `--`."
    return parse(options, "loong launch tpu-vm RECIPE", arguments, description=text)


def flags_of(config_type: type) -> set[str]:
    """The options of a config that take no value."""
    names = [f.name.replace("_", "-") for f in dataclasses.fields(config_type) if f.type is bool]
    return {f"--{no}{name}" for name in names for no in ("", "no-")}


def with_defaults(config_type: type, **defaults: Any) -> type:
    """`config_type` with other defaults, each of which also settles the kind of its field."""
    fields = [
        (name, type(value), dataclasses.field(default=value)) for name, value in defaults.items()
    ]
    chosen = dataclasses.make_dataclass(
        config_type.__name__, fields, bases=(config_type,), frozen=True, kw_only=True
    )
    # its source, where help texts are read from
    for name in ("__doc__", "__module__", "__qualname__", "__firstlineno__"):
        if name in vars(config_type):
            setattr(chosen, name, vars(config_type)[name])
    return chosen


def _option(
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
