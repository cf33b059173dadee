"""Advice on a plan: changes that its own numbers suggest."""

from loong_jax.plan import units
from loong_jax.plan.plan import Plan

_STATE = ("masters", "optimizer", "gradients", "weights")


def advise(plan: Plan) -> tuple[str, ...]:
    """Remedies in the order of what they bring; empty where nothing asks for one."""
    return tuple(_memory(plan) + _time(plan))


def _memory(plan: Plan) -> list[str]:
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
    return units.of_size(num_bytes).show(num_bytes, 1)


def _time(plan: Plan) -> list[str]:
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
        kind, link = worst.collective.kind, units.of_transfer_time(worst.seconds)
        why = (
            f"{kind} {worst.name} is synchronous"
            if not worst.is_asynchronous
            else f"the window of {kind} {worst.name} holds {link.show(worst.window_s, 2)} of work "
            f"for {link.show(worst.seconds, 2)} on the links"
        )
        unit = units.of_time(total / num_steps)
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
