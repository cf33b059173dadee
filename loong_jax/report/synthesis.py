"""Pages and charts of what `loong synth` makes: where candidates ended, how hard, how diverse."""

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import ticker
from rich.table import Table

from loong_jax.data import json_files
from loong_jax.report import html_parts as parts
from loong_jax.report import theme
from loong_jax.report.html_parts import Markup

COLORS = {
    "not posed": "#8a99ad", "duplicate": "#8c8c3b", "non-executable": "#c44e80",
    "rejected": "#d97a1f", "unfinished": "#d8dee4", "passed": "#2f9e73",
}  # fmt: skip
MAX_REASONS = 3  # beside a bar of the funnel of ideas
LOOP, CONTROL = "iteration", "control"  # of formal
LABEL = {LOOP: "trains on what it proved", CONTROL: "cold start alone"}
_COLOR = {LOOP: theme.DOMAIN_COLORS["stem"], CONTROL: theme.DOMAIN_COLORS["logic"]}


def write_loongenv(directory: Path) -> Path:
    """Writes DIR/report.html and DIR/funnel.png from DIR/summary.json."""
    summary = json_files.read_json(directory / "summary.json")
    rows, outcomes = summary["rows"], summary["outcomes"]
    legend = [(color, f"{name} {outcomes[name]}") for name, color in COLORS.items()]
    byline = (
        f"Author: {summary['author']}. {summary['num_candidates']} candidates, "
        f"{summary['num_calls']} calls, {summary['num_tokens']:,} tokens."
    )
    with theme.style():
        funnel = parts.chart(
            _env_funnel(summary, theme.PAGE), "where candidates ended",
            "Where every candidate ended, by domain and strategy (the shape of Fig. 2 in Loong, "
            "with what never reached execution beside it).", wide=True,
        )  # fmt: skip
    return _write(
        directory,
        f"LoongEnv: {summary['num_kept']} verified problems",
        _paragraph(byline, summary),
        parts.section("Funnel", "funnel", parts.legend(legend), funnel, _env_table(summary)),
        parts.section("Execution and judging", "shares", _by_strategy(rows, _SHARES)),
        parts.section("Difficulty", "difficulty", _by_strategy(rows, _DIFFICULTY)),
        parts.section("Diversity", "diversity", _by_strategy(rows, _DIVERSITY)),
        parts.section("Cost", "cost", _by_strategy(rows, _COST)),
        chart=lambda: _env_funnel(summary, theme.LIGHT),
    )  # fmt: skip


def write_resyn(directory: Path) -> Path:
    """Writes DIR/report.html and DIR/funnel.png from DIR/report.json."""
    report = json_files.read_json(directory / "report.json")
    funnel = report["funnel"]
    stages = parts.table_of(funnel["stages"], _STAGES, text_columns=(0, 2))
    with theme.style():
        where = parts.chart(
            _resyn_funnel(report, theme.PAGE), "where ideas ended",
            "What each stage let through, and why it refused the rest.", wide=True,
        )  # fmt: skip
        rates = parts.chart(
            _solve_rates(report, theme.PAGE), "solve rates by level",
            "Share of attempts that solved an instance, by level: environments that were kept, and "
            "those that calibration refused (dotted).",
        )  # fmt: skip
    return _write(
        directory,
        f"ReSyn: {funnel['kept']} environments of {funnel['items']} ideas",
        _resyn_byline(report),
        parts.section("Funnel", "funnel", where, stages),
        parts.section("Solve rates", "rates", rates),
        parts.section("Diversity", "diversity", _resyn_diversity(report["diversity"])),
        chart=lambda: _resyn_funnel(report, theme.LIGHT),
    )


