"""Sections of the page about how models were trained: curves, asynchrony, fusion, rollouts."""

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from loong_jax.report import charts, theme
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
            Series(
                domain,
                *over_steps(stage.metrics, "correct/by_domain", domain),
                theme.domain_color(domain),
            )
            for domain in charts.keys_of(stage.metrics, "correct/by_domain")
        ]
        if not series:
            x, y = over_steps(stage.metrics, "rewards/all_groups_mean")
            series = [Series("reward", x, y, stage_color(run, stage))] if x else []
        if series:
            drawn[stage.name] = series
    legend = h.legend([(theme.domain_color(d), d) for d in run.domains])
    limits = charts.shared_limits(drawn.values())
    return _row_of_charts(run, drawn, "right answers (%)", legend, scale=100.0, limits=limits)


def reward_curves(run: RunRecord) -> Markup:
    """Reward over steps for each stage: all judged groups beside those trained on."""
    drawn: dict[str, list[Series]] = {}
    for stage in run.rl_stages:
        color = stage_color(run, stage)
        series = [
            Series("trained on", *over_steps(stage.metrics, "rewards/mean"), PAGE.muted),
            Series("all groups", *over_steps(stage.metrics, "rewards/all_groups_mean"), color),
        ]
        if written := [one for one in series if one.x]:
            drawn[stage.name] = written
    legend = h.legend([(PAGE.ink, "all judged groups (in colour)"), (PAGE.muted, "trained on")])
    limits = charts.shared_limits(drawn.values())
    return _row_of_charts(run, drawn, "mean reward", legend, limits=limits)


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
        series = [
            Series(stage.label, *over_steps(stage.metrics, name), stage_color(run, stage))
            for stage in run.rl_stages
        ]
        if series := [one for one in series if one.x]:
            figure = charts.lines(title, series, ylabel=ylabel, scale=scale, floor=floor)
            parts.append(h.chart(figure, title))
    sft = run.stages.get("sft")
    loss = Series("SFT", *over_steps(sft.metrics if sft else [], "loss"), PAGE.ink)
    if loss.x:
        figure = charts.lines("Loss of SFT", [loss], ylabel="nats per token", floor=0.0)
        parts.append(h.chart(figure, "loss of SFT"))
    legend = h.legend([(stage_color(run, s), s.label) for s in run.rl_stages])
    return Markup(legend + h.grid(parts) if parts else "")


def staleness_chart(run: RunRecord) -> Markup:
    counts = {s.name: s.staleness for s in run.rl_stages if s.staleness}
    if not counts:
        return Markup("")
    figure = charts.staleness(counts, {s.name: s.label for s in run.rl_stages})
    lags = sorted({int(lag) for histogram in counts.values() for lag in histogram})
    named = {0: "on-policy", 1: "1 version behind"}
    legend = h.legend([(theme.lag_color(x), named.get(x, f"{x} versions behind")) for x in lags])
    return Markup(f"{legend}{h.grid([h.chart(figure, 'trained samples by staleness')])}")


def overlap_table(summary: Mapping[str, Any]) -> Markup:
    """The overlap figures with what each means and what the recipe asks of it."""
    figures = summary.get("overlap") or {}
    rows = {
        "two_versions_decoding": (
            "two versions decoding at once",
            "at least 20 %",
            "RL time at which two or more policy versions are being decoded at the same moment",
        ),
        "two_versions_within_1s": (
            "two versions within 1 s",
            h.ABSENT,
            "RL time in intervals of 1 s in which blocks of two or more versions end",
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
    return h.table(["overlap", "measured", "asked", "meaning"], cells, text_columns=[3])


def timelines(run: RunRecord) -> Markup:
    drawn = [
        h.chart(
            charts.timeline(stage.events, f"{stage.label}: a few training steps"),
            f"timeline of {stage.label}",
            wide=True,
        )
        for stage in run.rl_stages
        if stage.events
    ]
    if not drawn:
        return Markup("")
    legend = Markup(
        '<div class="versions">older <i></i> newer policy version</div>'
        + h.paragraph(
            "Numbers in the bars are versions; the trainer's is the one it produces. Grey: "
            "verifying and scoring. Dotted: a version is published. Idle shares are of the whole "
            "stage.",
            "note",
        )
    )
    first, *others = drawn
    rest = h.details(f"The other {len(others)} RL stages", "".join(others)) if others else ""
    return Markup(legend + first + rest)


def fusion_report(run: RunRecord) -> Markup:
    """Task vectors, what was kept and erased, and how scale and keep rate were chosen."""
    record = run.stages["fused"].fusion if "fused" in run.stages else {}
    parts, notes = [], ""
    experts, measured = record.get("experts") or [], record.get("global") or {}
    if experts and measured:
        labels = [label_of(name) for name in experts]
        rows = [
            [
                label,
                h.number(measured["norm"][name]),
                *(h.percent(measured[key][name]) for key in ("moved", "kept", "erased")),
                *(h.number(value, 3) for value in cosines),
            ]
            for name, label, cosines in zip(experts, labels, measured["cosine"], strict=True)
        ]
        head = ["task vector", "norm", "entries moved", "kept by dropout", "erased as a minority",
                *(f"cosine with {label}" for label in labels)]  # fmt: skip
        parts.append(h.table(head, rows))
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


def tickets_table(run: RunRecord, total: Mapping[str, int]) -> Markup:
    rows = [
        [stage.label, *(stage.tickets.get(key, 0) for key in TICKET_KEYS), _adds_up(stage.tickets)]
        for stage in run.rl_stages
        if stage.tickets
    ]
    if rows:
        rows.append(["all", *(total.get(key, 0) for key in TICKET_KEYS), _adds_up(total)])
    head = ["stage", *(key.replace("_", " ") for key in TICKET_KEYS), "adds up"]
    return h.table(head, rows, strong_rows=[len(rows) - 1])


def _adds_up(counts: Mapping[str, int]) -> Markup:
    ended = sum(counts.get(key, 0) for key in TICKET_KEYS[1:])
    left = counts.get("issued", 0) - ended
    return h.yes_no(True) if not left else Markup(f"{left} open")


# ---- sample rollouts, for people ----------------------------------------------------------------

NUM_SHOWN = 10
LONGEST = 1500  # characters of thinking or text
# controls, marks of direction, halves of pairs
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def choose(run: RunRecord) -> list[dict[str, Any]]:
    """Rollouts by a fixed rule, so that nobody picked the nice ones.

    Domains take turns; within a domain the latest step comes first, right and other rollouts take
    turns, and no problem appears twice while others are left.
    """
    by_domain: dict[str, list[dict[str, Any]]] = {}
    for stage in run.rl_stages:
        for record in stage.rollouts:
            by_domain.setdefault(record["domain"], []).append(record)
    queues = list(map(_alternating, by_domain.values()))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*queues))
    return [record for record in turns if record is not None][:NUM_SHOWN]


