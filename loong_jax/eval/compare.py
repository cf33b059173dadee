"""Paired comparisons of stages on the same problems: what each stage gained, and what fusion cost.

Two files are written for the report, which itself knows nothing of evaluation:
`gains.json` beside the stages of a run, and `controls.json` for runs set beside each other.
"""

import dataclasses
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.data.run_experts import baseline_of, experts_of
from loong_jax.errors import ConfigError
from loong_jax.eval import metrics
from loong_jax.eval.evaluation import DomainEvaluation, EvaluationResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gain:
    """`after - before`, paired by problem, in one domain; shares, not per cent."""

    sampled: metrics.Estimate  # pass@1 at temperature 1
    greedy: metrics.Estimate
    without_format_failures: metrics.Estimate
    by_level: Mapping[Hashable, metrics.Estimate]
    disjoint: bool  # the 95 % intervals of both pass@1 do not overlap

    def to_json(self) -> dict[str, Any]:
        return {
            **self.sampled.to_json("gain"),
            "greedy": self.greedy.to_json("gain"),
            "without_format_failures": self.without_format_failures.to_json("gain"),
            "by_level": {str(level): e.to_json("gain") for level, e in self.by_level.items()},
            "disjoint_intervals": self.disjoint,
        }


def gain(after: DomainEvaluation, before: DomainEvaluation, *, seed: int = 0) -> Gain:
    """Compares two evaluations of one domain; raises ConfigError where they share no problem."""
    if not after.correct.keys() & before.correct.keys():
        raise ConfigError(
            "the two evaluations share no problem, so nothing is paired. Evaluate both on the same "
            "held-out problems."
        )
    rate_after, rate_before = after.rate(), before.rate()
    shared = sorted(rate_after.keys() & rate_before.keys())
    one = metrics.mean_estimate([rate_after[uid] for uid in shared], seed=seed)
    two = metrics.mean_estimate([rate_before[uid] for uid in shared], seed=seed)
    return Gain(
        sampled=metrics.paired_difference(rate_after, rate_before, seed=seed),
        greedy=metrics.paired_difference(after.greedy, before.greedy, seed=seed),
        without_format_failures=metrics.paired_ratio_difference(
            after.well_formed_counts(), before.well_formed_counts(), seed=seed
        ),
        by_level=metrics.by_group(
            [rate_after[uid] - rate_before[uid] for uid in shared],
            [after.level[uid] for uid in shared],
            seed=seed,
        ),
        disjoint=one.low > two.high or two.low > one.high,
    )


def mean_gain(gains: Sequence[Gain]) -> Gain:
    """The gain of a control over several runs of it, each from the same cold start."""
    if len(gains) == 1:
        return gains[0]
    means = {
        name: metrics.over_runs([getattr(g, name) for g in gains])
        for name in ("sampled", "greedy", "without_format_failures")
    }
    levels = gains[0].by_level
    by_level = {level: metrics.over_runs([g.by_level[level] for g in gains]) for level in levels}
    return Gain(**means, by_level=by_level, disjoint=all(g.disjoint for g in gains))


def gains(
    results: Mapping[str, EvaluationResult],
    *,
    experts: Mapping[str, str] = types.MappingProxyType({}),
) -> dict[str, Any]:
    """Every comparison a report shows, as plain values.

    `over_sft`: each later stage minus the baseline in each domain. `fused_minus_expert`: the fused
    model minus the expert of the domain, of which `experts` says the stages; `general_minus_fused`
    likewise.
    """
    baseline = baseline_of(results)
    expert_in = {domain: stage for stage, domain in experts.items()}

    def over(stage: str, before: Callable[[str], str]) -> dict[str, Any]:
        """The gains of a stage over the one that `before` names for each domain."""
        found = {}
        for domain, part in results[stage].domains.items() if stage in results else ():
            other = results.get(before(domain))
            if other is not None and domain in other.domains:
                found[domain] = gain(part, other.domains[domain], seed=other.seed).to_json()
        return found

    later = [stage for stage in results if baseline in results and stage != baseline]
    return {
        "over_sft": {stage: over(stage, lambda _: baseline) for stage in later},
        "fused_minus_expert": over("fused", lambda domain: expert_in.get(domain, "")),
        "general_minus_fused": over("general", lambda _: "fused"),
    }


