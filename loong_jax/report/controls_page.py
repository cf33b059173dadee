"""The page that sets a run beside its controls: what it would have gained without learning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.report import charts, results, theme
from loong_jax.report import html_parts as h
from loong_jax.report.html_parts import Markup
from loong_jax.report.run_record import RunRecord, read_run


def write_report(
    directory: Path | str, runs: Mapping[str, Path | str], *, name: str = "report.html"
) -> Path:
    """A page that sets a real run beside its controls; returns its path.

    `runs` maps a name to a run directory, the real run first (`{"real run": ..., ...}`).
    `directory` holds `controls.json` (`loong_jax.eval.compare.write_controls`), whose names are
    those of `runs`.
    """
    directory = Path(directory)
    records = {label: read_run(path) for label, path in runs.items()}
    table = json_files.read_json(directory / "controls.json", {})
    with theme.style():
        page = render(records, table)
    return json_files.write_text(directory / name, page)


def render(records: Mapping[str, RunRecord], table: Mapping[str, Mapping[str, Any]]) -> str:
    real, *controls = list(records)
    domains = records[real].domains
    parts, rows, times = [], [], []
    for domain in domains:
        points: list[tuple[str, float, float, float]] = []
        repeated: dict[str, list[float]] = {}
        own = results.expert_gain(records[real], domain)
        if own:
            points.append((real, own["gain"], *own["ci95"]))
        for label in controls:
            cell = table.get(label, {"domains": {}})["domains"].get(domain)
            if cell:
                gain = cell["control_gain"]
                points.append((label, gain["gain"], *gain["ci95"]))
                repeated[label] = [one["gain"] for one in cell["runs"]]
                each = [h.points(one["gain"]) for one in cell["runs"]]
                rows.append(
                    [h.dot(domain), label, _cell(cell["real_gain"]), _cell(cell["control_gain"]),
                     " ".join(each) if len(each) > 1 else h.ABSENT,
                     _cell(cell["real_minus_control"]),
                     h.yes_no(cell["real_minus_control"]["ci95"][0] > 0)]
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
        + h.paragraph(headline(real, table), "lead")
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


def headline(real: str, table: Mapping[str, Mapping[str, Any]]) -> str:
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


def _cell(gain: Mapping[str, Any]) -> Markup:
    return h.with_interval(h.points(gain["gain"]), h.interval(gain["ci95"], h.points))
