"""Sections of the page about how the models were trained: curves, asynchrony, fusion, tickets."""

from collections.abc import Mapping
from typing import Any

from loong_jax.report import charts, theme, timeline
from loong_jax.report import html_parts as h
from loong_jax.report.charts import Series, over_steps
from loong_jax.report.html_parts import Markup
from loong_jax.report.run_record import TICKET_KEYS, RunRecord, StageRecord, label_of
from loong_jax.report.theme import PAGE


def stage_color(run: RunRecord, stage: StageRecord) -> str:
    """An expert has the accent of its domain; a stage over all domains has ink."""
    domain = run.experts.get(stage.name)
    return PAGE.ink if domain is None else theme.domain_color(domain)


def learning_curves(run: RunRecord) -> Markup:
    """Share of right answers in training, by domain, or the reward where that was not counted."""
    drawn: dict[str, list[Series]] = {}
    for stage in run.rl_stages:
        series = [
            Series(domain, *over_steps(stage.metrics, "correct/by_domain", domain), color)
            for domain in charts.keys_of(stage.metrics, "correct/by_domain")
            if (color := theme.domain_color(domain))
        ]
        if not series:
            x, y = over_steps(stage.metrics, "rewards/all_groups_mean")
            series = [Series("reward", x, y, stage_color(run, stage))] if x else []
        if series:
            drawn[stage.name] = series
    legend = h.legend([(theme.domain_color(d), d) for d in run.domains])
    return _row_of_charts(
        run,
        drawn,
        "right answers (%)",
        legend,
        scale=100.0,
        limits=charts.shared_limits(drawn.values()),
    )


def reward_curves(run: RunRecord) -> Markup:
    """Reward over steps for each stage: all judged groups beside those trained on."""
    drawn: dict[str, list[Series]] = {}
    for stage in run.rl_stages:
        series = [
            Series(label, *over_steps(stage.metrics, name), color)
            for name, label, color in (
                ("rewards/mean", "trained on", PAGE.muted),
                ("rewards/all_groups_mean", "all groups", stage_color(run, stage)),
            )
        ]
        if any(one.x for one in series):
            drawn[stage.name] = [one for one in series if one.x]
    legend = h.legend([(PAGE.ink, "all judged groups (in colour)"), (PAGE.muted, "trained on")])
    return _row_of_charts(
        run, drawn, "mean reward", legend, limits=charts.shared_limits(drawn.values())
    )


def by_lag(run: RunRecord, name: str, ylabel: str, **kwargs: Any) -> Markup:
    """A metric by version lag, one chart per RL stage."""
    drawn: dict[str, list[Series]] = {}
    lags: set[str] = set()
    for stage in run.rl_stages:
        found = charts.keys_of(stage.metrics, name)
        lags.update(found)
        if found:
            drawn[stage.name] = [
                Series(lag, *over_steps(stage.metrics, name, lag), theme.lag_color(int(lag)))
                for lag in found
            ]
    legend = h.legend([(theme.lag_color(int(x)), f"lag {x}") for x in sorted(lags, key=int)])
    return _row_of_charts(run, drawn, ylabel, legend, **kwargs)


def _row_of_charts(
    run: RunRecord, drawn: Mapping[str, list[Series]], ylabel: str, legend: Markup, **kwargs: Any
) -> Markup:
    """One narrow chart per stage under a common legend."""
    if not drawn:
        return Markup("")
    parts = []
    for name, series in drawn.items():
        stage = run.stages[name]
        figure = charts.lines(
            stage.label, series, ylabel=ylabel, color=stage_color(run, stage), width=charts.NARROW,
            **kwargs,
        )  # fmt: skip
        parts.append(h.chart(figure, f"{ylabel} over steps, {stage.label}"))
    return Markup(legend + h.grid(parts, "four"))


def across_stages(run: RunRecord) -> Markup:
    """Length, entropy and the rest: one chart each, one line per RL stage."""
    parts = []
    for name, title, ylabel, scale, floor in (
        ("completions/mean_length", "Response length", "tokens", 1.0, None),
        ("entropy", "Entropy of the policy", "nats per token", 1.0, 0.0),
        ("completions/well_formed", "Well-formed responses", "%", 100.0, None),
        ("load/ffn_experts_per_token", "FFN experts per token", "experts", 1.0, None),
        ("load/max_over_mean", "Load of the busiest expert", "over the mean", 1.0, None),
        ("engine_ratio/max", "Largest engine ratio", "exp(behavior - engine)", 1.0, None),
        ("grad_norm", "Norm of the gradient", "", 1.0, 0.0),
    ):
        series = []
        for stage in run.rl_stages:
            x, y = over_steps(stage.metrics, name)
            if x:
                series.append(Series(stage.label, x, y, stage_color(run, stage)))
        if series:
            figure = charts.lines(title, series, ylabel=ylabel, scale=scale, floor=floor)
            parts.append(h.chart(figure, title))
    sft = run.stages.get("sft")
    x, y = over_steps(sft.metrics, "loss") if sft is not None else ([], [])
    if x:
        series = [Series("SFT", x, y, PAGE.ink)]
        figure = charts.lines("Loss of SFT", series, ylabel="nats per token", floor=0.0)
        parts.append(h.chart(figure, "loss of SFT"))
    legend = h.legend([(stage_color(run, s), s.label) for s in run.rl_stages])
    return Markup(legend + h.grid(parts) if parts else "")