def load_results(run_dir: Path | str) -> dict[str, EvaluationResult]:
    """Evaluations of a run by stage, those that exist."""
    stages = Path(run_dir) / "stages"
    return {
        path.parent.name: EvaluationResult.load(path.parent)
        for path in sorted(stages.glob("*/evaluation.json"))
    }


def write_gains(run_dir: Path | str) -> dict[str, Any]:
    """Computes `gains` of a run and writes them to `RUN/gains.json` for the report."""
    found = gains(load_results(run_dir), experts=experts_of(run_dir))
    table = json_files.without_nan(found)
    json_files.write_json(Path(run_dir) / "gains.json", table)
    return table


def write_controls(
    directory: Path | str,
    real_run: Path | str,
    controls: Mapping[str, Path | str],
    *,
    control_stages: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> dict[str, Any]:
    """Sets the experts of a real run beside those of its controls; writes `controls.json`.

    `controls` maps a name to a run directory. `control_stages` tells which of its stages stand
    for each expert, where names differ: {"continued SFT": {"rl_stem": ("sft_continued",)}}.
    Several stages are repetitions of one control: the figures are means over them, and their
    intervals hold the scatter between them. Differences are paired by problem, in the domain of
    the stage. `runs` has steps and training time of each repetition, `real` those of the expert.
    By control: `domains` has all that for each domain, and `over_all_runs`, where a control is
    repeated, the mean gain over the runs of all domains.
    """
    real, experts = load_results(real_run), experts_of(real_run)
    baseline = baseline_of(real)
    table: dict[str, Any] = {}
    for name, run in controls.items():
        control = load_results(run)
        names = (control_stages or {}).get(name, {})
        domains: dict[str, Any] = {}
        repeated: list[metrics.Estimate] = []
        for stage, domain in experts.items():
            repetitions = [there for there in names.get(stage, (stage,)) if there in control]
            if stage not in real or not repetitions:
                continue
            ours = real[stage].domains[domain]
            theirs = [control[there].domains[domain] for there in repetitions]
            before = control.get(baseline, real[baseline]).domains[domain]
            of_each = [gain(one, before) for one in theirs]
            repeated += [one.sampled for one in of_each if len(of_each) > 1]
            domains[domain] = {
                "control_gain": mean_gain(of_each).to_json(),
                "real_gain": gain(ours, real[baseline].domains[domain]).to_json(),
                "real_minus_control": mean_gain([gain(ours, one) for one in theirs]).to_json(),
                "real": _training(real_run, stage),
                "runs": [
                    _training(run, there) | {"gain": one.sampled.value}
                    for there, one in zip(repetitions, of_each, strict=True)
                ],
            }
        table[name] = {"domains": domains, "over_all_runs": None}
        if repeated:
            found = metrics.over_runs(repeated).to_json("gain")
            table[name]["over_all_runs"] = found | {"runs": len(repeated)}
    table = json_files.without_nan(table)
    json_files.write_json(Path(directory) / "controls.json", table)
    return table


def _training(run: Path | str, stage: str) -> dict[str, Any]:
    """Steps of a finished stage and the seconds it trained for, evaluation left out."""
    done = json_files.read_json(Path(run) / "stages" / stage / "done.json", {})
    known = {"wall_s", "evaluation_s"} <= done.keys()
    train_s = round(done["wall_s"] - done["evaluation_s"], 1) if known else None
    return {"stage": stage, "steps": done.get("steps"), "train_s": train_s}
