"""A plan as tables on a terminal."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loong_jax.launch.plan import figures
from loong_jax.launch.plan.analytic import Estimate
from loong_jax.launch.plan.plan import GB, Plan
from loong_jax.launch.plan.request import show_mesh
from loong_jax.launch.plan.times import Row

_BAR = 36


def show(plan: Plan, console: Console, *, num_rows: int = 14) -> None:
    """Prints the plan."""
    console.print(render(plan, num_rows=num_rows))


def show_search(plans: Sequence[tuple[Estimate, Plan | None, str]], console: Console) -> None:
    """Prints what a search estimated and what its compiled plans came to."""
    table = Table(title="Meshes, estimated and compiled", title_justify="left")
    table.add_column("mesh")
    for name in ("GB est.", "GB", "limit", "s est.", "step s", "MFU", "hidden"):
        table.add_column(name, justify="right")
    table.add_column("GB sent per device: expert, fsdp, tensor", justify="right")
    for estimate, plan, error in plans:
        row = [show_mesh(estimate.mesh), f"{estimate.hbm_bytes / GB:.1f}"]
        timing = None if plan is None else plan.reference
        row += ["-", "-"] if plan is None else _both(plan)
        row.append(f"{estimate.step_s:.3f}")
        if plan is None or timing is None:
            row += [error[:40] or "does not fit", "-", "-"]
        else:
            hidden = timing.hidden_share
            row += [f"{timing.step_s / plan.request.num_steps:.3f}", f"{timing.mfu:.1%}"]
            row.append("-" if hidden is None else f"{hidden:.1%}")
        sent = (estimate.exchange_bytes, estimate.gather_bytes, estimate.tensor_bytes)
        row.append(", ".join(f"{size / GB:.1f}" for size in sent))
        table.add_row(*row)
    console.print(table)


def _both(plan: Plan) -> list[str]:
    return [f"{plan.hbm_bytes / GB:.1f}", f"{plan.hbm_limit / GB:.1f}"]


def render(plan: Plan, *, num_rows: int = 14) -> Group:
    """Memory, time, expert traffic, the largest collectives, advice and assumptions."""
    parts = [Text(figures.title(plan), style="bold"), _memory(plan)]
    if plan.reference is not None:
        parts += [_time(plan), _exchange(plan), _collectives(plan, num_rows)]
        if plan.request.mode == "decode":
            parts.insert(3, _decode(plan))
    for line in plan.advice:
        parts.append(Text(f"advice: {line}", style="yellow"))
    versions = ", ".join(f"{name} {version}" for name, version in plan.versions.items())
    parts.append(Text(f"assumptions ({versions}):", style="dim"))
    parts += [Text(f"  {line}", style="dim") for line in figures.assumptions(plan)]
    return Group(*parts)


def _memory(plan: Plan) -> Table:
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    table = Table(
        title=f"HBM per device: {plan.hbm_bytes / GB:.2f} of {plan.hbm_limit / GB:.2f} GB, "
        f"{verdict}",
        title_justify="left",
    )
    table.add_column("kind")
    table.add_column("GB", justify="right")
    table.add_column("of the limit")
    for kind, size in plan.hbm_by_kind.items():
        share = size / plan.hbm_limit
        bar = "#" * max(0, min(_BAR, round(_BAR * share)))
        table.add_row(kind, f"{size / GB:.3f}", f"{bar:<{_BAR}} {share:6.1%}")
    return table


def _time(plan: Plan) -> Table:
    timing = plan.reference
    assert timing is not None
    num_steps, cost = plan.request.num_steps, timing.step.cost
    tokens = plan.request.num_kept_tokens / timing.step_s / plan.request.topology.num_chips
    table = Table(
        title=f"Roofline: {timing.step_s / num_steps:.4f} s per step, "
        f"MFU {timing.mfu:.1%}, "
        f"{tokens:.0f} tokens/s per chip",
        title_justify="left",
        caption=f"per device and step: {cost.flops / num_steps / 1e12:.3g} TFLOP, "
        f"{cost.hbm_bytes / num_steps / GB:.3g} GB of HBM traffic",
        caption_justify="left",
    )
    table.add_column("of the step")
    table.add_column("s", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in figures.breakdown(timing, num_steps).items():
        table.add_row(name, f"{seconds:.4f}", f"{seconds * num_steps / timing.step_s:.1%}")
    return table


def _decode(plan: Plan) -> Table:
    timing = plan.reference
    assert timing is not None
    table = Table(title="Decoding", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.decode_figures(plan, timing).items():
        table.add_row(name.replace("_", " "), f"{value:.3g}" if value < 10 else f"{value:.0f}")
    return table


def _exchange(plan: Plan) -> Table:
    table = Table(title="Expert traffic by effective all-to-all bandwidth", title_justify="left")
    for name in ("GB/s per chip", "on the links s", "hidden", "step s", "MFU"):
        table.add_column(name, justify="right")
    for timing in plan.timings:
        total, _ = timing.traffic(of_experts=True)
        hidden = timing.hidden_share
        table.add_row(
            f"{timing.exchange_bandwidth / GB:.0f}",
            f"{total / plan.request.num_steps:.4f}",
            "-" if hidden is None else f"{hidden:.1%}",
            f"{timing.step_s / plan.request.num_steps:.4f}",
            f"{timing.mfu:.1%}",
        )
    return table


def _collectives(plan: Plan, num_rows: int) -> Table:
    timing = plan.reference
    assert timing is not None
    rows = sorted(timing.step.rows, key=lambda row: -row.seconds * row.trips)
    title = f"Collectives, the {min(num_rows, len(rows))} longest of {len(rows)}"
    if plan.request.num_steps > 1:
        title += f", runs in a call of {plan.request.num_steps} steps"
    table = Table(title=title, title_justify="left")
    for name in ("kind", "axes", "async", "from"):
        table.add_column(name, overflow="fold")
    for name in ("MB", "runs", "ms", "exposed", "TFLOP inside"):
        table.add_column(name, justify="right")
    for row in rows[:num_rows]:
        table.add_row(
            row.collective.kind,
            "+".join(row.collective.axes),
            "yes" if row.is_asynchronous else "no",
            _origin(row),
            f"{row.collective.sent_bytes / 1e6:.1f}",
            f"{row.trips:.0f}",
            f"{row.seconds * 1e3:.3f}",
            f"{row.exposed_s * 1e3:.3f}",
            f"{sum(work.flops for work in row.inside) / 1e12:.2f}",
        )
    return table


def _origin(row: Row) -> str:
    """The last scopes of where a collective comes from, and whether it is of the backward pass."""
    name = row.collective.op_name
    scopes = [part for part in name.split("/") if part not in _NOISE and "(" not in part]
    back = "back " if "transpose(" in name else ""
    again = "again " if "rematted" in name else ""
    return back + again + "/".join(scopes[-2:])


_NOISE = ("while", "body", "closed_call", "eval_jaxpr", "checkpoint", "rematted_computation")
