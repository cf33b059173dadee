"""`report.html`: one static page about a run, and the picture that a README shows.

The page is a pure function of the run directory. It holds everything it needs: no script, no
outside reference.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.report import charts, results, samples, summary, theme, training
from loong_jax.report import html_parts as h
from loong_jax.report.html_parts import Markup
from loong_jax.report.run_record import RunRecord, read_run

LAG_NOTE = (
    "Lag: how many versions the trainer is ahead of the weights that wrote a token. The ratio is "
    "exp(policy - behavior log-probability); the dotted line is 1. Faint: each step; strong: "
    "moving average."
)


def write_report(run_dir: Path | str, **facts: Any) -> Path:
    """Writes `summary.json`, `report.html` and `headline.png` of a run; returns the page's path.

    `facts` (`wall_s`, `peak_gb` and so on) are those of `summary.build_summary`. Paired gains come
    from `gains.json`, which `loong_jax.eval.compare.write_gains` writes before.
    """
    run_dir = Path(run_dir)
    figures = summary.write_summary(run_dir, **facts)
    run = read_run(run_dir)
    with theme.style():
        page = render(run, figures)
    panels = results.fusion_rows(run)
    if panels:
        with theme.style(theme.LIGHT):
            picture = theme.to_png(charts.fusion(panels, theme.LIGHT))
        (run_dir / "headline.png").write_bytes(picture)
    return json_files.write_text(run_dir / "report.html", page)


def render(run: RunRecord, figures: Mapping[str, Any]) -> str:
    """The whole page as text; call it under `theme.style`."""
    sections = [
        h.section("The recipe", "recipe", results.pipeline(run)),
        _models(run),
        _gains(run),
        _learning(run),
        _asynchrony(run, figures),
        h.section("Fusion", "fusion", training.fusion_report(run)),
        h.section("Ten rollouts", "rollouts", samples.rollouts(run)),
        _tickets(run, figures),
        h.section("What was run", "run", what_was_run(run, figures)),
        h.section("How to read this", "reading", how_to_read(run, figures)),
    ]
    banner = ""
    if control := figures.get("control"):
        banner = (
            f'<div class="banner">This run is a control: {h.escape(control)}. Its gains show what '
            "the method gives without learning from right and wrong, and are not a result.</div>"
        )
    head = (
        "<h1>loong_jax · report of a run</h1>"
        + banner
        + h.paragraph(results.headline(run), "lead")
        + h.paragraph(_facts_line(run, figures), "sub")
        + _navigation(sections)
        + results.cards(run)
    )
    foot = "<footer>Written by loong_jax from the files of the run directory alone.</footer>"
    return h.document("loong_jax: report of a run", head + "".join(sections) + foot)


def _models(run: RunRecord) -> Markup:
    return h.section(
        "Every model in every domain",
        "models",
        results.fusion_chart(run),
        h.paragraph(
            "Sampled pass@1 on the same held-out problems, with 95 % intervals. Dotted: the "
            "start (SFT). In colour: the domain's own expert and the models after it. Hollow: "
            "experts of other domains.",
            "note",
        ),
        results.comparisons_table(run),
        h.details("All figures", results.evaluation_table(run)),
    )


def _gains(run: RunRecord) -> Markup:
    return h.section(
        "Are the gains real?",
        "gains",
        h.paragraph(
            "Sampled pass@1 alone overstates what RL taught: it also rises when a policy only "
            "stops sampling what it knew to be wrong, or only learns the form. So beside it: "
            "the gain among well-formed responses, the gain of greedy decoding, and pass@k."
        )
        if run.gains.get("over_sft")
        else "",
        results.gains_table(run),
        _with_heading("By level of difficulty", results.gains_by_level(run)),
    )


def _learning(run: RunRecord) -> Markup:
    return h.section(
        "Learning",
        "learning",
        _with_heading("Right answers in training", training.learning_curves(run)),
        h.paragraph("Over all judged groups, those that were filtered later included.", "note")
        if run.rl_stages
        else "",
        _with_heading("Reward", training.reward_curves(run)),
        _with_heading("Length, entropy, load", training.across_stages(run)),
    )


def _asynchrony(run: RunRecord, figures: Mapping[str, Any]) -> Markup:
    ratio_by_lag = training.by_lag(run, "ratio/mean_by_lag", "mean ratio", reference=1.0)
    clipped_by_lag = training.by_lag(
        run, "clip/fraction_by_lag", "clipped tokens (%)", scale=100.0, floor=0.0
    )
    return h.section(
        "Asynchrony",
        "asynchrony",
        training.overlap_table(figures),
        _with_heading("Staleness", training.staleness_chart(run)),
        _with_heading("Mean ratio by version lag", ratio_by_lag, LAG_NOTE),
        _with_heading("Clipped tokens by version lag", clipped_by_lag),
        _with_heading("Who did what, when", training.timelines(run)),
    )


def _tickets(run: RunRecord, figures: Mapping[str, Any]) -> Markup:
    return h.section(
        "Tickets",
        "tickets",
        training.tickets_table(run, figures.get("tickets") or {}),
        h.paragraph(
            "A ticket is one issue of one problem to the policy. It ends in exactly one way, "
            "so the ends add up to what was issued.",
            "note",
        )
        if run.rl_stages
        else "",
    )


def what_was_run(run: RunRecord, figures: Mapping[str, Any]) -> Markup:
    machine, versions = figures.get("machine") or {}, figures.get("versions") or {}
    isolation = figures.get("isolation") or {}
    rows = [
        ["wall time", h.duration(figures.get("wall_s"))],
        ["peak memory", f"{h.number(figures.get('peak_gb'), 2)} GB (sum of proportional set sizes "
         "over all processes)"],
        ["machine", f"{machine.get('cores')} cores, {h.number(machine.get('memory_gb'))} GB, "
         f"{machine.get('system')} {machine.get('architecture')}, {machine.get('processor')}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())],
        ["isolation of graded programs", f"{isolation.get('tier', 'none')}; verdicts by tier: "
         + ", ".join(f"{k} {v:,}" for k, v in (isolation.get("verdicts") or {}).items())],
    ]  # fmt: skip
    stages = [
        [
            stage.label,
            stage.metrics[-1]["step"] if stage.metrics else h.ABSENT,
            h.duration(stage.done.get("wall_s")),
            f"{h.number(stage.done.get('peak_gb'), 2)} GB"
            if stage.done.get("peak_gb")
            else h.ABSENT,
            sum(event["kind"] == "resume" for event in stage.events),
        ]
        for stage in run.stages.values()
    ]
    config = json.dumps(h.without_paths(run.config), indent=2)
    return Markup(
        h.table(["", ""], rows, text_columns=[1])
        + h.table(["stage", "steps", "wall time", "peak memory", "resumed"], stages)
        + h.details("Configuration", f'<pre class="config">{h.escape(config)}</pre>')
    )


def how_to_read(run: RunRecord, figures: Mapping[str, Any]) -> Markup:
    notes = [
        "Test problems never occur in training: the split is by a hash of each problem's canonical "
        "form. All stages meet the same test problems, and differences are paired by problem.",
        "Intervals are 95 % percentile bootstraps over problems. They hold for this run: another "
        "seed moves the figures too, and no interval here covers that.",
        "pass@1 is sampled at temperature 1, so it rewards a sharper distribution as well as new "
        "ability. Greedy decoding and pass@k (eq. 1 of arXiv:2509.18883, unbiased) tell them "
        "apart: sharpening alone raises the first two and leaves pass@k.",
        "Ungradable answers (a verifier that failed or ran out of time) are left out of the "
        "figures and counted; they are neither right nor wrong.",
        "Training curves are over training problems and drift with the mix of levels. Only the "
        "evaluations answer whether the policy became better.",
        "Idle shares include compilation, which is most of the first steps of a short run.",
    ]
    if run.fuses_experts:
        notes = [
            "The model is a miniature, trained in minutes on problems that a program generates. "
            "The page shows that the method works and what it costs, not what a large model would "
            "reach.",
            *notes,
            "Fusion settings are chosen on validation problems, which are neither trained on nor "
            "tested on.",
            "Gains need a control: the same run with rewards dealt out at random within each "
            "group, and further SFT for the same time. `loong train quickstart-controls --from` "
            "this run sets them side by side.",
        ]
    if not figures.get("gains"):
        notes.insert(0, "Paired gains have not been computed for this run: run `loong report`.")
    return Markup("<ul>" + "".join(f"<li>{h.escape(note)}</li>" for note in notes) + "</ul>")


def _facts_line(run: RunRecord, figures: Mapping[str, Any]) -> str:
    machine = figures.get("machine") or {}
    parts = [
        f"{len(run.stages)} stages",
        f"{h.duration(figures.get('wall_s'))} on {machine.get('cores')} cores",
        f"{h.number(figures.get('peak_gb'))} GB at peak",
        f"jax {(figures.get('versions') or {}).get('jax', h.ABSENT)}",
    ]
    return " · ".join(parts)


def _with_heading(title: str, content: str, note: str = "") -> str:
    if not content:
        return ""
    return f"<h3>{h.escape(title)}</h3>" + (h.paragraph(note, "note") if note else "") + content


def _navigation(sections: Sequence[str]) -> str:
    links = []
    for text in sections:
        if text:
            anchor = text.partition('id="')[2].partition('"')[0]
            title = text.partition(">")[2].partition(">")[2].partition("<")[0]
            links.append(f'<a href="#{anchor}">{title}</a>')
    return f"<nav>{''.join(links)}</nav>"
