"""A plan: what the programs of a step need of one slice, and how long it takes at best.

`make` compiles the programs and reads them. Everything here follows from the compiled text, the
compiler's account of memory, and the models of chip and torus that
`figures.assumptions` states.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loong_jax.models import families
from loong_jax.plan import collectives, compiled, counts, hlo, roofline
from loong_jax.plan.collectives import Collective
from loong_jax.plan.compiled import Compiled
from loong_jax.plan.hlo import Instruction
from loong_jax.plan.request import Request
from loong_jax.plan.roofline import Model, Segment, Walk
from loong_jax.plan.topology import Network

GB = 1e9
EXCHANGE_BANDWIDTHS = (100e9, 200e9, 400e9)  # effective all-to-all, bytes per second and chip
REFERENCE_BANDWIDTH = 200e9
_EXCHANGES = ("all-to-all", "ragged-all-to-all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """The roofline at one effective bandwidth of the expert exchange, if there is any."""

    exchange_bandwidth: float
    step: Segment
    program_s: dict[str, float]  # of one call of each program
    useful_flops: float  # of the whole step, over all devices
    peak_flops: float  # of all chips, per second

    @property
    def step_s(self) -> float:
        return self.step.seconds

    @property
    def mfu(self) -> float:
        return self.useful_flops / (self.step_s * self.peak_flops)

    def traffic(self, *, of_experts: bool) -> tuple[float, float]:
        """Seconds on the links, and those of them that nothing hides, in one step."""
        total = exposed = 0.0
        for row in self.step.rows:
            share = row.collective.expert_share
            share = share if of_experts else 1 - share
            total += share * row.seconds * row.trips
            exposed += share * row.exposed_s * row.trips
        return total, exposed

    @property
    def hidden_share(self) -> float | None:
        """The hidden share of expert traffic's time on the links; None where there is none."""
        total, exposed = self.traffic(of_experts=True)
        return 1 - exposed / total if total else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A request and its results; `timings` is empty where a program does not fit."""

    request: Request
    programs: tuple[Compiled, ...]
    timings: tuple[Timing, ...]
    torus_all_to_all: float | None  # bytes per second and chip that the torus model gives
    warnings: tuple[str, ...]
    versions: dict[str, str]

    @property
    def hbm_limit(self) -> float:
        """Bytes per device."""
        chip = self.request.topology.chip
        return chip.hbm_bytes / chip.num_devices

    @property
    def compiled(self) -> Compiled:
        """The program that needs most memory."""
        return max(self.programs, key=lambda program: sum(bytes_by_kind(program).values()))

    @property
    def hbm_by_kind(self) -> dict[str, float]:
        """Bytes on one device when it needs most: by kind what lies there, and what only the
        program that then runs needs.
        """
        return bytes_by_kind(self.compiled)

    @property
    def hbm_bytes(self) -> float:
        """Bytes that one device needs."""
        return sum(self.hbm_by_kind.values())

    @property
    def host_bytes(self) -> float:
        """Bytes of host memory that one device needs."""
        return max(program.host_bytes for program in self.programs)

    @property
    def fits(self) -> bool:
        refused = any(program.out_of_memory is not None for program in self.programs)
        return not refused and self.hbm_bytes <= self.hbm_limit

    @property
    def reference(self) -> Timing | None:
        """The timing at 200 GB/s."""
        same = (t for t in self.timings if t.exchange_bandwidth == REFERENCE_BANDWIDTH)
        return next(same, None)


def bytes_by_kind(program: Compiled) -> dict[str, float]:
    """On one device while the program runs."""
    known = {**program.resident, **program.arguments}
    if program.out_of_memory is not None:
        rest = program.out_of_memory["used"] - sum(program.arguments.values())
        return known | {"temporary and padding": rest}
    memory = program.memory
    parts = known | {
        "padding": memory["argument"] - sum(program.arguments.values()),
        "new outputs": memory["output"] - memory["alias"],
        "temporary": memory["temp"],
        "program": memory["generated_code"],
    }
    return {kind: size for kind, size in parts.items() if size > 0}


def make(request: Request, *, timeout_s: float, keep: Path | None = None) -> Plan:
    """Compiles the request's programs in a child process and reads them."""
    result = compiled.compile_ahead(request, timeout_s=timeout_s, keep=keep)
    return read(request, result, compiled.versions())


def read(request: Request, programs: Sequence[Compiled], versions: dict[str, str]) -> Plan:
    """The plan of programs that are compiled already."""
    timings, warnings, all_to_all = [], [], None
    called = [program for program in programs if program.runs]
    if all(program.text is not None for program in called):
        modules = [hlo.parse(program.text or "") for program in called]
        network = Network(request.topology, called[0].coordinates)
        routes = families.family_of(request.config).routes
        for bandwidth in EXCHANGE_BANDWIDTHS if routes else (REFERENCE_BANDWIDTH,):
            model = _model(request, network, bandwidth)
            walks = [Walk(module, model) for module in modules]
            segments = [walk.entry() for walk in walks]
            runs = [program.runs for program in called]
            timings.append(
                Timing(
                    exchange_bandwidth=bandwidth,
                    step=roofline.one_after_the_other(zip(runs, segments, strict=True)),
                    program_s={p.name: s.seconds for p, s in zip(called, segments, strict=True)},
                    useful_flops=useful_flops(request, called[0].weights),
                    peak_flops=request.topology.num_chips * request.topology.chip.bf16_flops,
                )
            )
            warnings = list(dict.fromkeys(said for walk in walks for said in walk.warnings))
        rows = timings[0].step.rows
        found = [row.collective for row in rows if row.collective.kind in _EXCHANGES]
        if largest := max(found, key=lambda c: c.sent_bytes, default=None):
            all_to_all = network.all_to_all_bandwidth(largest.groups)
    return Plan(
        request=request,
        programs=tuple(programs),
        timings=tuple(timings),
        torus_all_to_all=all_to_all,
        warnings=tuple(warnings),
        versions=versions,
    )


def _model(request: Request, network: Network, exchange_bandwidth: float) -> Model:
    chip = request.topology.chip

    def seconds(collective: Collective) -> float:
        if collective.kind in _EXCHANGES and collective.expert_share > 0:
            return collective.sent_bytes * chip.num_devices / exchange_bandwidth
        return network.seconds(collective.kind, collective.sent_bytes, collective.groups)

    def trips(loop: Instruction) -> float | None:
        return 0.0 if collectives.of_experts(loop.op_name) else None  # later rounds

    weights = collectives.weights_of_experts(request.config, request.mesh)
    return Model(chip, dict(request.mesh), seconds, trips, weights)


def useful_flops(request: Request, weights: Any) -> float:
    """Operations of a step: 6 (training) or 2 per active weight and token, and attention.

    Attention counts each pair of a query and a key that it may see once, in the expanded form. A
    prefill needs the logits of the last token of each sequence. Recomputation is not useful.
    """
    passes = 3 if request.mode == "train" else 1
    seen = request.length if request.mode == "decode" else (request.length + 1) / 2
    per_token = 2 * weights["active"] + counts.attention_flops(request.config, seen)
    flops = passes * request.num_tokens * per_token
    if request.mode == "prefill":
        flops -= 2 * weights["head"] * (request.num_tokens - request.batch)
    return flops
