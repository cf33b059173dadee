"""`loong plan`: options, and what is done with them."""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import rich.console
import tyro

from loong_jax import configs, options
from loong_jax.errors import ConfigError
from loong_jax.models.families import ModelConfig
from loong_jax.models.moe import exchange
from loong_jax.models.moe.config import MoEConfig, RematWord
from loong_jax.plan import analytic, compiled, figures, plan, report, request
from loong_jax.plan.analytic import Estimate
from loong_jax.plan.plan import Plan
from loong_jax.plan.request import Mode, Request, TensorCuts
from loong_jax.plan.topology import Topology
from loong_jax.run import devices, places

NUM_COMPILED = 5  # of the meshes that a search ranks
Tried = tuple[Estimate, Plan | None, str]  # of one mesh; None and why where it does not compile
_OF_EXPERTS = ("exchange", "buffer_factor", "choices_per_row", "fp8_dispatch")  # options
REMAT_WORDS = get_args(RematWord)
CHART_SUFFIXES = (".svg", ".png", ".pdf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Compiles a program for a TPU slice on this machine and reads what it needs.

    No TPU is used. Prints HBM by kind against the chip's limit, a roofline of the compiled
    schedule, which collectives run beside work, and what to change when it does not fit.
    Example: loong plan longcat-flash --topology v5p:4x4x8 --mesh expert=128
    """

    # longcat-flash, longcat-flash-lite, qwen2.5-7b, smollm2-135m, tiny, tiny-dense, a JSON file of
    # a config's fields, or a directory: published weights, what import-hf made, or a run
    model: tyro.conf.Positional[str]
    topology: str  # v5e:4x4, v5p:4x4x8, v6e:8x8, tpu7x:4x4x4, or '2x v5p:4x4x4'
    # if the topology does not say
    num_slices: Annotated[int | None, tyro.conf.arg(aliases=["--slices"])] = None
    mode: Mode = "train"  # the program that is compiled
    mesh: str | None = None  # expert=32,fsdp=4; without it the best of an analytic model
    batch: int | None = None  # sequences over all devices; default one per device that takes any
    length: int | None = None  # tokens per sequence, or context in decode; 4096, 5120 in decode
    num_microbatches: int = 1  # gradient accumulation
    offload_moments: bool = False  # train: those of the optimizer lie in host memory
    num_steps: int = 1  # decode: steps in one call, as the engine decodes by blocks
    num_drafts: int = 0  # decode: tokens drafted and verified per step and sequence
    acceptance: float = 0.8  # the chance that a drafted token stays
    tensor_cuts: TensorCuts | None = None  # decode: sequences (default), or heads as elsewhere
    num_layers: int | None = None  # plan a shorter model
    exchange: Literal["padded", "gather", "ragged"] = "padded"  # how rows reach experts elsewhere
    buffer_factor: float | None = None  # room of its buffers, in mean loads
    choices_per_row: int = 1  # padded: a token goes once for so many experts of one device
    fp8_dispatch: bool = False  # not with gather: rows are dispatched in eight bits
    # in training: off, layer (default), or what is kept, as residual+ffn_1; with experts also
    # all_but_dispatched (default there)
    remat: str | None = None
    search: bool = False  # try mesh shapes: an analytic model first, the best five compiled
    json: Path | None = None  # write the plan here
    chart: Path | None = None  # draw memory and schedule here, .svg or .png
    keep: Path | None = None  # keep compiled programs here; a search's in a directory per mesh
    timeout_s: float = 1800.0  # of one compilation


def main(arguments: Sequence[str]) -> int:
    """Runs the command; 0 where the program fits."""
    chosen = options.parse(PlanOptions, "loong plan", arguments)
    check_sizes(chosen)
    check_meaning(chosen)
    topology = Topology.parse(chosen.topology, num_slices=chosen.num_slices)
    config = make_config(chosen)
    check_outputs(chosen)
    width = None if sys.stdout.isatty() else 130  # a file has no width of its own
    console = rich.console.Console(width=width)
    tried: list[Tried] = []
    if chosen.search:
        made, tried = search(chosen, config, topology, console)
    else:
        mesh = choose_mesh(chosen, config, topology)
        asked = make_request(chosen, config, topology, mesh)
        made = plan.make(asked, timeout_s=chosen.timeout_s, keep=chosen.keep)
    report.show(made, console)
    if chosen.json is not None:
        record = figures.to_json(made)
        if chosen.search:
            record["search"] = [figures.tried_to_json(*one) for one in tried]
        text = json.dumps(record, indent=1, allow_nan=False)
        chosen.json.write_text(text + "\n", encoding="utf-8")
    if chosen.chart is not None:
        from loong_jax.plan import chart

        chart.save(made, chosen.chart)
    return 0 if made.fits else 1


def check_sizes(chosen: PlanOptions) -> None:
    """Raises ConfigError where a number that counts something is below 1."""
    for name in ("num_slices", "batch", "length", "num_microbatches", "num_steps", "timeout_s"):
        size = getattr(chosen, name)
        if size is not None and not 1 <= size < math.inf:
            raise ConfigError(
                f"--{name.replace('_', '-')} {size:g} must be finite and at least 1. Correct it, "
                "or leave it out."
            )


def check_meaning(chosen: PlanOptions) -> None:
    """Raises ConfigError where an option would change nothing beside the others."""
    in_mode, is_other = f"in mode {chosen.mode}: train alone has", chosen.mode != "train"
    for is_idle, option, why in (
        (chosen.search and chosen.mesh, f"--mesh {chosen.mesh}", "with --search, which tries them"),
        (is_other and chosen.remat, f"--remat {chosen.remat}", f"{in_mode} a backward pass"),
        (is_other and chosen.offload_moments, "--offload-moments", f"{in_mode} an optimizer"),
        (
            chosen.acceptance != _default("acceptance") and not chosen.num_drafts,
            f"--acceptance {chosen.acceptance:g}",
            "without --num-drafts: no token is drafted",
        ),
    ):
        if is_idle:
            raise ConfigError(f"{option} {why}. Leave it out, or change the other.")


def _default(name: str) -> Any:
    return PlanOptions.__dataclass_fields__[name].default


def check_outputs(chosen: PlanOptions) -> None:
    """Raises ConfigError where a file could not be written, before anything is compiled."""
    if chosen.chart is not None and chosen.chart.suffix not in CHART_SUFFIXES:
        raise ConfigError(
            f"--chart {chosen.chart} ends in none of {', '.join(CHART_SUFFIXES)}, which says what "
            "to draw. Give it such an ending."
        )
    files = {"json": chosen.json, "chart": chosen.chart}
    places.prepare_files(**{option: path for option, path in files.items() if not _is_device(path)})
    places.try_directories(keep=chosen.keep)


def _is_device(path: Path | None) -> bool:
    """/dev/stdout, say, or a pipe."""
    if path is None or not path.exists():
        return False
    return places.is_stdout(path) or not (path.is_file() or path.is_dir())


def make_config(chosen: PlanOptions) -> ModelConfig:
    """The model, with what the options say of its exchange, its layers and what they keep."""
    config = request.find_model(chosen.model)
    kept = "layer"
    if isinstance(config, MoEConfig):
        kept = "all_but_dispatched"
        config = dataclasses.replace(config, exchange=make_exchange(chosen))
        if chosen.choices_per_row > config.num_chosen:
            raise ConfigError(
                f"--choices-per-row {chosen.choices_per_row} exceeds num_chosen="
                f"{config.num_chosen} of {chosen.model}: a token has no more choices. Lower it."
            )
    elif told := [name for name in _OF_EXPERTS if getattr(chosen, name) != _default(name)]:
        raise ConfigError(
            f"--{told[0].replace('_', '-')} for {chosen.model}, a {type(config).__name__}: it has "
            "no experts to dispatch tokens to. Leave it out."
        )
    remat = chosen.remat or kept if chosen.mode == "train" else "off"
    config = dataclasses.replace(
        config,
        chunk_tokens=None,
        remat=remat if remat in REMAT_WORDS else tuple(remat.split("+")),
    )
    if chosen.num_layers is None:
        return config
    return dataclasses.replace(config, num_layers=chosen.num_layers)


def make_exchange(chosen: PlanOptions) -> exchange.Exchange:
    """The exchange that the options describe."""
    factor = {} if chosen.buffer_factor is None else {"buffer_factor": chosen.buffer_factor}
    dtype = "float8_e4m3fn" if chosen.fp8_dispatch else None
    if chosen.choices_per_row != 1 and chosen.exchange != "padded":
        raise ConfigError(
            f"--choices-per-row {chosen.choices_per_row} with --exchange {chosen.exchange}: only "
            "the padded exchange carries several choices in a row. Leave it out, or choose padded."
        )
    if chosen.exchange == "padded":
        per_row = chosen.choices_per_row
        return exchange.PaddedExchange(choices_per_row=per_row, dispatch_dtype=dtype, **factor)
    if chosen.exchange == "ragged":
        return exchange.RaggedExchange(dispatch_dtype=dtype, **factor)
    if dtype is not None:
        raise ConfigError(
            "--fp8-dispatch with --exchange gather: it gathers tokens in the dtype of activations. "
            "Leave it out, or choose padded or ragged."
        )
    return exchange.GatherExchange(**factor)


def make_request(
    chosen: PlanOptions, config: ModelConfig, topology: Topology, mesh: Mapping[str, int]
) -> Request:
    """The request of the options on this mesh, defaults filled in."""
    return configs.made_from(
        Request,
        chosen,
        config=config,
        topology=topology,
        mesh=mesh,
        batch=chosen.batch or _shards(chosen, mesh),
        length=chosen.length or (5120 if chosen.mode == "decode" else 4096),
        acceptance=chosen.acceptance if chosen.num_drafts else 0.0,
        tensor_cuts=_tensor_cuts(chosen),
        compiler_options=devices.compiler_options(
            topology.slice_name,
            getattr(config, "exchange", None),
            decodes=chosen.mode == "decode",
        ),
    )


def choose_mesh(chosen: PlanOptions, config: ModelConfig, topology: Topology) -> Mapping[str, int]:
    """The mesh of the options, else the one that the analytic model likes best."""
    if chosen.mesh is not None:
        return request.parse_mesh(chosen.mesh, topology)
    return ranked(chosen, config, topology)[0].mesh


def search(
    chosen: PlanOptions, config: ModelConfig, topology: Topology, console: rich.console.Console
) -> tuple[Plan, list[Tried]]:
    """Ranks meshes by the analytic model and compiles the best.

    Returns the best of those, and all of them as they were ranked.
    """
    estimates = ranked(chosen, config, topology)[:NUM_COMPILED]
    plans: list[Tried] = []
    for number, made in enumerate(estimates, start=1):
        console.print(
            f"{number} of {len(estimates)}: {request.show_mesh(made.mesh)}, estimated "
            f"{figures.of_size(made.hbm_bytes).show(made.hbm_bytes, 1)} and "
            f"{figures.of_time(made.step_s).show(made.step_s, 3)}; compiling"
        )
        keep = chosen.keep and chosen.keep / request.show_mesh(made.mesh).replace(" ", "-")
        try:
            compiled_plan = plan.make(made.request, timeout_s=chosen.timeout_s, keep=keep)
            plans.append((made, compiled_plan, ""))
        except compiled.CompilerError as error:
            console.print(f"  {error}")
            plans.append((made, None, str(error)))
    report.show_search(plans, console)
    found = [p for _, p, _ in plans if p is not None]
    if not found:
        raise ConfigError(f"no mesh of {len(plans)} compiles; the last: {plans[-1][2]}")

    def merit(made: Plan) -> tuple[bool, float]:
        """Plans that fit come first, then those that take less time per token."""
        timing = made.reference
        seconds = math.inf if timing is None else timing.step_s / made.request.num_tokens
        return not made.fits, seconds

    return min(found, key=merit), plans


def ranked(chosen: PlanOptions, config: ModelConfig, topology: Topology) -> list[Estimate]:
    """Estimates of the request on every mesh that divides it, the best first.

    Without a batch every mesh gets one sequence for each device that takes any.
    """
    found = analytic.ranked(
        make_request(chosen, config, topology, mesh)
        for mesh in analytic.meshes(config, topology, chosen.mode, _tensor_cuts(chosen))
        if not chosen.batch or not chosen.batch % _shards(chosen, mesh)
    )
    if not found:
        divided, other = chosen.model, "a smaller topology"
        if chosen.batch is not None:
            divided, other = f"{divided} and batch={chosen.batch}", f"another batch or {other}"
        raise ConfigError(f"no mesh of {topology} divides {divided}. Name {other}, or a --mesh.")
    return found


def _shards(chosen: PlanOptions, mesh: Mapping[str, int]) -> int:
    axes = request.batch_axes(_tensor_cuts(chosen))
    return math.prod(mesh[axis] for axis in axes) * chosen.num_microbatches


def _tensor_cuts(chosen: PlanOptions) -> TensorCuts:
    return chosen.tensor_cuts or ("sequences" if chosen.mode == "decode" else "heads")
