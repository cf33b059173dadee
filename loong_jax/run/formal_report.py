"""What the formal loop's rounds amount to: shares with intervals, a table, a chart."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import ticker
from rich.table import Table

from loong_jax.eval import metrics
from loong_jax.eval.metrics import Estimate
from loong_jax.report import theme
from loong_jax.report.theme import LIGHT
from loong_jax.synth.formal import expert_iteration
from loong_jax.synth.formal.expert_iteration import Attempt, Round

LOOP, CONTROL = "iteration", "control"
_LABEL = {LOOP: "trains on what it proved", CONTROL: "cold start alone"}
_COLOR = {LOOP: theme.DOMAIN_COLORS["stem"], CONTROL: theme.DOMAIN_COLORS["logic"]}


def title(arm: str) -> str:
    return f"prover that {_LABEL[arm]}" if arm == LOOP else f"control: {_LABEL[arm]}"


def line(done: Round) -> str:
    """A round as it ends."""
    said = expert_iteration.summary(done)
    return (
        f"round {said['round']}: learnt from {said['num_examples']} proofs; held out "
        f"{said['held_out_solved']} of {said['held_out_graded']} solved; pool "
        f"{said['pool_newly_solved']} of {said['pool_attempted']} newly solved"
    )


def audit_line(audited: Mapping[str, Any]) -> str:
    return (
        f"{audited['checker']} accepts {audited['accepted']} of {audited['counted']} counted "
        f"proofs, refuses {len(audited['refused'])}, and cannot judge {audited['ungradable']}"
    )


def figures(
    arms: Mapping[str, Sequence[Round]], *, level_of: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """By arm, a record of each round; and by how much the last round of the loop is ahead."""
    found: dict[str, Any] = {
        arm: [_round_figures(done, level_of, seed) for done in rounds]
        for arm, rounds in arms.items()
    }
    if LOOP in arms and len(arms[LOOP]) > 1:
        found["gain"] = _difference(arms[LOOP][-1], arms[LOOP][0], seed)
    if {LOOP, CONTROL} <= set(arms):
        found["gain_over_control"] = _difference(arms[LOOP][-1], arms[CONTROL][-1], seed)
    return found


def _round_figures(done: Round, level_of: Mapping[str, int], seed: int) -> dict[str, Any]:
    graded = [a for a in done.held_out if a.num_graded]
    solved = metrics.mean_estimate([float(a.is_solved) for a in graded], seed=seed)
    rate = metrics.mean_estimate([a.num_correct / a.num_graded for a in graded], seed=seed)
    levels = metrics.by_group(
        [float(a.is_solved) for a in graded], [level_of[a.uid] for a in graded], seed=seed
    )
    return expert_iteration.summary(done) | {
        "solved_share": solved.value,
        "solved_share_ci95": solved.ci95,
        "pass@1": rate.value,
        "pass@1_ci95": rate.ci95,
        "solved_share_by_level": {str(level): [e.value, e.n] for level, e in levels.items()},
    }


def _difference(after: Round, before: Round, seed: int) -> dict[str, Any]:
    """Of solved shares, paired by statement."""
    difference = metrics.paired_difference(_solved(after), _solved(before), seed=seed)
    return {"value": difference.value, "ci95": difference.ci95, "n": difference.n}


def _solved(done: Round) -> dict[str, int]:
    graded: list[Attempt] = [a for a in done.held_out if a.num_graded]
    return {attempt.uid: int(attempt.is_solved) for attempt in graded}


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `figures` found, as means over runs of different seeds; pools as shares of themselves.

    The intervals are for other seeds and other statements (`metrics.over_runs`).
    """
    found: dict[str, Any] = {
        arm: [
            _mean_round(records, [run["num_pool"] for run in runs])
            for records in zip(*(run[arm] for run in runs), strict=True)
        ]
        for arm in (LOOP, CONTROL)
        if all(arm in run for run in runs)
    }
    for name in ("gain", "gain_over_control"):
        if all(name in run for run in runs):
            found[name] = _mean([(run[name]["value"], run[name]["ci95"]) for run in runs])
    return found


