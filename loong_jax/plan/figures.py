"""The figures of a plan: values for JSON and what they rest on, advice, units to say them in."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

from loong_jax.models import families
from loong_jax.models.families import ModelConfig
from loong_jax.models.moe.config import MoEConfig
from loong_jax.plan import roofline
from loong_jax.plan.analytic import Estimate
from loong_jax.plan.plan import GB, REFERENCE_BANDWIDTH, Plan, Timing, bytes_by_kind
from loong_jax.plan.request import show_mesh
from loong_jax.plan.roofline import Row
from loong_jax.plan.topology import HOP_S, LINK_EFFICIENCY

# LongCat-Flash's reported decoding rate on an H800 at 5K context (arXiv:2509.01322, section 6),
# and that chip's memory bandwidth.
H800_TOKENS_PER_S = 3785
H800_HBM_BANDWIDTH = 3.35e12
_NOT_OF_THE_MODEL = ("num_mtp_layers", "max_position", "token_chunks")  # sizes that may differ


class Unit(NamedTuple):
    """A unit that a table or a sentence keeps to."""

    name: str
    size: float  # in seconds, bytes or operations
    digits: int  # behind the point in a table

    def number(self, quantity: float, digits: int | None = None) -> str:
        """`quantity` in this unit, without its name."""
        return f"{quantity / self.size:.{self.digits if digits is None else digits}f}"

    def show(self, quantity: float, digits: int | None = None) -> str:
        return f"{self.number(quantity, digits)} {self.name}"


def _fitting(times: float, units: tuple[Unit, ...], largest: float) -> Unit:
    """The unit of quantities up to `largest`, of which the first unit with one in `times` of it."""
    if largest <= 0:
        return units[0]
    return next((unit for unit in units if times * largest >= unit.size), units[-1])


_TIMES = (Unit("s", 1.0, 4), Unit("ms", 1e-3, 3), Unit("us", 1e-6, 2))
of_time = functools.partial(_fitting, 100, _TIMES)  # seconds from 10 ms on
of_size = functools.partial(
    _fitting, 10, (Unit("GB", 1e9, 3), Unit("MB", 1e6, 3), Unit("KB", 1e3, 2))
)
of_work = functools.partial(
    _fitting, 100, (Unit("TFLOP", 1e12, 2), Unit("GFLOP", 1e9, 2), Unit("MFLOP", 1e6, 2))
)
of_transfer_time = functools.partial(_fitting, 10, _TIMES[1:])
of_transfer_size = functools.partial(_fitting, 1, (Unit("MB", 1e6, 1), Unit("KB", 1e3, 1)))


_EXPERT_TRAFFIC = (
    f"expert all-to-all at {REFERENCE_BANDWIDTH / GB:.0f} GB/s per chip unless another column "
    "says so{torus}"
)
_EXPERT_SCOPE = (
    "expert traffic: every collective of the experts' scope, and over other axes than expert "
    "every one of arrays with the dimensions of their weights, whole or cut, which lose that "
    "scope in XLA"
)
_OF_A_TRAINER = (
    "a step is {runs} x accumulate and one update, the programs of the trainer of `loong train`; "
    "memory is that of the fullest moment of these and of scoring, on devices that no replica "
    "shares and that keep no older version of the policy"
)
_OFFLOADED = (
    "moments lie in host memory, {size} for each device, and go to it and back once in an update; "
    "no table of Google's states how fast, so that the time on PCIe is not included"
)
_NO_LATER_ROUNDS = (
    "every expert receives no more rows than the exchange's buffers hold, so later rounds of "
    "the exchange are not run; "
)


def assumptions(plan: Plan) -> tuple[str, ...]:
    """Everything that the figures rest on and that no machine has measured."""
    request = plan.request
    chip = request.topology.chip
    family = families.family_of(request.config)
    routes, counted = family.routes, "no table that is looked up"
    if routes:
        met = family.experts_met(request.config)
        counted = f"K_e = {met:g} experts, {counted}, no drafting head that does not run"
    torus = ""
    if (reached := torus_gb_per_s(plan)) is not None:
        torus = f"; the torus model gives {reached:.0f}"
    elif plan.torus_all_to_all is not None:
        torus = "; in the torus model its devices share a chip, and it uses no link"
    stated = [
        "compiled ahead of time; no TPU ran",
        f"a fusion takes max(FLOPs / {roofline.PEAK_SHARE} of {chip.bf16_flops / 1e12:.0f} "
        f"TFLOP/s, bytes / {roofline.HBM_SHARE} of {chip.hbm_bandwidth / GB:.0f} GB/s) per chip",
        "only products count as FLOPs; float32 products at highest precision take 6 passes; "
        "kernels as they state, splash attention over the blocks of 512 that causality leaves",
        "a synchronous collective takes its whole time, an asynchronous one what exceeds the work "
        "scheduled between its launch and its end; link time is never used twice, and what must "
        "end first is served first",
        f"links: {chip.link_bandwidth / GB:.0f} GB/s one way, {LINK_EFFICIENCY:.0%} of it reached, "
        f"{HOP_S * 1e6:.0f} us per step, {chip.num_torus_axes} axes"
        + (", shared by two devices" if chip.num_devices == 2 else ""),
        *((_EXPERT_TRAFFIC.format(torus=torus), _EXPERT_SCOPE) if routes else ()),
        f"MFU: {6 if request.mode == 'train' else 2} x active weights ({counted}) + attention over "
        "the keys a query may see; "
        + ("of a sequence's logits the last; " if request.mode == "prefill" else "")
        + "recomputation is not counted",
        (_NO_LATER_ROUNDS if routes else "") + "of a branch the cheapest side counts",
    ]
    if request.mode == "train":
        stated.append(_OF_A_TRAINER.format(runs=request.num_microbatches))
    if request.offload_moments:
        size = of_size(plan.host_bytes).show(plan.host_bytes, 2)
        stated.append(_OFFLOADED.format(size=size))
    if request.topology.num_slices > 1:
        stated.append(
            f"between slices {chip.dcn_bandwidth / GB:g} GB/s per chip over the data-centre network"
        )
    if request.mode == "decode":
        stated.append(
            f"all {request.length} entries of each cache are filled; a step verifies "
            f"{request.num_drafts} drafted tokens per sequence at acceptance "
            f"{request.acceptance:g}, the drafting head's time included; tensor cuts "
            f"{request.tensor_cuts}"
        )
    return tuple(stated) + plan.warnings


def torus_gb_per_s(plan: Plan) -> float | None:
    """The torus model's rate of the expert all-to-all; None where it uses no link, or is absent."""
    reached = plan.torus_all_to_all
    return reached / GB if reached and math.isfinite(reached) else None


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values; figures are of one step, the trips of collectives of one call."""
    request, reference = plan.request, plan.reference
    num_steps, exchange = request.num_steps, getattr(request.config, "exchange", None)
    result: dict[str, Any] = {
        "model": request.model,
        "num_layers": request.config.num_layers,
        "topology": str(request.topology),
        "mode": request.mode,
        "mesh": {axis: size for axis, size in request.mesh.items() if size > 1},
        "batch": request.batch,
        "length": request.length,
        "exchange": exchange and {"kind": type(exchange).__name__, **dataclasses.asdict(exchange)},
        "remat": request.config.remat,
        "num_microbatches": request.num_microbatches,
        "num_chips": request.topology.num_chips,
        "devices_per_chip": request.topology.chip.num_devices,
        "compiler_options": dict(request.compiler_options),
        "fits": plan.fits,
        "hbm_per_device_gb": plan.hbm_bytes / GB,
        "hbm_limit_gb": plan.hbm_limit / GB,
        "host_memory_per_device_gb": plan.host_bytes / GB,
        "hbm_by_kind_gb": {kind: size / GB for kind, size in plan.hbm_by_kind.items()},
        "programs": {
            program.name: {
                "runs": program.runs,  # of what runs in no step the memory alone
                "hbm_per_device_gb": sum(bytes_by_kind(program).values()) / GB,
                "roofline_s": reference and reference.program_s.get(program.name),
            }
            for program in plan.programs
        },
        "shardings": {k: v for program in plan.programs for k, v in program.shardings.items()},
        "num_weights": dict(plan.compiled.weights),
        "roofline_mfu": None,
        "roofline_step_s": None,
        "expert_traffic_hidden_share": None,
        "compile_s": sum(program.compile_s or 0.0 for program in plan.programs),
        "assumptions": list(assumptions(plan)),
        "versions": plan.versions,
        "advice": list(advise(plan)),
    }
    if reference is not None:
        step, clock = reference.step, request.topology.chip.clock_hz
        tokens_per_s = request.num_kept_tokens / reference.step_s / request.topology.num_chips
        if request.mode == "decode":
            cuts = {"tensor_cuts": request.tensor_cuts}
            result["decode"] = decode_figures(plan, reference) | cuts
        result |= {
            "roofline_mfu": reference.mfu,
            "roofline_step_s": reference.step_s / num_steps,
            "expert_traffic_hidden_share": reference.hidden_share,
            "tokens_per_s_per_chip": tokens_per_s,
            "torus_all_to_all_gb_per_s": torus_gb_per_s(plan),
            "flops_per_device": step.cost.flops / num_steps,
            "hbm_traffic_gb_per_device": step.cost.hbm_bytes / num_steps / GB,
            "seconds": breakdown(reference, num_steps),
            # the compiler's own, of all fusions of a step; kernels are not among them
            "compiler_estimate_of_fusions_s": clock and step.estimated_cycles / num_steps / clock,
            "by_exchange_bandwidth": [
                {
                    "gb_per_s_per_chip": timing.exchange_bandwidth / GB,
                    "hidden_share": timing.hidden_share,
                    "expert_traffic_s": timing.traffic(of_experts=True)[0] / num_steps,
                    "exposed_s": timing.traffic(of_experts=True)[1] / num_steps,
                    "step_s": timing.step_s / num_steps,
                    "mfu": timing.mfu,
                }
                for timing in plan.timings
            ],
            "collectives": [row_to_json(row) for row in step.rows],
        }
    return result


def tried_to_json(estimate: Estimate, plan: Plan | None, error: str) -> dict[str, Any]:
    """One mesh that a search tried, as JSON values: estimated, and compiled unless that failed."""
    result: dict[str, Any] = {
        "mesh": {axis: size for axis, size in estimate.mesh.items() if size > 1},
        "analytic": {
            "fits": estimate.fits,
            "hbm_per_device_gb": estimate.hbm_bytes / GB,
            "step_s": estimate.step_s,
            "expert_sent_gb_per_device": estimate.exchange_bytes / GB,
            "fsdp_sent_gb_per_device": estimate.gather_bytes / GB,
            "tensor_sent_gb_per_device": estimate.tensor_bytes / GB,
        },
        "compiled": None,
        "error": error or None,
    }
    if plan is not None:
        timing = plan.reference
        result["compiled"] = {
            "fits": plan.fits,
            "hbm_per_device_gb": plan.hbm_bytes / GB,
            "hbm_limit_gb": plan.hbm_limit / GB,
            "step_s": timing and timing.step_s / plan.request.num_steps,
            "mfu": timing and timing.mfu,
            "expert_traffic_hidden_share": timing and timing.hidden_share,
        }
    return result


def decode_figures(plan: Plan, timing: Timing) -> dict[str, float]:
    """Tokens per second and chip beside what others reach and what memory allows.

    The target is the published figure of an H800 times the ratio of memory bandwidths; it is of
    LongCat-Flash, so other models have none. The bounds count one pass over the cache, and over
    cache and weights, at all of the bandwidth.
    """
    request, chip = plan.request, plan.request.topology.chip
    kept = request.num_kept_tokens / request.topology.num_chips
    per_byte = chip.num_devices / chip.hbm_bandwidth
    cache_s = request.num_steps * plan.compiled.arguments["cache"] * per_byte
    all_s = cache_s + request.num_steps * plan.compiled.arguments["weights"] * per_byte
    reached = kept / timing.step_s
    target = H800_TOKENS_PER_S * chip.hbm_bandwidth / H800_HBM_BANDWIDTH
    published = {"target_tokens_per_s_per_chip": target, "share_of_target": reached / target}
    return {
        "tokens_per_s_per_chip": reached,
        "tokens_per_s_per_sequence": request.num_kept_tokens / request.batch / timing.step_s,
        "acceptance": request.acceptance,
        "num_drafts": request.num_drafts,
        "steps_per_call": request.num_steps,
        **(published if is_flash(request.config) else {}),
        "cache_bound_tokens_per_s_per_chip": kept / cache_s,
        "memory_bound_tokens_per_s_per_chip": kept / all_s,
    }


def is_flash(config: ModelConfig) -> bool:
    """True if this is LongCat-Flash with all its layers."""
    sizes = (field.name for field in dataclasses.fields(MoEConfig) if field.type is int)
    compared = (*(name for name in sizes if name not in _NOT_OF_THE_MODEL), "ngram")
    flash = MoEConfig.flash()
    return all(getattr(config, name, None) == getattr(flash, name) for name in compared)


def breakdown(timing: Timing, num_steps: int) -> dict[str, float]:
    """The parts of one step's time, of a call's `num_steps`, in seconds; they add up to it."""
    step = timing.step
    _, experts = timing.traffic(of_experts=True)
    _, others = timing.traffic(of_experts=False)
    of_call = {
        "products": step.product_s,
        "memory traffic": step.compute_s - step.product_s,
        "exposed expert traffic": experts,
        "exposed other traffic": others,
        "exposed copies and SparseCore": step.exposed_copy_s,
    }
    return {name: seconds / num_steps for name, seconds in of_call.items()}


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
        f"{request.model}, layers={request.config.num_layers}, {request.mode} on "
        f"{request.topology}, mesh {show_mesh(request.mesh)}, {request.batch} x {request.length} "
        "tokens"
    )


# ---- advice

_STATE = ("masters", "optimizer", "gradients", "weights")


def advise(plan: Plan) -> tuple[str, ...]:
    """Changes that a plan's own numbers suggest, in the order of what they bring."""
    return tuple(_of_memory(plan) + _of_time(plan))


