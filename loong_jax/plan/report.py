"""A plan as tables on a terminal."""

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from loong_jax.plan import figures
from loong_jax.plan.analytic import Estimate
from loong_jax.plan.plan import GB, Plan, Timing
from loong_jax.plan.request import show_mesh
from loong_jax.plan.roofline import Row

_BAR = 36
_NUM_ROWS = 14  # of collectives


def show_search(plans: Sequence[tuple[Estimate, Plan | None, str]], console: Console) -> None:
    """Prints what a search estimated and what its compiled plans came to."""
    estimates = [estimate for estimate, *_ in plans]
    size = figures.of_size(max(made.hbm_bytes for made in estimates))
    sent_size = figures.of_size(max(max(_sent(made)) for made in estimates))
    time = figures.of_time(max(made.step_s for made in estimates))
    names = (f"{size.name} est.", size.name, "limit GB", f"{time.name} est.", f"step {time.name}")
    sent = f"{sent_size.name} sent per device: expert, fsdp, tensor"
    table = _table("Meshes, estimated and compiled", ["mesh"], [*names, "MFU", "hidden", sent])
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


def _table(title: str, left: Sequence[str], right: Sequence[str], caption: str | None = None):
    """A table with the names of its columns, those of text before those of numbers."""
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for name in left:
        made.add_column(name, overflow="fold")
    for name in right:
        made.add_column(name, justify="right")
    return made


def _sent(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.exchange_bytes, estimate.gather_bytes, estimate.tensor_bytes


def show(plan: Plan, console: Console) -> None:
    """Prints memory, time, expert traffic, the longest collectives, advice and assumptions."""
    parts = [Text(figures.title(plan), style="bold"), _memory(plan)]
    if (timing := plan.reference) is not None:
        parts.append(_time(plan, timing))
        if plan.request.mode == "decode":
            parts.append(_decode(plan, timing))
        if len(plan.timings) > 1:
            parts.append(_exchange(plan))
        parts.append(_collectives(plan, timing))
    for line in figures.advise(plan):
        parts.append(Text(f"advice: {line}", style="yellow"))
    versions = ", ".join(f"{name} {version}" for name, version in plan.versions.items())
    parts.append(Text(f"assumptions ({versions}):", style="dim"))
    parts += [Text(f"  {line}", style="dim") for line in figures.assumptions(plan)]
    console.print(Group(*parts))


def _memory(plan: Plan) -> Table:
    verdict = "fits" if plan.fits else "DOES NOT FIT"
    unit = figures.of_size(plan.hbm_bytes)
    needed = unit.number(plan.hbm_bytes, 2) + (f" {unit.name}" if unit.name != "GB" else "")
    title = f"HBM per device: {needed} of {plan.hbm_limit / GB:.2f} GB, {verdict}"
    caption = f"while {plan.compiled.name} runs" if len(plan.programs) > 1 else None
    table = _table(title, ["kind"], [unit.name], caption)
    table.add_column("of the limit")
    for kind, size in plan.hbm_by_kind.items():
        share = size / plan.hbm_limit
        bar = "#" * max(0, min(_BAR, round(_BAR * share)))
        table.add_row(kind, unit.number(size), f"{bar:<{_BAR}} {share:6.1%}")
    return table


def _time(plan: Plan, timing: Timing) -> Table:
    num_steps, cost = plan.request.num_steps, timing.step.cost
    tokens = plan.request.num_kept_tokens / timing.step_s / plan.request.topology.num_chips
    unit = figures.of_time(timing.step_s / num_steps)
    flops, traffic = cost.flops / num_steps, cost.hbm_bytes / num_steps
    work, size = figures.of_work(flops), figures.of_size(traffic)
    table = _table(
        f"Roofline: {unit.show(timing.step_s / num_steps)} per step, MFU {timing.mfu:.1%}, "
        f"{tokens:.0f} tokens/s per chip",
        ["of the step"],
        [unit.name, "share"],
        caption=f"per device and step: {flops / work.size:.3g} {work.name}, "
        f"{traffic / size.size:.3g} {size.name} of HBM traffic",
    )
    for name, seconds in figures.breakdown(timing, num_steps).items():
        table.add_row(name, unit.number(seconds), f"{seconds * num_steps / timing.step_s:.1%}")
    return table


def _decode(plan: Plan, timing: Timing) -> Table:
    table = _table("Decoding", ["figure"], ["value"])
    for name, value in figures.decode_figures(plan, timing).items():
        shown = f"{value:.3g}" if value < 10 else f"{value:.0f}"
        if name.startswith("share_"):
            shown = f"{value:.1%}"
        table.add_row(name.replace("_", " "), shown)
    return table


def _exchange(plan: Plan) -> Table:
    unit = figures.of_time(max(t.step_s for t in plan.timings) / plan.request.num_steps)
    names = ("GB/s per chip", f"on the links {unit.name}", "hidden", f"step {unit.name}", "MFU")
    table = _table("Expert traffic by effective all-to-all bandwidth", (), names)
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


def _collectives(plan: Plan, timing: Timing) -> Table:
    rows = sorted(timing.step.rows, key=lambda row: -row.seconds * row.trips)
    title = f"Collectives, the {min(_NUM_ROWS, len(rows))} longest of {len(rows)}"
    if plan.request.num_steps > 1:
        title += f", runs in a call of {plan.request.num_steps} steps"
    size = figures.of_transfer_size(max((r.collective.sent_bytes for r in rows), default=0.0))
    time = figures.of_transfer_time(max((r.seconds for r in rows), default=0.0))
    work = figures.of_work(max(map(_flops_inside, rows), default=0.0))
    numbers = (size.name, "runs", time.name, "exposed", f"{work.name} inside")
    table = _table(title, ("kind", "axes", "async", "from"), numbers)
    for row in rows[:_NUM_ROWS]:
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