def _alternating(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    latest = sorted(records, key=lambda r: r["step"], reverse=True)[:200]
    ordered: list[dict[str, Any]] = []
    while latest:
        wanted = not ordered or ordered[-1]["outcome"] != "correct"  # a right one next
        seen = {record["uid"] for record in ordered}
        best = min(
            latest,  # the first of the best, so the latest
            key=lambda r: (r["uid"] in seen, (r["outcome"] == "correct") != wanted),
        )
        latest.remove(best)
        ordered.append(best)
    return ordered


def rollouts(run: RunRecord) -> Markup:
    chosen = choose(run)
    if not chosen:
        return Markup("")
    notes = h.paragraph(
        "From training, chosen by rule and not by hand: domains take turns, latest steps first, "
        "right and wrong answers alternate.",
        "note",
    )
    if any((record.get("thinking") or "").startswith(("=", "~")) for record in chosen):
        notes += h.paragraph(
            "Thinking that begins with = is careful: a value after every operation. Thinking that "
            "begins with ~ is hurried: it leaps over operations, as the solutions of the cold "
            "start do too.",
            "note",
        )
    return Markup(f'{notes}<div class="rollouts">{"".join(map(_rollout, chosen))}</div>')


def _rollout(record: Mapping[str, Any]) -> str:
    outcome = record.get("outcome") or "ungradable"
    facts = [
        f"{label_of(record['stage'])}, step {record['step']}",
        f"level {record['level']}",
        f"version {record['version']}",
        f"staleness {record['staleness']}",
        f"{record['num_tokens']} tokens",
    ]
    if record.get("finish_reason") != "stop":
        facts.append(f"ended by {record.get('finish_reason')}")
    reason = f" ({record['reason']})" if record.get("reason") else ""
    parts = [("Problem", record["prompt"])]
    if record.get("answer") is None:
        parts.append(("Response, form broken", record["text"]))
    else:
        parts += [("Thinking", record["thinking"]), ("Answer", record["answer"])]
    if record.get("evidence"):
        parts.append(("Evidence of the verifier", record["evidence"]))
    body = "".join(
        f"<h4>{h.escape(name)}</h4><pre>{h.escape(visible(text))}</pre>" for name, text in parts
    )
    mark = {"correct": "✓ correct", "wrong": "✗ wrong"}.get(outcome, outcome)
    return (
        f'<article class="rollout" style="--accent:{theme.domain_color(record["domain"])}">'
        f'<header><span class="verdict {h.escape(outcome)}">{h.escape(mark + reason)}</span>'
        f"<span>{h.dot(record['domain'])}</span><span>{h.escape(' · '.join(facts))}</span>"
        f"</header>{body}</article>"
    )


def visible(text: str) -> str:
    """A text of bounded length, with characters that a page would swallow, or that would turn it
    around, by their code points."""
    if len(text) > LONGEST:
        text = text[:LONGEST] + f" … ({len(text)} characters)"
    return "".join(
        f"⟨U+{ord(c):04X}⟩" if c not in "\n\t\u200d" and unicodedata.category(c) in _UNSEEN else c
        for c in text
    )
