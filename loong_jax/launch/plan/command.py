"""`loong plan`: options, and what is done with them."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import rich.console
import tyro

from loong_jax import options
from loong_jax.launch.plan import compiler, plan, report, request
from loong_jax.launch.plan.request import Mode, Request
from loong_jax.launch.plan.topology import Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Compiles a program for a TPU slice on this machine and reads what it needs.

    No TPU is used. Prints HBM by kind against the chip's limit, a roofline of the compiled
    schedule, which collectives run beside work, and what to change when it does not fit.
    Example: loong plan longcat-flash --topology tpu7x:4x4x8 --mesh expert=256
    """

    model: tyro.conf.Positional[str]  # longcat-flash, tiny, or a JSON file of MoEConfig's fields
    topology: str  # v5e:4x4, v5p:4x4x8, v6e:8x8, tpu7x:4x4x4, or '2x v5p:4x4x4'
    slices: int | None = None  # as many slices, if the topology does not say
    mode: Mode = "train"
    mesh: str | None = None  # expert=32,fsdp=4; without it the best that --search would compile
    batch: int | None = None  # sequences over all devices; default one per device that takes any
    length: int | None = None  # tokens per sequence, or context in decode; 4096, 5120 in decode
    num_microbatches: int = 1  # gradient accumulation
    num_layers: int | None = None  # plan a shorter model
    search: bool = False  # try mesh shapes: an analytic model first, the best five compiled
    json: Path | None = None  # write the plan here
    chart: Path | None = None  # draw memory and schedule here, .svg or .png
    keep: Path | None = None  # keep the compiled program and its account in this directory
    timeout_s: float = 1800.0  # of one compilation


def main(arguments: Sequence[str]) -> int:
    """Runs the command; 0 where the program fits."""
    chosen = options.parse(PlanOptions, "loong plan", arguments)
    asked = make_request(chosen)
    console = rich.console.Console()
    made = plan.make(asked, timeout_s=chosen.timeout_s, keep=chosen.keep)
    report.show(made, console)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(plan.to_json(made), indent=1) + "\n", encoding="utf-8")
    if chosen.chart is not None:
        from loong_jax.launch.plan import chart

        chart.save(made, chosen.chart)
    return 0 if made.fits else 1


def make_request(chosen: PlanOptions) -> Request:
    """What the options ask for, defaults filled in."""
    topology = Topology.parse(chosen.topology, num_slices=chosen.slices)
    config = dataclasses.replace(request.find_model(chosen.model), chunk_tokens=None)
    if chosen.num_layers is not None:
        config = dataclasses.replace(config, num_layers=chosen.num_layers)
    mesh = request.parse_mesh(chosen.mesh or f"expert={topology.num_devices}", topology)
    shards = chosen.num_microbatches
    for axis in request.BATCH_AXES:
        shards *= mesh[axis]
    return Request(
        model=chosen.model,
        config=config,
        topology=topology,
        mode=chosen.mode,
        mesh=mesh,
        batch=chosen.batch or shards,
        length=chosen.length or (5120 if chosen.mode == "decode" else 4096),
        num_microbatches=chosen.num_microbatches,
        compiler_options=compiler.options(topology.chip),
    )