def _mean_round(records: Sequence[Mapping[str, Any]], pools: Sequence[int]) -> dict[str, Any]:
    solved, rate = (
        _mean([(record[name], record[f"{name}_ci95"]) for record in records])
        for name in ("solved_share", "pass@1")
    )
    by_level: dict[str, list[float]] = {}
    for record in records:
        for level, (share, count) in record["solved_share_by_level"].items():
            known, before = by_level.get(level, (0.0, 0))
            all_of_it = before + count
            by_level[level] = [(known * before + share * count) / all_of_it, all_of_it]
    shares = [r["pool_solved"] / max(n, 1) for r, n in zip(records, pools, strict=True)]
    return {
        "round": records[0]["round"],
        "num_examples": sum(record["num_examples"] for record in records) / len(records),
        "solved_share": solved["value"],
        "solved_share_ci95": solved["ci95"],
        "pass@1": rate["value"],
        "pass@1_ci95": rate["ci95"],
        "solved_share_by_level": by_level,
        "pool_solved_share": sum(shares) / len(shares),
    }


def _mean(estimates: Sequence[tuple[float, Sequence[float]]]) -> dict[str, Any]:
    mean = metrics.over_runs([Estimate(value, low, high, 0) for value, (low, high) in estimates])
    return {"value": mean.value, "ci95": mean.ci95, "num_seeds": len(estimates)}


def funnel_table(funnel: Mapping[str, int]) -> Table:
    """Where problems in words ended."""
    shown = Table(title=f"{sum(funnel.values())} problems in words")
    shown.add_column("ended at")
    shown.add_column("problems", justify="right")
    for stage, count in funnel.items():
        shown.add_row(stage, str(count))
    return shown


def table(found: Mapping[str, Any], num_samples: int, of: str) -> Table:
    """One row a round and arm, of one run or of the mean over seeds."""
    shown = Table(title=f"Held-out statements solved, with 95 % intervals ({of})")
    for name in ("arm", "round", "proofs learnt", f"solved in {num_samples}", "pass@1", "pool"):
        shown.add_column(name, justify="left" if name == "arm" else "right")
    for arm in (LOOP, CONTROL):
        for record in found.get(arm, []):
            low, high = record["solved_share_ci95"]
            shown.add_row(
                _LABEL[arm],
                str(record["round"]),
                f"{record['num_examples']:.0f}",
                f"{record['solved_share']:.1%} [{low:.1%}, {high:.1%}]",
                f"{record['pass@1']:.1%}",
                _pool_said(record),
            )
    return shown


def _pool_said(record: Mapping[str, Any]) -> str:
    if "pool_solved" in record:
        return f"{record['pool_solved']} solved"
    return f"{record['pool_solved_share']:.1%} solved"


def png(runs: Sequence[Mapping[str, Any]], num_samples: int) -> bytes:
    """Both arms: held-out statements by round and by size, the pool by round.

    Thick lines are means over `runs`, bands their 95 % intervals, thin lines single runs.
    """
    found = over_seeds(runs)
    with theme.style(LIGHT):
        figure, (held_out, pool, by_size) = theme.new_figure(1080, 300, 3)
        for arm in (LOOP, CONTROL):
            records = found.get(arm, [])
            rounds = [record["round"] for record in records]
            color, label = _COLOR[arm], _LABEL[arm]
            shares = [100 * record["solved_share"] for record in records]
            low, high = (
                [100 * record["solved_share_ci95"][end] for record in records] for end in (0, 1)
            )
            held_out.plot(rounds, shares, "o-", color=color, label=label)
            held_out.fill_between(rounds, low, high, color=color, alpha=0.12, lw=0)
            for run in runs if len(runs) > 1 else []:
                single = [100 * record["solved_share"] for record in run.get(arm, [])]
                held_out.plot(rounds, single, color=color, lw=0.8)
            solved = [100 * record["pool_solved_share"] for record in records]
            pool.plot(rounds, solved, "o-", color=color, label=label)
            if records:
                by_size.plot(*_by_size(records[-1]), "o-", color=color)
        if records := found.get(LOOP):
            first = _by_size(records[0])
            by_size.plot(*first, "o--", color=LIGHT.muted, label="both in round 0")
            by_size.legend(loc="best")
        held_out.set_title(f"Held-out statements solved in {num_samples}, %")
        pool.set_title("Statements of the pool solved so far, %")
        by_size.set_title("Held out by size, last round, %")
        for axes in (held_out, pool, by_size):
            axes.set_ylim(0, 100)
            axes.set_xlabel("nodes of the derivation" if axes is by_size else "round")
            axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        held_out.legend(loc="best")
        return theme.to_png(figure, dpi=100)


def _by_size(record: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Sizes that were met, and the share solved of each in per cent."""
    by_level = {int(level): share for level, (share, _) in record["solved_share_by_level"].items()}
    return sorted(by_level), [100 * by_level[level] for level in sorted(by_level)]
