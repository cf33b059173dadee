"""`report.html`: one static page about a run or its controls, and the picture that a README shows.

The page is a pure function of the run directory. It holds everything it needs: no script, no
outside reference.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.report import charts, results, run_record, theme, training
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

    `facts` (`wall_s`, `peak_gb` and so on) are those of `run_record.build_summary`. Paired gains
    come from `gains.json`, which `loong_jax.eval.compare.write_gains` writes before.
    """
    run_dir = Path(run_dir)
    figures = run_record.write_summary(run_dir, **facts)
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
    has_rl = bool(run.rl_stages)
    sections = [
        h.section("The recipe", "recipe", results.pipeline(run)),
        h.section(
            "Every model in every domain",
            "models",
            results.fusion_chart(run),
            _note(
                "Sampled pass@1 on the same held-out problems, with 95 % intervals. Dotted: the "
                "start (SFT). In colour: the domain's own expert and the models after it. Hollow: "
                "experts of other domains."
            ),
            results.comparisons_table(run),
            h.details("All figures", results.evaluation_table(run)),
        ),
        h.section(
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
        ),
        h.section(
            "Learning",
            "learning",
            _with_heading("Right answers in training", training.learning_curves(run)),
            _note("Over all judged groups, those that were filtered later included.", has_rl),
            _with_heading("Reward", training.reward_curves(run)),
            _with_heading("Length, entropy, load", training.across_stages(run)),
        ),
        h.section(
            "Asynchrony",
            "asynchrony",
            training.overlap_table(figures),
            _with_heading("Staleness", training.staleness_chart(run)),
            _with_heading(
                "Mean ratio by version lag",
                training.by_lag(run, "ratio/mean_by_lag", "mean ratio", reference=1.0),
                LAG_NOTE,
            ),
            _with_heading(
                "Clipped tokens by version lag",
                training.by_lag(
                    run, "clip/fraction_by_lag", "clipped tokens (%)", scale=100.0, floor=0.0
                ),
            ),
            _with_heading("Who did what, when", training.timelines(run)),
        ),
        h.section("Fusion", "fusion", training.fusion_report(run)),
        h.section("Ten rollouts", "rollouts", training.rollouts(run)),
        h.section(
            "Tickets",
            "tickets",
            training.tickets_table(run, figures.get("tickets") or {}),
            _note(
                "A ticket is one issue of one problem to the policy. It ends in exactly one way, "
                "so the ends add up to what was issued.",
                has_rl,
            ),
        ),
        h.section("What was run", "run", what_was_run(run, figures)),
        h.section("How to read this", "reading", how_to_read(run, figures)),
    ]
    banner = ""
    if control := figures.get("control"):
        banner = (
            f'<div class="banner">This run is a control: {h.escape(control)}. Its gains show what '
            "the method gives without learning from right and wrong, and are not a result.</div>"
        )
    facts = [
        f"{len(run.stages)} stages",
        f"{h.duration(figures.get('wall_s'))} on {figures['machine'].get('cores')} cores",
        f"{h.number(figures.get('peak_gb'))} GB at peak",
        f"jax {figures['versions'].get('jax', h.ABSENT)}",
    ]
    head = (
        "<h1>loong_jax · report of a run</h1>"
        + banner
        + h.paragraph(results.headline(run), "lead")
        + h.paragraph(" · ".join(facts), "sub")
        + _navigation(sections)
        + results.cards(run)
    )
    foot = "<footer>Written by loong_jax from the files of the run directory alone.</footer>"
    return h.document("loong_jax: report of a run", head + "".join(sections) + foot)


