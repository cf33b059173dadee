"""Sections of the page about how good the models are: headline, pipeline, fusion chart, gains."""

import re
from collections.abc import Mapping
from typing import Any

from loong_jax.report import charts, theme
from loong_jax.report import html_parts as h
from loong_jax.report.charts import Row
from loong_jax.report.html_parts import Markup
from loong_jax.report.run_record import RunRecord, label_of

BAR_POINTS = 0.05  # how much the fused model may lose against an expert


def expert_gain(run: RunRecord, domain: str) -> dict[str, Any]:
    """Paired gain of the expert over SFT in its own domain, or {}."""
    return run.gains.get("over_sft", {}).get(run.expert_in(domain), {}).get(domain, {})


def _pair(run: RunRecord, domain: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of a domain before and after its expert was trained; {} where there are none."""
    return run.figures(run.baseline, domain), run.figures(run.expert_in(domain), domain)


def fused_loss(run: RunRecord, domain: str) -> dict[str, Any]:
    return run.gains.get("fused_minus_expert", {}).get(domain, {})


def headline(run: RunRecord) -> str:
    """One or two sentences that say no more than the intervals allow."""
    found = {d: g for d in run.domains if h.is_number((g := expert_gain(run, d)).get("gain"))}
    if not found:
        return "No expert has been evaluated against its starting point yet."
    up = [d for d, g in found.items() if g["ci95"][0] > 0]
    down = [d for d, g in found.items() if g["ci95"][1] < 0]
    flat = [d for d in found if d not in up and d not in down]

    def listed(names: list[str]) -> str:
        return _and([f"{h.points(found[d]['gain'])} in {d}" for d in names])

    sentences = []
    if up:
        who = "Every expert" if len(up) == len(found) and len(up) > 1 else "RL"
        verb = "gained points of pass@1 on held-out problems"
        sentences.append(f"{who} {verb}: {listed(up)}.")
    if flat:
        sentences.append(f"No measurable change in {_and(flat)}.")
    if down:
        sentences.append(f"RL lost: {listed(down)} points.")
    kept = [(g["gain"], d) for d in found if h.is_number((g := fused_loss(run, d)).get("gain"))]
    if kept and up:
        gain, worst = min(kept, key=lambda pair: pair[0])
        lost = f"{-100 * gain:.1f} points"
        if gain >= 0:
            sentences.append("The fused model is as good as each of them.")
        elif gain >= -BAR_POINTS:
            sentences.append(f"One fused model stays within {lost} of each of them.")
        else:
            sentences.append(f"The fused model loses {lost} in {worst}.")
    return " ".join(sentences)


def cards(run: RunRecord) -> Markup:
    """One card per domain: the gain, before and after, and what stands beside it."""
    parts = []
    for domain in run.domains:
        if not all(_pair(run, domain)):
            continue
        gain, lost = expert_gain(run, domain), fused_loss(run, domain)
        names = ("pass@1", "greedy", *pass_at(run))
        lines = [(name, _before_after(run, domain, name)) for name in names]
        lines.append(("95 % intervals disjoint", h.yes_no(gain.get("disjoint_intervals"))))
        if lost:
            text = f"{h.points(lost['gain'])} {h.interval(lost['ci95'], h.points)}"
            lines.append(("fused minus expert", text))
        parts.append(
            f'<div class="card" style="--accent:{theme.domain_color(domain)}">'
            f'<div class="name">{h.escape(domain)}</div>'
            f'<div class="big">{h.points(gain.get("gain"))} '
            f"<small>points {h.interval(gain.get('ci95'), h.points)}</small></div><dl>"
            + "".join(f"<dt>{h.escape(k)}</dt><dd>{h.escape(v)}</dd>" for k, v in lines)
            + "</dl></div>"
        )
    if not parts:
        return Markup("")
    first = run.figures(run.baseline, run.domains[0])
    return Markup(
        f'<div class="cards">{"".join(parts)}</div>'
        + h.paragraph(
            "Gain of each RL expert over what it started from, in its own domain, paired over the "
            f"same {first.get('n')} held-out problems, {first.get('samples_per_problem')} samples "
            "each at temperature 1. Brackets: 95 % bootstrap intervals over problems.",
            "note",
        )
    )


def pass_at(run: RunRecord) -> list[str]:
    """Names of the figures pass@k that were measured, such as pass@16; pass@1 is not among them."""
    figures = [f for stage in run.stages.values() for f in stage.evaluation.values()]
    measured = {int(name[5:]) for f in figures for name in f if re.fullmatch(r"pass@\d+", name)}
    return [f"pass@{k}" for k in sorted(measured - {1})]


def pipeline(run: RunRecord) -> Markup:
    """The stages as a picture: what each took and where it arrived."""

    def stage(name: str, domains: list[str]) -> str:
        record = run.stages.get(name)
        accent = theme.domain_color(domains[0]) if len(domains) == 1 else "var(--muted)"
        if record is None:
            return f'<div class="stage absent"><b>{label_of(name)}</b><span>not run</span></div>'
        reached = " · ".join(
            f"<em>{h.escape(d)} {h.percent(run.figures(name, d).get('pass@1'), 0)}</em>"
            for d in domains
            if run.figures(name, d)
        )
        facts = [f"{record.metrics[-1]['step']} steps"] if record.metrics else []
        if record.done.get("wall_s") is not None:
            facts.append(h.duration(record.done["wall_s"]))
        return (
            f'<div class="stage" style="--accent:{accent}"><b>{h.escape(record.label)}</b>'
            f"<span>{reached}</span><span>{' · '.join(facts)}</span></div>"
        )

    arrow = '<div class="arrow" aria-hidden="true">→</div>'
    if run.fuses_experts:
        experts = "".join(stage(name, [domain]) for name, domain in run.experts.items())
        columns = [stage(run.baseline, run.domains), experts]
        columns += [stage(name, run.domains) for name in ("fused", "general")]
    else:
        columns = [stage(name, run.domains) for name in run.stages]
    return Markup(
        '<div class="pipeline">'
        + arrow.join(f'<div class="column">{column}</div>' for column in columns if column)
        + "</div>"
    )


def fusion_rows(run: RunRecord) -> dict[str, list[Row]]:
    """Rows of the fusion chart by domain: SFT, the experts, fused, general."""
    panels: dict[str, list[Row]] = {}
    for domain in run.domains:
        rows = []
        for name, stage in run.stages.items():
            figures = stage.evaluation.get(domain, {})
            if not h.is_number(figures.get("pass@1")):
                continue
            label, role = stage.label, "result"
            if name == run.baseline:
                role = "before"
            elif name == run.expert_in(domain):
                label, role = "RL expert", "own expert"
            elif name in run.experts:
                role = "other expert"
            low, high = figures["ci95"]
            rows.append(Row(label, figures["pass@1"], low, high, role))
        if rows:
            panels[domain] = rows
    return panels


def fusion_chart(run: RunRecord) -> Markup:
    panels = fusion_rows(run)
    limits, label = charts.fusion_limits(panels), "pass@1 of every model in"
    figures = {domain: charts.fusion_one(domain, rows, limits) for domain, rows in panels.items()}
    return h.grid([h.chart(figure, f"{label} {domain}") for domain, figure in figures.items()])


def evaluation_table(run: RunRecord) -> Markup:
    """Every stage in every domain, in full."""
    rows, names = [], pass_at(run)
    for stage in run.stages.values():
        for domain, f in stage.evaluation.items():
            ends = {"pass@1": "ci95"} | {name: f"{name}_ci95" for name in ("greedy", *names)}
            rows.append(
                [
                    stage.label,
                    h.dot(domain),
                    *(
                        h.with_interval(h.percent(f.get(name)), h.interval(f.get(end)))
                        for name, end in ends.items()
                    ),
                    h.percent(f.get("well_formed")),
                    h.number(f.get("mean_length")),
                    f"{f.get('n', 0)} {h.TIMES} {f.get('samples_per_problem', 0)}",
                    *(f.get(f"{name}_n", h.ABSENT) for name in names),
                    f.get("ungradable", 0),
                ]
            )
    head = ["stage", "domain", "pass@1 (T = 1)", "greedy", *names, "well-formed", "tokens",
            f"problems {h.TIMES} samples", *(f"n of {name}" for name in names),
            "ungradable"]  # fmt: skip
    return h.table(head, rows)


def gains_table(run: RunRecord) -> Markup:
    """The table of gains under stricter criteria."""
    rows, names = [], pass_at(run)
    for domain in run.domains:
        if gain := expert_gain(run, domain):
            criteria = (gain, gain.get("without_format_failures", {}), gain.get("greedy", {}))
            shown = [_before_after(run, domain, name) for name in (*names, "well_formed")]
            rows.append([h.dot(domain), *map(h.gain, criteria), *shown, gain.get("n")])
    head = ["expert minus SFT", "sampled pass@1", "format failures removed", "greedy", *names,
            "well-formed", "problems"]  # fmt: skip
    return h.table(head, rows)


def comparisons_table(run: RunRecord) -> Markup:
    """Fused minus expert, fused and general over SFT, general minus fused: paired."""
    over = run.gains.get("over_sft", {})
    columns = {
        "fused minus expert": run.gains.get("fused_minus_expert", {}),
        "fused minus SFT": over.get("fused", {}),
        "general minus fused": run.gains.get("general_minus_fused", {}),
        "general minus SFT": over.get("general", {}),
    }
    rows = [
        [h.dot(domain), *(h.gain(found.get(domain, {})) for found in columns.values())]
        for domain in run.domains
        if any(domain in found for found in columns.values())
    ]
    return h.table(["paired by problem", *columns], rows)


def gains_by_level(run: RunRecord) -> Markup:
    parts = []
    for domain in run.domains:
        levels: Mapping[str, Any] = expert_gain(run, domain).get("by_level", {})
        rows = [
            (f"level {level} (n={g['n']})", g["gain"], g["ci95"][0], g["ci95"][1])
            for level, g in levels.items()
            if h.is_number(g.get("gain"))
        ]
        if rows:
            figure = charts.gains(domain, rows, theme.domain_color(domain))
            parts.append(h.chart(figure, f"gain of the {domain} expert by level"))
    return h.grid(parts)


def _before_after(run: RunRecord, domain: str, name: str) -> str:
    """A figure of a domain before and after its expert was trained."""
    values = [figures.get(name) for figures in _pair(run, domain)]
    return " → ".join(map(h.percent, values)) if any(map(h.is_number, values)) else h.ABSENT


def _and(names: list[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
