"""A plan: what one program needs of one slice, and how long it takes at best.

`make` compiles the program and reads it. Everything here follows from the compiled text, the
compiler's account of memory, and the models of chip and torus that `assumptions` states.
"""

import dataclasses
from pathlib import Path
from typing import Any

from loong_jax.launch.plan import advice, collectives, compiled, hlo, roofline
from loong_jax.launch.plan.collectives import Collective
from loong_jax.launch.plan.compiled import Compiled
from loong_jax.launch.plan.hlo import Instruction
from loong_jax.launch.plan.request import Request, show_mesh
from loong_jax.launch.plan.roofline import Model, Row, Segment, Walk
from loong_jax.launch.plan.torus import HOP_S, LINK_EFFICIENCY, Network
from loong_jax.models.moe.config import MoEConfig

GB = 1e9
EXCHANGE_BANDWIDTHS = (100e9, 200e9, 400e9)  # effective all-to-all, bytes per second and chip
REFERENCE_BANDWIDTH = 200e9
# What LongCat-Flash is reported to decode on an H800 at 5K context (arXiv:2509.01322, section 6),
# and that chip's memory bandwidth.
H800_TOKENS_PER_S = 3785
H800_HBM_BANDWIDTH = 3.35e12
_EXCHANGES = ("all-to-all", "ragged-all-to-all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """The roofline at one effective bandwidth of the expert exchange."""

    exchange_bandwidth: float
    step: Segment
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
        """Of the time that expert traffic spends on the links; None where there is none."""
        total, exposed = self.traffic(of_experts=True)
        return 1 - exposed / total if total else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What was asked and what came out; `timings` is empty where the program does not fit."""

    request: Request
    compiled: Compiled
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
    def hbm_by_kind(self) -> dict[str, float]:
        """Bytes on one device; arguments by kind, and what only this program needs."""
        if self.compiled.out_of_memory is not None:
            known = dict(self.compiled.arguments)
            rest = self.compiled.out_of_memory["used"] - sum(known.values())
            return known | {"temporary and padding": rest}
        memory = self.compiled.memory
        known = dict(self.compiled.arguments)
        padding = memory["argument"] - sum(known.values())
        parts = known | {
            "padding": padding,
            "new outputs": memory["output"] - memory["alias"],
            "temporary": memory["temp"],
            "program": memory["generated_code"],
        }
        return {kind: size for kind, size in parts.items() if size > 0}

    @property
    def hbm_bytes(self) -> float:
        """Bytes that one device needs."""
        return sum(self.hbm_by_kind.values())

    @property
    def fits(self) -> bool:
        return self.compiled.out_of_memory is None and self.hbm_bytes <= self.hbm_limit

    @property
    def reference(self) -> Timing | None:
        """The timing at 200 GB/s."""
        same = (t for t in self.timings if t.exchange_bandwidth == REFERENCE_BANDWIDTH)
        return next(same, None)

    @property
    def advice(self) -> tuple[str, ...]:
        return advice.advise(self)


def make(request: Request, *, timeout_s: float, keep: Path | None = None) -> Plan:
    """Compiles the request's program in a child process and reads it."""
    result = compiled.compile_ahead(request, timeout_s=timeout_s, keep=keep)
    return read(request, result, compiled.versions())


def read(request: Request, result: Compiled, versions: dict[str, str]) -> Plan:
    """The plan of a program that is compiled already."""
    timings, warnings, all_to_all = [], [], None
    if result.text is not None:
        module = hlo.parse(result.text)
        network = Network(request.topology, result.coordinates)
        for bandwidth in EXCHANGE_BANDWIDTHS:
            walk = Walk(module, _model(request, network, bandwidth))
            timings.append(
                Timing(
                    exchange_bandwidth=bandwidth,
                    step=walk.entry(),
                    useful_flops=useful_flops(request, result.weights),
                    peak_flops=request.topology.num_chips * request.topology.chip.bf16_flops,
                )
            )
            warnings = walk.warnings
        all_to_all = _torus_all_to_all(timings[0].step.rows, network)
    return Plan(
        request=request,
        compiled=result,
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

    return Model(chip, dict(request.mesh), seconds, trips)


def _torus_all_to_all(rows: list[Row], network: Network) -> float | None:
    found = [row.collective for row in rows if row.collective.kind in _EXCHANGES]
    largest = max(found, key=lambda c: c.sent_bytes, default=None)
    return None if largest is None else network.all_to_all_bandwidth(largest.groups)


def useful_flops(request: Request, weights: Any) -> float:
    """Of one step over all devices: 6 (training) or 2 per active weight and token, and attention.

    Attention counts each pair of a query and a key that it may see once, in the expanded form.
    Recomputation is not useful.
    """
    passes = 3 if request.mode == "train" else 1
    seen = request.length if request.mode == "decode" else (request.length + 1) / 2
    per_token = 2 * weights["active"] + attention_flops(request.config, seen)
    return passes * request.num_tokens * per_token


def attention_flops(config: MoEConfig, seen: float) -> float:
    """Of the scores and mixed values of one token that sees `seen` keys, all layers, forward."""
    width = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    return 2 * config.num_layers * 2 * config.num_heads * width * seen


def assumptions(plan: Plan) -> tuple[str, ...]:
    """Everything that the figures rest on and that no machine has measured."""
    request = plan.request
    chip = request.topology.chip
    bandwidth = f"{plan.torus_all_to_all / GB:.0f}" if plan.torus_all_to_all else None
    stated = [
        "compiled ahead of time; no TPU ran",
        f"a fusion takes max(FLOPs / {roofline.PEAK_SHARE} of {chip.bf16_flops / 1e12:.0f} "
        f"TFLOP/s, bytes / {roofline.HBM_SHARE} of {chip.hbm_bandwidth / GB:.0f} GB/s) per chip",
        "only products count as FLOPs; float32 products at highest precision take 6 passes; "
        "kernels as they state, splash attention over the blocks of 512 that causality leaves",
        "a synchronous collective takes its whole time, an asynchronous one what exceeds the work "
        "scheduled between its launch and its end; link time is never used twice",
        f"links: {chip.link_bandwidth / GB:.0f} GB/s one way, {LINK_EFFICIENCY:.0%} of it reached, "
        f"{HOP_S * 1e6:.0f} us per step, {chip.num_torus_axes} axes"
        + (", shared by two devices" if chip.num_devices == 2 else ""),
        f"expert all-to-all at {REFERENCE_BANDWIDTH / GB:.0f} GB/s per chip unless another column "
        "says so" + (f"; the torus model gives {bandwidth}" if bandwidth else ""),
        "expert traffic: every collective of the experts' scope, weights and gradients included",
        f"MFU: {6 if request.mode == 'train' else 2} x active weights (K_e = "
        f"{request.config.target_ffn_experts:g} experts, no embedding table) + attention over the "
        "keys a query may see; recomputation is not counted",
        "every expert receives no more rows than the exchange's buffers hold, so later rounds of "
        "the exchange are not run; of a branch the cheapest side counts",
    ]
    if request.topology.num_slices > 1:
        stated.append(
            f"between slices {chip.dcn_bandwidth / GB:g} GB/s per chip over the data-centre network"
        )
    if request.mode == "decode":
        stated.append(
            f"all {request.length} entries of each cache are filled; a step verifies "
            f"{request.num_drafts} drafted tokens per sequence at acceptance "
            f"{request.acceptance:g}; the time of drafting is not included"
        )
    return tuple(stated) + plan.warnings


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values; figures are of one step."""
    request, reference = plan.request, plan.reference
    result: dict[str, Any] = {
        "model": request.model,
        "topology": str(request.topology),
        "mode": request.mode,
        "mesh": {axis: size for axis, size in request.mesh.items() if size > 1},
        "batch": request.batch,
        "length": request.length,
        "num_microbatches": request.num_microbatches,
        "num_chips": request.topology.num_chips,
        "devices_per_chip": request.topology.chip.num_devices,
        "compiler_options": dict(request.compiler_options),
        "fits": plan.fits,
        "hbm_per_device_gb": plan.hbm_bytes / GB,
        "hbm_limit_gb": plan.hbm_limit / GB,
        "hbm_by_kind_gb": {kind: size / GB for kind, size in plan.hbm_by_kind.items()},
        "shardings": dict(plan.compiled.shardings),
        "num_weights": dict(plan.compiled.weights),
        "roofline_mfu": None,
        "roofline_step_s": None,
        "expert_traffic_hidden_share": None,
        "compile_s": plan.compiled.compile_s,
        "assumptions": list(assumptions(plan)),
        "versions": plan.versions,
        "advice": list(plan.advice),
    }
    if reference is not None:
        step = reference.step
        tokens_per_s = request.num_kept_tokens / reference.step_s / request.topology.num_chips
        if request.mode == "decode":
            result["decode"] = decode_figures(plan, reference)
        result |= {
            "roofline_mfu": reference.mfu,
            "roofline_step_s": reference.step_s,
            "expert_traffic_hidden_share": reference.hidden_share,
            "tokens_per_s_per_chip": tokens_per_s,
            "torus_all_to_all_gb_per_s": (plan.torus_all_to_all or 0) / GB or None,
            "flops_per_device": step.cost.flops,
            "hbm_traffic_gb_per_device": step.cost.hbm_bytes / GB,
            "seconds": breakdown(reference),
            "compiler_estimate_of_fusions_s": _compiler_estimate(plan, reference),
            "by_exchange_bandwidth": [_row_of_table(timing) for timing in plan.timings],
            "collectives": [row_to_json(row) for row in step.rows],
        }
    return result


def decode_figures(plan: Plan, timing: Timing) -> dict[str, float]:
    """Tokens per second and chip beside what others reach and what memory allows.

    The target is the published figure of an H800 times the ratio of memory bandwidths. The bounds
    count one pass over the cache, and over cache and weights, at all of the bandwidth.
    """
    request, chip = plan.request, plan.request.topology.chip
    kept = request.num_kept_tokens / request.topology.num_chips
    per_byte = chip.num_devices / chip.hbm_bandwidth
    cache_s = plan.compiled.arguments["cache"] * per_byte
    all_s = cache_s + plan.compiled.arguments["weights"] * per_byte
    reached = kept / timing.step_s
    target = H800_TOKENS_PER_S * chip.hbm_bandwidth / H800_HBM_BANDWIDTH
    return {
        "tokens_per_s_per_chip": reached,
        "tokens_per_s_per_sequence": request.num_kept_tokens / request.batch / timing.step_s,
        "acceptance": request.acceptance,
        "num_drafts": request.num_drafts,
        "target_tokens_per_s_per_chip": target,
        "share_of_target": reached / target,
        "cache_bound_tokens_per_s_per_chip": kept / cache_s,
        "memory_bound_tokens_per_s_per_chip": kept / all_s,
    }


def _compiler_estimate(plan: Plan, timing: Timing) -> float | None:
    """What the compiler expects all fusions of a step to take; kernels are not among them."""
    clock = plan.request.topology.chip.clock_hz
    return None if clock is None else timing.step.estimated_cycles / clock


def breakdown(timing: Timing) -> dict[str, float]:
    """Where the seconds of a step go; they add up to it."""
    step = timing.step
    _, experts = timing.traffic(of_experts=True)
    _, others = timing.traffic(of_experts=False)
    return {
        "products": step.product_s,
        "memory traffic": step.compute_s - step.product_s,
        "exposed expert traffic": experts,
        "exposed other traffic": others,
        "exposed copies and SparseCore": step.exposed_copy_s,
    }


def _row_of_table(timing: Timing) -> dict[str, float | None]:
    total, exposed = timing.traffic(of_experts=True)
    return {
        "gb_per_s_per_chip": timing.exchange_bandwidth / GB,
        "hidden_share": timing.hidden_share,
        "expert_traffic_s": total,
        "exposed_s": exposed,
        "step_s": timing.step_s,
        "mfu": timing.mfu,
    }


def row_to_json(row: Row) -> dict[str, Any]:
    collective = row.collective
    return {
        "name": row.name,
        "kind": collective.kind,
        "axes": list(collective.axes),
        "group_size": collective.group_size,
        "sent_mb": collective.sent_bytes / 1e6,
        "trips": row.trips,
        "is_asynchronous": row.is_asynchronous,
        "seconds": row.seconds,
        "exposed_s": row.exposed_s,
        "window_s": row.window_s,
        "window_tflop": sum(work.flops for work in row.inside) / 1e12,
        "inside": [work.op_name or work.name for work in row.inside if work.flops],
        "expert_share": collective.expert_share,
        "op_name": collective.op_name,
    }


def title(plan: Plan) -> str:
    """One line that says what was planned."""
    request = plan.request
    return (
        f"{request.model} {request.mode} on {request.topology}, mesh {show_mesh(request.mesh)}, "
        f"{request.batch} x {request.length} tokens"
    )