def funnel(
    stages: Sequence[tuple[str, int, Mapping[str, int]]],
    whole: int,
    what: str,
    palette: theme.Palette,
) -> Any:
    """A chart of the stages (name, passed, refused by reason) over `whole` items."""
    figure, (axes,) = theme.new_figure(760, 40 * len(stages) + 80)
    for place, (_, number, refused) in enumerate(stages):
        total = sum(refused.values())
        axes.barh(place, number, color=theme.DOMAIN_COLORS["logic"], height=0.6)
        axes.barh(place, total, left=number, color=palette.rule, height=0.6)
        most = sorted(refused.items(), key=lambda pair: (-pair[1], pair[0]))
        said = ", ".join(f"{n:,} {why}" for why, n in most[:MAX_REASONS])
        more = f" and {len(most) - MAX_REASONS} more" if len(most) > MAX_REASONS else ""
        label = f" {number:,}" + (f"   refused {total:,}: {said}{more}" if total else "")
        axes.text(number + total, place, label, va="center", fontsize=9, color=palette.ink)
    axes.set_yticks(range(len(stages)), [name for name, _, _ in stages])
    axes.invert_yaxis()
    axes.set(xlim=(0, 2.3 * max(1, whole)), xlabel=what)
    axes.set_xticks([0, whole])
    axes.grid(False)
    return figure


def _write(directory: Path, title: str, *body: str, chart: Callable[[], Any]) -> Path:
    with theme.style(theme.LIGHT):
        (directory / "funnel.png").write_bytes(theme.to_png(chart()))
    page = parts.document(title, f"<h1>{parts.escape(title)}</h1>{''.join(body)}")
    return json_files.write_text(directory / "report.html", page)


def _paragraph(text: str, made: Mapping[str, Any]) -> Markup:
    if not made["is_complete"]:
        text += " The budget ended this run; the same command with a larger one goes on."
    return parts.paragraph(text)


# ---- LoongEnv -----------------------------------------------------------------------------------


def _env_funnel(summary: Mapping[str, Any], palette: theme.Palette) -> Any:
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


def _env_table(summary: Mapping[str, Any]) -> Markup:
    rows, funnel = summary["rows"], summary["funnel"]
    states = [state for state, count in funnel.items() if count]
    body = [
        [f"{row['domain']} · {row['strategy']}", *map(row["funnel"].get, states), row["candidates"]]
        for row in rows
    ]
    body.append(["all", *map(funnel.get, states), summary["num_candidates"]])
    head = ["", *(state.replace("_", " ") for state in states), "sum"]
    return parts.table(head, body, text_columns=(0,), strong_rows=(len(rows),))


def _by_strategy(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Callable[[Any], Any]]
) -> Markup:
    """A row for each strategy in each domain."""
    of = {name: operator.itemgetter(name) for name in ("domain", "strategy")}
    return parts.table_of(rows, {**of, **columns}, text_columns=(0, 1))


_SHARES = {
    "non-executable": lambda row: parts.percent(row["shares"]["non-executable"]),
    "rejected": lambda row: parts.percent(row["shares"]["rejected"]),
    "passed": lambda row: parts.percent(row["shares"]["passed"]),
}
_DIFFICULTY = {
    "solver accuracy": lambda row: parts.percent(row["solver_accuracy"]),
    "of kept items": lambda row: parts.percent(row["accuracy_of_kept"]),
    "accepted solutions": operator.itemgetter("num_solutions"),
    "equal by judge only": operator.itemgetter("rescued_by_judge"),
    "median question, characters": lambda row: parts.number(row["question_chars"], 0),
}
_DIVERSITY = {
    "distance to seeds": lambda row: parts.number(row["diversity"]["distance_to_seeds"], 3),
    "distance to siblings": lambda row: parts.number(row["diversity"]["distance_to_siblings"], 3),
    "distinct bigrams": lambda row: parts.number(row["diversity"]["distinct_bigrams"], 3),
    "distinct shapes": lambda row: row["diversity"]["distinct_shapes"] or 0,
    "items": operator.itemgetter("kept"),
}
_COST = {
    "calls": lambda row: row["cost"]["calls"],
    "prompt tokens": lambda row: f"{row['cost']['prompt_tokens']:,}",
    "reply tokens": lambda row: f"{row['cost']['reply_tokens']:,}",
    "calls per item": lambda row: parts.number(row["cost"]["calls_per_item"]),
    "tokens per item": lambda row: parts.number(row["cost"]["tokens_per_item"], 0),
    "dollars per item": lambda row: (
        parts.number(row["cost"]["usd_per_item"], 4) if row["cost"]["usd"] else parts.ABSENT
    ),
}