def staleness_chart(run: RunRecord) -> Markup:
    counts = {s.name: s.staleness for s in run.rl_stages if s.staleness}
    if not counts:
        return Markup("")
    figure = charts.staleness(counts, {s.name: s.label for s in run.rl_stages})
    lags = sorted({int(lag) for histogram in counts.values() for lag in histogram})
    legend = h.legend(
        [
            (theme.lag_color(x), "on-policy" if not x else _count(x, "version") + " behind")
            for x in lags
        ]
    )
    return Markup(f"{legend}{h.grid([h.chart(figure, 'trained samples by staleness')])}")


def overlap_table(summary: Mapping[str, Any]) -> Markup:
    """The overlap figures with what each means and what the recipe asks of it."""
    figures = summary.get("overlap") or {}
    within = next((k for k in figures if k.startswith("two_versions_within_")), "")
    seconds = f"{within.rpartition('_')[2].rstrip('s')} s"
    rows = {
        "two_versions_decoding": (
            "two versions decoding at once",
            "at least 20 %",
            "RL time at which two or more policy versions are being decoded at the same moment",
        ),
        within: (
            f"two versions within {seconds}",
            h.ABSENT,
            f"RL time in intervals of {seconds} in which blocks of two or more versions end",
        ),
        "training_covered_by_decoding": (
            "training covered by decoding",
            "at least 20 %",
            "training time covered by decode blocks that end inside the same training step",
        ),
        "trained_at_staleness_1_or_more": (
            "trained at staleness 1 or more",
            "20 to 80 %",
            "trained samples that an older version than the trainer's wrote",
        ),
    }
    cells = [
        [name, h.percent(figures[key]), asked, meaning]
        for key, (name, asked, meaning) in rows.items()
        if key in figures
    ]
    cells += [
        [f"{lane} idle", h.percent(share), h.ABSENT, "share of RL time, compilation included"]
        for lane, share in (figures.get("idle") or {}).items()
    ]
    if not cells:
        return Markup("")
    return h.table(["overlap", "measured", "asked", "meaning"], cells, text_columns=[3])


def timelines(run: RunRecord) -> Markup:
    stages = [stage for stage in run.rl_stages if stage.events]
    if not stages:
        return Markup("")
    drawn = [
        h.chart(
            timeline.timeline(stage.events, f"{stage.label}: a few training steps"),
            f"timeline of {stage.label}",
            wide=True,
        )
        for stage in stages
    ]
    legend = Markup(
        '<div class="versions">older <i></i> newer policy version</div>'
        + h.paragraph(
            "Numbers in the bars are versions; the trainer's is the one it produces. Grey: "
            "verifying and scoring. Dotted: a version is published. Idle shares are of the whole "
            "stage.",
            "note",
        )
    )
    rest = (
        h.details(f"The other {len(drawn) - 1} RL stages", "".join(drawn[1:])) if drawn[1:] else ""
    )
    return Markup(legend + drawn[0] + rest)


def fusion_report(run: RunRecord) -> Markup:
    """Task vectors, what was kept and erased, and how scale and keep rate were chosen."""
    record = run.stages["fused"].fusion if "fused" in run.stages else {}
    if not record:
        return Markup("")
    parts, notes = [], ""
    experts, measured = record.get("experts") or [], record.get("global") or {}
    if experts and measured:
        labels = [label_of(name) for name in experts]
        columns = (
            ("norm", h.number, "norm"),
            ("moved", h.percent, "entries moved"),
            ("kept", h.percent, "kept by dropout"),
            ("erased", h.percent, "erased as a minority"),
        )
        rows = [
            [
                labels[i],
                *(form(measured[key][name]) for key, form, _ in columns),
                *(h.number(value, 3) for value in measured["cosine"][i]),
            ]
            for i, name in enumerate(experts)
        ]
        head = ["task vector", *(label for *_, label in columns)]
        parts.append(h.table([*head, *(f"cosine with {name}" for name in labels)], rows))
    choice = record.get("chosen") or {}
    grid = [
        {k: v for k, v in point.items() if k != "scores"} | point.get("scores", {})
        for point in record.get("grid") or []
    ]
    if grid:
        names = list(grid[0])
        chosen = [
            i for i, row in enumerate(grid)
            if choice and all(row[k] == choice.get(k) for k in ("scale", "keep_rate"))
        ]  # fmt: skip
        rows = [
            [h.number(row.get(n), 3) if h.is_number(row.get(n)) else row.get(n) for n in names]
            for row in grid
        ]
        parts.append(h.table([n.replace("_", " ") for n in names], rows, strong_rows=chosen))
        notes = h.paragraph(
            "By domain: pass@1 of the fused model minus that of the domain's expert, as a share of "
            "validation problems; the score is the worst of them. Bold: the setting chosen. Test "
            "problems choose nothing.",
            "note",
        )
    return Markup(h.side_by_side(parts) + notes) if parts else Markup("")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def tickets_table(run: RunRecord, total: Mapping[str, int]) -> Markup:
    rows = [
        [stage.label, *(stage.tickets.get(key, 0) for key in TICKET_KEYS), _adds_up(stage.tickets)]
        for stage in run.rl_stages
        if stage.tickets
    ]
    if not rows:
        return Markup("")
    rows.append(["all", *(total.get(key, 0) for key in TICKET_KEYS), _adds_up(total)])
    head = ["stage", *(key.replace("_", " ") for key in TICKET_KEYS), "adds up"]
    return h.table(head, rows, strong_rows=[len(rows) - 1])


def _adds_up(counts: Mapping[str, int]) -> Markup:
    ended = sum(counts.get(key, 0) for key in TICKET_KEYS[1:])
    left = counts.get("issued", 0) - ended
    return h.yes_no(True) if not left else Markup(f"{left} open")