def _of_memory(plan: Plan) -> list[str]:
    excess = plan.hbm_bytes - plan.hbm_limit
    if plan.compiled.out_of_memory is not None:
        excess = max(excess, plan.hbm_bytes - plan.compiled.out_of_memory["limit"])
    if excess <= 0:
        return []
    request, by_kind = plan.request, plan.hbm_by_kind
    said = [f"over the limit by {_size(excess)} per device"]
    state = sum(by_kind.get(kind, 0.0) for kind in _STATE)
    if state > plan.hbm_limit:
        factor = state / (0.6 * plan.hbm_limit)
        said.append(
            f"weights and optimizer alone take {_size(state)}: shard them over "
            f"{factor:.1f}x as many devices (axes fsdp or expert), or take more chips"
        )
    elif excess < 0.5 * state:
        said.append(
            f"doubling fsdp or expert on twice the chips frees {_size(state / 2)} of "
            "weights and optimizer"
        )
    moments = by_kind.get("optimizer", 0.0)
    if request.mode == "train" and not request.offload_moments and moments > excess:
        said.append(f"--offload-moments keeps {_size(moments)} of moments in host memory")
    temporary = sum(size for kind, size in by_kind.items() if kind.startswith("temporary"))
    rows = request.batch // request.num_batch_shards
    if temporary > excess:
        remedy = "a smaller batch or length, or shard the length (context)"
        if request.mode == "train" and rows > request.num_microbatches:
            remedy = f"--num-microbatches {2 * request.num_microbatches}"
        elif request.mode == "decode":
            remedy = "a smaller batch, or more devices"
        said.append(f"temporary arrays take {_size(temporary)}: use {remedy}")
    cache = by_kind.get("cache", 0.0)
    if cache > excess:
        said.append(f"the cache takes {_size(cache)}: decode fewer sequences per device")
    return said


