"""A plan as tables on a terminal."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loong_jax.plan import advice, figures, units
from loong_jax.plan.analytic import Estimate
from loong_jax.plan.plan import GB, Plan
from loong_jax.plan.request import show_mesh
from loong_jax.plan.times import Row

_BAR = 36


def show(plan: Plan, console: Console, *, num_rows: int = 14) -> None:
    """Prints the plan."""
    console.print(render(plan, num_rows=num_rows))


def show_search(plans: Sequence[tuple[Estimate, Plan | None, str]], console: Console) -> None:
    """Prints what a search estimated and what its compiled plans came to."""
    table = Table(title="Meshes, estimated and compiled", title_justify="left")
    estimates = [estimate for estimate, *_ in plans]
    size = units.of_size(max(made.hbm_bytes for made in estimates))
    sent_size = units.of_size(max(max(_sent(made)) for made in estimates))
    time = units.of_time(max(made.step_s for made in estimates))
    table.add_column("mesh")
    names = (f"{size.name} est.", size.name, "limit GB", f"{time.name} est.", f"step {time.name}")
    for name in (*names, "MFU", "hidden"):
        table.add_column(name, justify="right")
    table.add_column(f"{sent_size.name} sent per device: expert, fsdp, tensor", justify="right")
    for estimate, plan, error in plans:
        row = [show_mesh(estimate.mesh), size.number(estimate.hbm_bytes, 1)]
        timing = None if plan is None else plan.reference
        row.append("-" if plan is None else size.number(plan.hbm_bytes, 1))
        row.append("-" if plan is None else f"{plan.hbm_limit / GB:.1f}")
        row.append(time.number(estimate.step_s, 3))
        if plan is None or timing is None:
            row += [error[:40] or "does not fit", "-", "-"]
        else:
            hidden = timing.hidden_share
            row.append(time.number(timing.step_s / plan.request.num_steps, 3))
            row.append(f"{timing.mfu:.1%}")
            row.append("-" if hidden is None else f"{hidden:.1%}")
        row.append(", ".join(sent_size.number(part, 1) for part in _sent(estimate)))
        table.add_row(*row)
    console.print(table)


def _sent(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.exchange_bytes, estimate.gather_bytes, estimate.tensor_bytes


def render(plan: Plan, *, num_rows: int = 14) -> Group:
    """Memory, time, expert traffic, the largest collectives, advice and assumptions."""
    parts = [Text(figures.title(plan), style="bold"), _memory(plan)]
    if plan.reference is not None:
        parts.append(_time(plan))
        if plan.request.mode == "decode":
            parts.append(_decode(plan))
        if len(plan.timings) > 1:
            parts.append(_exchange(plan))
        parts.append(_collectives(plan, num_rows))
    for line in advice.advise(plan):
        parts.append(Text(f"advice: {line}", style="yellow"))
    versions = ", ".join(f"{name} {version}" for name, version in plan.versions.items())
    parts.append(Text(f"assumptions ({versions}):", style="dim"))
    parts += [Text(f"  {line}", style="dim") for line in figures.assumptions(plan)]
    return Group(*parts)


def _memory(plan: Plan) -> Table:
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    unit = units.of_size(plan.hbm_bytes)
    needed = unit.number(plan.hbm_bytes, 2) + (f" {unit.name}" if unit.name != "GB" else "")
    table = Table(
        title=f"HBM per device: {needed} of {plan.hbm_limit / GB:.2f} GB, {verdict}",
        caption=f"while {plan.compiled.name} runs" if len(plan.programs) > 1 else None,
        caption_justify="left",
        title_justify="left",
    )
    table.add_column("kind")
    table.add_column(unit.name, justify="right")
    table.add_column("of the limit")
    for kind, size in plan.hbm_by_kind.items():
        share = size / plan.hbm_limit
        bar = "#" * max(0, min(_BAR, round(_BAR * share)))
        table.add_row(kind, unit.number(size), f"{bar:<{_BAR}} {share:6.1%}")
    return table


def _time(plan: Plan) -> Table:
    timing = plan.reference
    assert timing is not None
    num_steps, cost = plan.request.num_steps, timing.step.cost
    tokens = plan.request.num_kept_tokens / timing.step_s / plan.request.topology.num_chips
    unit = units.of_time(timing.step_s / num_steps)
    flops, traffic = cost.flops / num_steps, cost.hbm_bytes / num_steps
    work, size = units.of_work(flops), units.of_size(traffic)
    table = Table(
        title=f"Roofline: {unit.show(timing.step_s / num_steps)} per step, "
        f"MFU {timing.mfu:.1%}, "
        f"{tokens:.0f} tokens/s per chip",
        title_justify="left",
        caption=f"per device and step: {flops / work.size:.3g} {work.name}, "
        f"{traffic / size.size:.3g} {size.name} of HBM traffic",
        caption_justify="left",
    )
    table.add_column("of the step")
    table.add_column(unit.name, justify="right")
    table.add_column("share", justify="right")
    for name, seconds in figures.breakdown(timing, num_steps).items():
        table.add_row(name, unit.number(seconds), f"{seconds * num_steps / timing.step_s:.1%}")
    return table


def _decode(plan: Plan) -> Table:
    timing = plan.reference
    assert timing is not None
    table = Table(title="Decoding", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.decode_figures(plan, timing).items():
        shown = f"{value:.3g}" if value < 10 else f"{value:.0f}"
        if name.startswith("share_"):
            shown = f"{value:.1%}"
        table.add_row(name.replace("_", " "), shown)
    return table


def _exchange(plan: Plan) -> Table:
    table = Table(title="Expert traffic by effective all-to-all bandwidth", title_justify="left")
    unit = units.of_time(max(t.step_s for t in plan.timings) / plan.request.num_steps)
    names = ("GB/s per chip", f"on the links {unit.name}", "hidden", f"step {unit.name}", "MFU")
    for name in names:
        table.add_column(name, justify="right")
    for timing in plan.timings:
        total, _ = timing.traffic(of_experts=True)
        hidden = timing.hidden_share
        table.add_row(
            f"{timing.exchange_bandwidth / GB:.0f}",
            unit.number(total / plan.request.num_steps),
            "-" if hidden is None else f"{hidden:.1%}",
            unit.number(timing.step_s / plan.request.num_steps),
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
    size = units.of_transfer_size(max((r.collective.sent_bytes for r in rows), default=0.0))
    time = units.of_transfer_time(max((r.seconds for r in rows), default=0.0))
    work = units.of_work(max(map(_flops_inside, rows), default=0.0))
    for name in (size.name, "runs", time.name, "exposed", f"{work.name} inside"):
        table.add_column(name, justify="right")
    for row in rows[:num_rows]:
        table.add_row(
            row.collective.kind,
            "+".join(row.collective.axes),
            "yes" if row.is_asynchronous else "no",
            _origin(row),
            size.number(row.collective.sent_bytes),
            f"{row.trips:.0f}",
            time.number(row.seconds),
            time.number(row.exposed_s),
            work.number(_flops_inside(row)),
        )
    return table


def _flops_inside(row: Row) -> float:
    return sum(work.flops for work in row.inside)


def _origin(row: Row) -> str:
    """The last scopes of where a collective comes from, and whether it is of the backward pass."""
    name = row.collective.op_name
    scopes = [part for part in name.split("/") if part not in _NOISE and "(" not in part]
    back = "back " if "transpose(" in name else ""
    again = "again " if "rematted" in name else ""
    return back + again + "/".join(scopes[-2:])


_NOISE = ("while", "body", "closed_call", "eval_jaxpr", "checkpoint", "rematted_computation")