# ---- ReSyn --------------------------------------------------------------------------------------


def _resyn_byline(report: Mapping[str, Any]) -> Markup:
    funnel = report["funnel"]
    text = (
        f"Author: {report['author']}. {report['calls']} calls, "
        f"{parts.number(report['calls_per_kept'])} per environment kept. {funnel['revised']} "
        f"modules were revised once; {funnel['kept_after_revision']} of them were kept."
    )
    for name, count in report["questions_like_evaluation"].items():
        text += f" {count} questions share a run of words with {name}."
    return _paragraph(text, report)


def _resyn_funnel(report: Mapping[str, Any], palette: theme.Palette) -> Any:
    items = report["funnel"]["items"]
    stages = [(s["stage"], s["out"], s["refused"]) for s in report["funnel"]["stages"]]
    what = f"ideas (author: {report['author']})"
    return funnel([("asked for", items, {}), *stages], items, what, palette)


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


_STAGES = {
    "stage": operator.itemgetter("stage"),
    "in": operator.itemgetter("in"),
    "refused": lambda stage: (
        ", ".join(f"{n} {why}" for why, n in stage["refused"].items()) or "none"
    ),
    "out": operator.itemgetter("out"),
}


def _resyn_diversity(figures: Mapping[str, Any]) -> Markup:
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


# ---- formal -------------------------------------------------------------------------------------


def formal_table(found: Mapping[str, Any], of: str) -> Table:
    """One row a round and arm, of one run or of the mean over seeds."""
    shown = Table(title=f"Held-out statements solved, with 95 % intervals ({of})")
    for name in ("arm", "round", "proofs learnt", "solved", "pass@1", "pool solved"):
        shown.add_column(name, justify="left" if name == "arm" else "right")
    for arm in (LOOP, CONTROL):
        for record in found.get(arm, []):
            low, high = record["solved_share_ci95"]
            has_count = "pool_solved" in record
            shown.add_row(
                LABEL[arm],
                str(record["round"]),
                f"{record['num_examples']:.0f}",
                f"{record['solved_share']:.1%} [{low:.1%}, {high:.1%}]",
                f"{record['pass@1']:.1%}",
                str(record["pool_solved"]) if has_count else f"{record['pool_solved_share']:.1%}",
            )
    return shown


def formal_chart(found: Mapping[str, Any]) -> bytes:
    """Both arms by round, as means over seeds: held-out statements, and the pool."""
    with theme.style(theme.LIGHT):
        figure, (held_out, pool) = theme.new_figure(720, 300, 2)
        for arm in (LOOP, CONTROL):
            records, color = found.get(arm, []), _COLOR[arm]
            rounds = [record["round"] for record in records]
            low, high = (
                [100 * record["solved_share_ci95"][end] for record in records] for end in (0, 1)
            )
            for axes, name in ((held_out, "solved_share"), (pool, "pool_solved_share")):
                shares = [100 * one[name] for one in records]
                axes.plot(rounds, shares, "o-", color=color, label=LABEL[arm])
            held_out.fill_between(rounds, low, high, color=color, alpha=0.12, lw=0)
        held_out.set_title("Held-out statements solved, %")
        pool.set_title("Statements of the pool solved so far, %")
        for axes in (held_out, pool):
            axes.set_ylim(0, 100)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        held_out.legend(loc="best")
        return theme.to_png(figure, dpi=100)
