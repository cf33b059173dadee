"""The page of a run of ReSyn: where every idea ended, solve rates by level, diversity, defects."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.report import html_parts as parts
from loong_jax.report import theme
from loong_jax.report.html_parts import Markup

MAX_REASONS = 3  # beside a bar of the funnel


def write(directory: Path) -> Path:
    """Writes DIR/report.html and DIR/funnel.png from DIR/report.json."""
    report = json_files.read_json(directory / "report.json")
    funnel = report["funnel"]
    title = f"ReSyn: {funnel['kept']} environments of {funnel['items']} ideas"
    with theme.style():
        where = parts.chart(
            _funnel(report, theme.PAGE), "where ideas ended",
            "What each stage let through, and why it refused the rest.", wide=True,
        )  # fmt: skip
        rates = parts.chart(
            _solve_rates(report, theme.PAGE), "solve rates by level",
            "Share of attempts that solved an instance, by level: environments that were kept, and "
            "those that calibration refused (dotted).",
        )  # fmt: skip
    body = "".join(
        [
            f"<h1>{parts.escape(title)}</h1>",
            _byline(report),
            parts.section("Funnel", "funnel", where, _funnel_table(funnel)),
            parts.section("Solve rates", "rates", rates),
            parts.section("Diversity", "diversity", _diversity(report["diversity"])),
        ]
    )
    with theme.style(theme.LIGHT):
        (directory / "funnel.png").write_bytes(theme.to_png(_funnel(report, theme.LIGHT)))
    return json_files.write_text(directory / "report.html", parts.document(title, body))


def _byline(report: Mapping[str, Any]) -> Markup:
    funnel = report["funnel"]
    text = (
        f"Author: {report['author']}. {report['calls']} calls, "
        f"{parts.number(report['calls_per_kept'])} per environment kept. {funnel['revised']} "
        f"modules were revised once; {funnel['kept_after_revision']} of them were kept."
    )
    for name, count in report["questions_like_evaluation"].items():
        text += f" {count} questions share a run of words with {name}."
    if not report["is_complete"]:
        text += " The budget ended this run; the same command with a larger one goes on."
    return parts.paragraph(text)


def _funnel(report: Mapping[str, Any], palette: theme.Palette) -> Any:
    funnel = report["funnel"]
    stages: list[tuple[str, int, Mapping[str, int]]] = [("asked for", funnel["items"], {})]
    stages += [(s["stage"], s["out"], s["refused"]) for s in funnel["stages"]]
    figure, (axes,) = theme.new_figure(760, 40 * len(stages) + 80)
    for place, (_, number, refused) in enumerate(stages):
        total = sum(refused.values())
        axes.barh(place, number, color=theme.DOMAIN_COLORS["logic"], height=0.6)
        axes.barh(place, total, left=number, color=palette.rule, height=0.6)
        most = sorted(refused.items(), key=lambda pair: (-pair[1], pair[0]))
        said = ", ".join(f"{n} {why}" for why, n in most[:MAX_REASONS])
        more = f" and {len(most) - MAX_REASONS} more" if len(most) > MAX_REASONS else ""
        label = f" {number}" + (f"   refused {total}: {said}{more}" if total else "")
        axes.text(number + total, place, label, va="center", fontsize=9, color=palette.ink)
    axes.set_yticks(range(len(stages)), [name for name, _, _ in stages])
    axes.invert_yaxis()
    axes.set(xlim=(0, 2.3 * max(1, funnel["items"])), xlabel=f"ideas (author: {report['author']})")
    axes.set_xticks([0, funnel["items"]])
    axes.grid(False)
    return figure


def _solve_rates(report: Mapping[str, Any], palette: theme.Palette) -> Any:
    figure, (axes,) = theme.new_figure(520, 300)
    for found in report["solve_rates"]:
        levels = [level for level, _, _ in found["counts"]]
        rates = [100 * solved / tried for _, solved, tried in found["counts"]]
        is_kept = found["decision"] == "kept"
        axes.plot(levels, rates, color=theme.DOMAIN_COLORS["logic"] if is_kept else palette.muted,
                  ls="-" if is_kept else ":", lw=1, alpha=0.7)  # fmt: skip
    axes.set(xlabel="level", ylabel=f"solved, % (solver: {report['author']})", ylim=(-3, 103))
    axes.set_xticks(range(1, 6))
    return figure


def _funnel_table(funnel: Mapping[str, Any]) -> Markup:
    body = [
        [
            stage["stage"], stage["in"],
            ", ".join(f"{n} {why}" for why, n in stage["refused"].items()) or "none",
            stage["out"],
        ]
        for stage in funnel["stages"]
    ]  # fmt: skip
    return parts.table(["stage", "in", "refused", "out"], body, text_columns=(0, 2))


def _diversity(figures: Mapping[str, Any]) -> Markup:
    nearest = figures["nearest_similarity"]
    body = [
        ["environments", figures["environments"]],
        ["distinct verifiers (normalised code)", figures["distinct_verifiers"]],
        ["distinct question templates", figures["distinct_templates"]],
        ["distinct in both", figures["distinct_both"]],
        ["similarity to the nearest verifier, median", parts.number(nearest["median"], 2)],
        ["similarity to the nearest verifier, largest", parts.number(nearest["max"], 2)],
        ["keywords", figures["keywords"]],
        ["environments of the most fruitful keyword", figures["most_of_one_keyword"]],
    ]
    return parts.table(["measure", "value"], body, text_columns=(0,))
