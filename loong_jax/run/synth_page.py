"""The page of a synthesis run: where every candidate ended, how hard, how diverse, at what cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.report import html_parts as parts
from loong_jax.report import theme
from loong_jax.report.html_parts import Markup

COLORS = {
    "not posed": "#8a99ad", "duplicate": "#8c8c3b", "non-executable": "#c44e80",
    "rejected": "#d97a1f", "unfinished": "#d8dee4", "passed": "#2f9e73",
}  # fmt: skip


def write_loongenv(directory: Path) -> Path:
    """Writes DIR/report.html and DIR/funnel.png from DIR/summary.json."""
    summary = json_files.read_json(directory / "summary.json")
    title = f"LoongEnv: {summary['num_kept']} verified problems"
    with theme.style():
        funnel = parts.chart(
            _funnel(summary), "where candidates ended",
            "Where every candidate ended, by domain and strategy (the shape of Fig. 2 in Loong, "
            "with what never reached execution beside it).", wide=True,
        )  # fmt: skip
    body = "".join(
        [
            f"<h1>{parts.escape(title)}</h1>",
            _byline(summary),
            parts.section("Funnel", "funnel", parts.legend(_legend(summary)), funnel,
                          _funnel_table(summary)),
            parts.section("Execution and judging", "shares", _shares(summary["rows"])),
            parts.section("Difficulty", "difficulty", _difficulty(summary["rows"])),
            parts.section("Diversity", "diversity", _diversity(summary["rows"])),
            parts.section("Cost", "cost", _cost(summary["rows"])),
        ]
    )  # fmt: skip
    with theme.style(theme.LIGHT):
        (directory / "funnel.png").write_bytes(theme.to_png(_funnel(summary, theme.LIGHT)))
    return json_files.write_text(directory / "report.html", parts.document(title, body))


def _byline(summary: Mapping[str, Any]) -> Markup:
    text = (
        f"Author: {summary['author']}. {summary['num_candidates']} candidates, "
        f"{summary['num_calls']} calls, {summary['num_tokens']:,} tokens."
    )
    if not summary["is_complete"]:
        text += " The budget ended this run; the same command with a larger one goes on."
    return parts.paragraph(text)


def _funnel(summary: Mapping[str, Any], palette: theme.Palette = theme.PAGE) -> Any:
    rows = summary["rows"]
    figure, (axes,) = theme.new_figure(760, 26 * len(rows) + 90)
    for place, row in enumerate(rows):
        left = 0
        for name, color in COLORS.items():
            count = row["outcomes"][name]
            axes.barh(place, count, left=left, color=color, height=0.7)
            if count >= 0.06 * max(one["candidates"] for one in rows):
                axes.text(left + count / 2, place, count, ha="center", va="center", fontsize=8)
            left += count
    axes.set_yticks(range(len(rows)), [f"{row['domain']} · {row['strategy']}" for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel=f"candidates (author: {summary['author']})")
    axes.grid(False)
    return figure


def _legend(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(color, f"{name} {summary['outcomes'][name]}") for name, color in COLORS.items()]


def _funnel_table(summary: Mapping[str, Any]) -> Markup:
    rows = summary["rows"]
    states = [state for state, count in summary["funnel"].items() if count]
    body = [
        [f"{row['domain']} · {row['strategy']}", *(row["funnel"][s] for s in states),
         row["candidates"]]
        for row in rows
    ]  # fmt: skip
    body.append(["all", *(summary["funnel"][s] for s in states), summary["num_candidates"]])
    head = ["", *(state.replace("_", " ") for state in states), "sum"]
    return parts.table(head, body, text_columns=(0,), strong_rows=(len(body) - 1,))


def _shares(rows: Sequence[Mapping[str, Any]]) -> Markup:
    names = ("non-executable", "rejected", "passed")
    body = [
        [row["domain"], row["strategy"], *(parts.percent(row["shares"][name]) for name in names)]
        for row in rows
    ]
    return parts.table(["domain", "strategy", *names], body, text_columns=(0, 1))


def _difficulty(rows: Sequence[Mapping[str, Any]]) -> Markup:
    body = [
        [
            row["domain"], row["strategy"], parts.percent(row["solver_accuracy"]),
            parts.percent(row["accuracy_of_kept"]), row["num_solutions"], row["rescued_by_judge"],
            parts.number(row["question_chars"], 0),
        ]
        for row in rows
    ]  # fmt: skip
    head = ["domain", "strategy", "solver accuracy", "of kept items", "accepted solutions",
            "equal by judge only", "median question, characters"]  # fmt: skip
    return parts.table(head, body, text_columns=(0, 1))


def _diversity(rows: Sequence[Mapping[str, Any]]) -> Markup:
    names = ("distance_to_seeds", "distance_to_siblings", "distinct_bigrams")
    body = [
        [
            row["domain"], row["strategy"],
            *(parts.number(row["diversity"][name], 3) for name in names),
            row["diversity"]["distinct_shapes"] or 0, row["kept"],
        ]
        for row in rows
    ]  # fmt: skip
    head = ["domain", "strategy", *(name.replace("_", " ") for name in names), "distinct shapes",
            "items"]  # fmt: skip
    return parts.table(head, body, text_columns=(0, 1))


def _cost(rows: Sequence[Mapping[str, Any]]) -> Markup:
    body = [
        [
            row["domain"], row["strategy"], row["cost"]["calls"],
            f"{row['cost']['prompt_tokens']:,}", f"{row['cost']['reply_tokens']:,}",
            parts.number(row["cost"]["calls_per_item"]),
            parts.number(row["cost"]["tokens_per_item"], 0),
            parts.number(row["cost"]["usd_per_item"], 4) if row["cost"]["usd"] else parts.ABSENT,
        ]
        for row in rows
    ]  # fmt: skip
    head = ["domain", "strategy", "calls", "prompt tokens", "reply tokens", "calls per item",
            "tokens per item", "dollars per item"]  # fmt: skip
    return parts.table(head, body, text_columns=(0, 1))
