"""An evaluation as figures and as tables for a terminal: Mean@n, pass@k, by level."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loong_jax.eval import metrics
from loong_jax.eval.evaluation import DomainEvaluation
from loong_jax.eval.metrics import Estimate


def figures(part: DomainEvaluation, ks: Sequence[int], *, seed: int = 0) -> dict[str, Estimate]:
    """`mean@n`, the share of right answers over n samples a problem, and `pass@k` for each k.

    Problems with fewer than k graded samples are left out of pass@k.
    """
    counts = np.array(list(part.correct.values()), np.int64).reshape(-1, 2)
    most = int(counts[:, 1].max(initial=0))
    found = {f"mean@{most}": metrics.mean_estimate(list(part.rate().values()), seed=seed)}
    for k in ks:
        values = metrics.pass_at_k_per_problem(counts[:, 1], counts[:, 0], k)
        found[f"pass@{k}"] = metrics.mean_estimate(values, seed=seed)
    if part.greedy:
        found["greedy"] = metrics.mean_estimate(list(part.greedy.values()), seed=seed)
    return found


def by_level(part: DomainEvaluation) -> dict[int, DomainEvaluation]:
    """The same with the problems of each level alone."""
    parts = {}
    for level in sorted(set(part.level.values())):
        uids = [uid for uid in part.level if part.level[uid] == level]
        parts[level] = DomainEvaluation(
            correct={uid: part.correct[uid] for uid in uids},
            well_formed={uid: part.well_formed[uid] for uid in uids},
            level=dict.fromkeys(uids, level),
            greedy={uid: part.greedy[uid] for uid in uids if uid in part.greedy},
        )
    return parts


def to_json(
    domains: Mapping[str, DomainEvaluation], ks: Sequence[int], *, seed: int = 0
) -> dict[str, Any]:
    """Shares with 95 % intervals by domain and level, and the counts of every problem."""

    def of(part: DomainEvaluation) -> dict[str, Any]:
        named = figures(part, ks, seed=seed)
        return {name: e.to_json("value") for name, e in named.items()}

    return {
        name: {
            **of(part),
            "by_level": {str(level): of(alone) for level, alone in by_level(part).items()},
            "ungradable": part.num_ungradable,
            "mean_length": part.mean_length,
            "isolation": dict(part.isolation),
            "correct_per_problem": {uid: list(count) for uid, count in part.correct.items()},
        }
        for name, part in domains.items()
    }


def overview(domains: Mapping[str, DomainEvaluation], ks: Sequence[int], *, seed: int = 0) -> Table:
    """A row per domain and one per level of it, in per cent."""
    names = list(figures(next(iter(domains.values())), ks, seed=seed))
    table = Table(title="right answers in per cent; below, the 95 % interval over problems")
    for heading in ("domain", "level"):
        table.add_column(heading, no_wrap=True)
    for heading in ("n", *names, "tokens", "ungraded"):
        table.add_column(heading, justify="right", no_wrap=True)
    for domain, part in domains.items():
        levels = by_level(part)
        table.add_row(
            domain,
            "all",
            str(len(part.correct)),
            *map(_with_interval, figures(part, ks, seed=seed).values()),
            f"{part.mean_length:.0f}",
            str(part.num_ungradable),
            end_section=len(levels) == 1,
        )
        for level, alone in levels.items() if len(levels) > 1 else ():
            estimates = figures(alone, ks, seed=seed).values()
            table.add_row("", str(level), str(len(alone.correct)), *map(_short, estimates), "", "")
        table.add_section()
    return table


def gains(
    domains: Mapping[str, DomainEvaluation],
    before: Mapping[str, Any],
    title: str,
    *,
    seed: int = 0,
) -> Table:
    """Gains over another evaluation, as `to_json` has it, over the problems that both posed."""
    table = Table(title=title)
    table.add_column("domain", no_wrap=True)
    for heading in ("problems of both", "mean", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for domain, part in domains.items():
        counts = before.get(domain, {}).get("correct_per_problem", {})
        rates = {uid: right / count for uid, (right, count) in counts.items() if count}
        gain = metrics.paired_difference(part.rate(), rates, seed=seed)
        low, high = (f"{100 * bound:+.1f}" for bound in (gain.low, gain.high))
        shown = (f"{100 * gain.value:+.1f}", f"{low} to {high}") if gain.n else ("-", "-")
        table.add_row(domain, str(gain.n), *shown)
    return table


def print_whole(console: Console, table: Table) -> None:
    """Prints a table whose figures are all there, wider than the console where it must be."""
    options = console.options.update(max_width=10_000)
    console.width = max(console.width, console.measure(table, options=options).maximum)
    console.print(table)


def _with_interval(estimate: Estimate) -> str:
    if not estimate.n:
        return "-"
    return f"{_short(estimate)}\n{100 * estimate.low:.0f}-{100 * estimate.high:.0f}"


def _short(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f}" if estimate.n else "-"