def what_was_run(run: RunRecord, figures: Mapping[str, Any]) -> Markup:
    machine, isolation = figures["machine"], figures["isolation"]
    versions = (f"{name} {version}" for name, version in figures["versions"].items())
    tiers = (f"{tier} {count:,}" for tier, count in isolation["verdicts"].items())
    rows = [
        ["wall time", h.duration(figures.get("wall_s"))],
        ["peak memory", f"{h.number(figures.get('peak_gb'), 2)} GB (sum of proportional set sizes "
         "over all processes)"],
        ["machine", f"{machine.get('cores')} cores, {h.number(machine.get('memory_gb'))} GB, "
         f"{machine.get('system')} {machine.get('architecture')}, {machine.get('processor')}"],
        ["versions", ", ".join(versions)],
        ["isolation of graded programs", f"{isolation['tier']}; verdicts by tier: "
         + ", ".join(tiers)],
    ]  # fmt: skip
    stages = [
        [
            stage.label,
            stage.metrics[-1]["step"] if stage.metrics else h.ABSENT,
            h.duration(stage.done.get("wall_s")),
            f"{h.number(peak, 2)} GB" if (peak := stage.done.get("peak_gb")) else h.ABSENT,
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


def _note(text: str, is_shown: bool = True) -> Markup:
    return h.paragraph(text, "note") if is_shown else Markup("")


def _with_heading(title: str, content: str, note: str = "") -> str:
    if not content:
        return ""
    return f"<h3>{h.escape(title)}</h3>" + (h.paragraph(note, "note") if note else "") + content


def _navigation(sections: Sequence[str]) -> str:
    heads = (re.search(r'<h2 id="(.*?)">(.*?)</h2>', text) for text in sections)
    links = [f'<a href="#{head[1]}">{head[2]}</a>' for head in heads if head]
    return f"<nav>{''.join(links)}</nav>"


# ---- a run beside its controls: what it would have gained without learning ----------------------


def write_controls(directory: Path | str, runs: Mapping[str, Path | str]) -> Path:
    """A page that sets a real run beside its controls; returns its path.

    `runs` maps a name to a run directory, the real run first (`{"real run": ..., ...}`).
    `directory` holds `controls.json` (`loong_jax.eval.compare.write_controls`), whose names are
    those of `runs`.
    """
    directory = Path(directory)
    records = {label: read_run(path) for label, path in runs.items()}
    table = json_files.read_json(directory / "controls.json", {})
    with theme.style():
        page = _beside_controls(records, table)
    return json_files.write_text(directory / "report.html", page)


def _beside_controls(
    records: Mapping[str, RunRecord], table: Mapping[str, Mapping[str, Any]]
) -> str:
    real, *controls = list(records)
    parts, rows, times = [], [], []
    for domain in records[real].domains:
        own = results.expert_gain(records[real], domain)
        points = [(real, own["gain"], *own["ci95"])] if own else []
        repeated: dict[str, list[float]] = {}
        for label in controls:
            cell = table.get(label, {"domains": {}})["domains"].get(domain)
            if not cell:
                continue
            gain, ahead = cell["control_gain"], cell["real_minus_control"]
            points.append((label, gain["gain"], *gain["ci95"]))
            repeated[label] = [one["gain"] for one in cell["runs"]]
            each = " ".join(map(h.points, repeated[label])) if len(cell["runs"]) > 1 else h.ABSENT
            rows.append(
                [h.dot(domain), label, h.gain(cell["real_gain"]), h.gain(gain), each,
                 h.gain(ahead), h.yes_no(ahead["ci95"][0] > 0)]
            )  # fmt: skip
            times += [
                [h.dot(domain), label, one["stage"], one["steps"] or h.ABSENT,
                 h.duration(one["train_s"]), cell["real"]["steps"] or h.ABSENT,
                 h.duration(cell["real"]["train_s"])]
                for one in cell["runs"]
            ]  # fmt: skip
        if points:
            figure = charts.gains(domain, points, theme.domain_color(domain), repeated)
            parts.append(h.chart(figure, f"gains of run and controls in {domain}"))
    body = (
        "<h1>loong_jax · controls</h1>"
        + h.paragraph(_headline_of_controls(real, table), "lead")
        + h.paragraph(
            "A gain counts only where a run that cannot have learned from right and wrong does not "
            "have it too. Noise reward: each group's rewards dealt out again at random among its "
            "rollouts, so mean and variance stay and meaning goes. Continued SFT: demonstrations "
            "go on instead of RL. Differences are paired over the same test problems; brackets are "
            "95 % intervals. Without a signal a policy takes a random walk, so a control that is "
            "repeated counts by the mean of its runs, and its interval holds their scatter too."
        )
        + h.section("Gain over SFT", "gains", h.grid(parts))
        + h.section(
            "Paired by problem",
            "table",
            h.table(["domain", "control", f"gain of {real}", "gain of the control",
                     "its runs", f"{real} minus control", "interval above zero"], rows,
                    text_columns=[1]),
        )
        + h.section(
            "How long each trained",
            "runs",
            h.table(["domain", "control", "stage", "steps", "time", "steps of the expert",
                     "time of the expert"], times, text_columns=[1, 2]),
        )
        + "<footer>Written by loong_jax from the files of the run directories alone.</footer>"
    )  # fmt: skip
    return h.document("loong_jax: controls", body)


def _headline_of_controls(real: str, table: Mapping[str, Mapping[str, Any]]) -> str:
    """Says of each control whether it gains, and whether the real run beats it."""
    sentences = []
    for label, control in table.items():
        domains, over_all = control["domains"], control["over_all_runs"]
        gained = [d for d, c in domains.items() if c["control_gain"]["ci95"][0] > 0]
        beaten = [d for d, c in domains.items() if c["real_minus_control"]["ci95"][0] > 0]
        missed = [d for d in domains if d not in beaten]
        mean = ""
        if over_all:
            interval = h.interval(over_all["ci95"], h.points)
            mean = f" ({h.points(over_all['gain'])} {interval} over {over_all['runs']} runs)"
        sentences.append(
            f"{label[:1].upper()}{label[1:]} "
            + (f"gains in {', '.join(gained)}" if gained else "gains in no domain")
            + f"{mean}; the {real} beats it "
            + ("everywhere." if not missed else f"in {', '.join(beaten) or 'no domain'}.")
        )
    return " ".join(sentences) or "No control has been compared yet."