def _size(num_bytes: float) -> str:
    return of_size(num_bytes).show(num_bytes, 1)


def _of_time(plan: Plan) -> list[str]:
    timing = plan.reference
    if timing is None:
        return []
    said: list[str] = []
    num_steps = plan.request.num_steps
    total, exposed = timing.traffic(of_experts=True)
    if exposed > 0.05 * timing.step_s:
        worst = max(
            timing.step.rows,
            key=lambda row: row.collective.expert_share * row.exposed_s * row.trips,
        )
        kind, link = worst.collective.kind, of_transfer_time(worst.seconds)
        why = (
            f"{kind} {worst.name} is synchronous"
            if not worst.is_asynchronous
            else f"the window of {kind} {worst.name} holds {link.show(worst.window_s, 2)} of work "
            f"for {link.show(worst.seconds, 2)} on the links"
        )
        unit = of_time(total / num_steps)
        said.append(
            f"{exposed / timing.step_s:.0%} of the step is exposed expert traffic "
            f"({unit.number(exposed / num_steps, 3)} of {unit.show(total / num_steps, 3)}): {why}"
        )
    _, others = timing.traffic(of_experts=False)
    if others > 0.05 * timing.step_s:
        said.append(
            f"{others / timing.step_s:.0%} of the step is exposed gathers and reductions: more "
            "tokens per device, or fewer devices on their axis, shrink it"
        )
    traffic = timing.step.compute_s - timing.step.product_s
    if plan.request.mode != "decode" and traffic > 0.3 * timing.step_s:
        said.append(
            f"{traffic / timing.step_s:.0%} of the step is bound by HBM traffic: --chart draws "
            "what runs when in the heaviest loops; keep attention in a kernel"
        )
    return said
