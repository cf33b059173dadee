"""Pages and charts of what `loong synth` makes: where candidates ended, how hard, how diverse."""

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
        parts.section("Execution and judging", "shares", _shares(rows)),
        parts.section("Difficulty", "difficulty", _difficulty(rows)),
        parts.section("Diversity", "diversity", _env_diversity(rows)),
        parts.section("Cost", "cost", _cost(rows)),
        chart=lambda: _env_funnel(summary, theme.LIGHT),
    )  # fmt: skip


def write_resyn(directory: Path) -> Path:
    """Writes DIR/report.html and DIR/funnel.png from DIR/report.json."""
    report = json_files.read_json(directory / "report.json")
    funnel = report["funnel"]
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
        parts.section("Funnel", "funnel", where, _resyn_table(funnel)),
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


def _env_diversity(rows: Sequence[Mapping[str, Any]]) -> Markup:
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


def _resyn_table(funnel: Mapping[str, Any]) -> Markup:
    body = [
        [
            stage["stage"], stage["in"],
            ", ".join(f"{n} {why}" for why, n in stage["refused"].items()) or "none",
            stage["out"],
        ]
        for stage in funnel["stages"]
    ]  # fmt: skip
    return parts.table(["stage", "in", "refused", "out"], body, text_columns=(0, 2))


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
            held_out.plot(
                rounds,
                [100 * one["solved_share"] for one in records],
                "o-",
                color=color,
                label=LABEL[arm],
            )
            held_out.fill_between(rounds, low, high, color=color, alpha=0.12, lw=0)
            shares = [100 * one["pool_solved_share"] for one in records]
            pool.plot(rounds, shares, "o-", color=color)
        held_out.set_title("Held-out statements solved, %")
        pool.set_title("Statements of the pool solved so far, %")
        for axes in (held_out, pool):
            axes.set_ylim(0, 100)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        held_out.legend(loc="best")
        return theme.to_png(figure, dpi=100)
