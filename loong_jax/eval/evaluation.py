"""One evaluation: sample held-out problems, verify, and count per problem.

`evaluate` is given its two callables, so it knows neither engine nor verifier pool. What it returns
is written as `evaluation.json` beside the stage and holds the counts of every problem, so that two
stages can later be compared problem by problem.
"""

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loong_jax.data import json_files
from loong_jax.errors import ConfigError, LoongError, refuse_below
from loong_jax.eval import metrics
from loong_jax.problems.problem import Problem, current_uid
from loong_jax.problems.response import FORMS, ResponseForm, read
from loong_jax.problems.verdict import Verdict
from loong_jax.rollout.records import Rollout, SamplingSettings, readable

FORMAT_VERSION = 1


# so many rollouts of each problem, in the order of the problems
Sample = Callable[[Sequence[Problem], int, SamplingSettings], Sequence[Sequence[Rollout]]]
# the verdict on each rollout, of which problem `i` is the one that rollout `i` answers
Verify = Callable[[Sequence[Problem], Sequence[Rollout]], Sequence[Verdict]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The same settings, and the same problems, serve every stage of a run."""

    side: Literal["test", "validation"] = "test"  # of the split; settings are chosen on validation
    num_problems: int = 512  # per domain
    samples_per_problem: int = 4
    sampling: SamplingSettings = dataclasses.field(default_factory=SamplingSettings)
    greedy: bool = True  # one greedy sample of every problem besides
    pass_at: int = 16  # k of pass@k; 0 for none
    num_pass_at_problems: int = 128  # the first ones of each domain get k samples
    seed: int = 0  # of the bootstrap

    def __post_init__(self):
        if self.side not in ("test", "validation"):
            raise ConfigError(
                f"side={self.side!r} must be test or validation: the rest is trained on."
            )
        refuse_below(self, 1, "num_problems", "samples_per_problem")
        if self.pass_at and self.pass_at < self.samples_per_problem:
            raise ConfigError(
                f"pass_at={self.pass_at} is less than samples_per_problem="
                f"{self.samples_per_problem}, whose samples it reuses. Raise it, or give 0."
            )
        if self.sampling.greedy or self.sampling.is_truncated:
            raise ConfigError(
                f"sampling={self.sampling} is greedy or cuts the distribution off. pass@k is about "
                "the policy itself: sample without limits, greedy is counted separately."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DomainEvaluation:
    """Counts per problem; every figure is derived from them. Keys are uids of problems.

    An ungradable sample leaves the counts and is only counted in `num_ungradable`: the machinery
    failed, not the policy.
    """

    correct: Mapping[str, tuple[int, int]]  # (right, graded) samples
    well_formed: Mapping[str, int]  # graded samples in the form of a response
    level: Mapping[str, int]
    greedy: Mapping[str, int] = dataclasses.field(default_factory=dict)  # 1 where right
    pass_at: int = 0
    pass_at_correct: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    mean_length: float = float("nan")  # tokens
    num_ungradable: int = 0
    isolation: Mapping[str, int] = dataclasses.field(default_factory=dict)  # verdicts by tier

    def rate(self) -> dict[str, float]:
        """Share of right samples, by uid."""
        return {uid: c / n for uid, (c, n) in self.correct.items() if n}

    def well_formed_counts(self) -> dict[str, tuple[int, int]]:
        """(right, well-formed) samples by uid; a right sample is always well-formed."""
        return {uid: (c, self.well_formed[uid]) for uid, (c, _) in self.correct.items()}

    def to_json(self, seed: int = 0) -> dict[str, Any]:
        rate = self.rate()
        overall = metrics.mean_estimate(list(rate.values()), seed=seed)
        formed = self.well_formed_counts()
        without = metrics.pooled_ratio(
            [c for c, _ in formed.values()], [n for _, n in formed.values()], seed=seed
        )
        num_graded = sum(n for _, n in self.correct.values())
        levels = metrics.by_group(list(rate.values()), [self.level[uid] for uid in rate], seed=seed)
        record: dict[str, Any] = {
            **overall.to_json("pass@1"),
            "samples_per_problem": max((n for _, n in self.correct.values()), default=0),
            "well_formed": sum(self.well_formed.values()) / max(num_graded, 1),
            "pass@1_without_format_failures": without.value,
            "pass@1_without_format_failures_ci95": without.ci95,
            "by_level": {str(level): e.to_json("pass@1") for level, e in levels.items()},
            "mean_length": self.mean_length,
            "ungradable": self.num_ungradable,
            "isolation": dict(self.isolation),
        }
        if self.greedy:
            greedy = metrics.mean_estimate(list(self.greedy.values()), seed=seed)
            record |= {"greedy": greedy.value, "greedy_ci95": greedy.ci95}
        if self.pass_at:
            counts = np.array(list(self.pass_at_correct.values()), np.int64).reshape(-1, 2)
            values = metrics.pass_at_k_per_problem(counts[:, 1], counts[:, 0], self.pass_at)
            estimate = metrics.mean_estimate(values, seed=seed)
            name, interval = f"pass@{self.pass_at}", estimate.ci95
            record |= {name: estimate.value, f"{name}_ci95": interval, f"{name}_n": estimate.n}
        for name in ("correct", "well_formed", "level", "greedy", "pass_at_correct"):
            counts = getattr(self, name).items()
            record[f"{name}_per_problem"] = {
                uid: list(count) if isinstance(count, tuple) else count for uid, count in counts
            }
        return record | {"pass_at": self.pass_at}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "DomainEvaluation":
        per_problem: dict[str, Any] = {
            name: {
                current_uid(uid): tuple(count) if isinstance(count, list) else count
                for uid, count in record[f"{name}_per_problem"].items()
            }
            for name in ("correct", "well_formed", "level", "greedy", "pass_at_correct")
        }
        return cls(
            **per_problem,
            pass_at=record["pass_at"],
            mean_length=float("nan") if record["mean_length"] is None else record["mean_length"],
            num_ungradable=record["ungradable"],
            isolation=record["isolation"],
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """All domains of one stage; `to_json` is the content of `evaluation.json`."""

    stage: str
    domains: Mapping[str, DomainEvaluation]
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "stage": self.stage,
            "seed": self.seed,
            "domains": {name: part.to_json(self.seed) for name, part in self.domains.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "EvaluationResult":
        parts = {n: DomainEvaluation.from_json(part) for n, part in record["domains"].items()}
        return cls(stage=record["stage"], seed=record["seed"], domains=parts)

    def save(self, directory: Path | str) -> Path:
        """Writes `evaluation.json` into the stage's directory, whole or not at all."""
        return json_files.write_json(Path(directory) / "evaluation.json", self.to_json())

    @classmethod
    def load(cls, directory: Path | str) -> "EvaluationResult":
        path = Path(directory) / "evaluation.json"
        try:
            return cls.from_json(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoongError(
                f"{path} is missing or not an evaluation ({error!r}). If the stage is of this "
                "run, delete its done.json, and the same `loong train` command evaluates it again."
            ) from error


def counted(
    show: Callable[[int, int], None], settings: EvaluationSettings, num_problems: Iterable[int]
) -> Callable[[int, int], None]:
    """Progress of a sampler as one count of all groups that an evaluation draws.

    `num_problems` are those of each domain, which are sampled, greedily too, and some once more.
    """
    total, done = 0, itertools.count(1)
    for number in num_problems:
        has_more = settings.pass_at > settings.samples_per_problem
        more = min(number, settings.num_pass_at_problems) if has_more else 0
        total += number * (1 + settings.greedy) + more
    return lambda *_: show(next(done), total)


def evaluate(
    sample: Sample,
    verify: Verify,
    problems_by_domain: Mapping[str, Sequence[Problem]],
    settings: EvaluationSettings,
    *,
    stage: str,
    form: ResponseForm = FORMS["tagged"],
) -> tuple[EvaluationResult, list[dict[str, Any]]]:
    """Evaluates one set of weights on the problems of every domain that has some.

    Returns the counts and a few readable samples (records for `rollouts/evaluation.jsonl`).
    Raises ConfigError where a domain repeats a problem.
    """
    domains, samples = {}, []
    for domain, problems in problems_by_domain.items():
        if not problems:
            continue
        if len({problem.uid for problem in problems}) < len(problems):
            raise ConfigError(f"{domain} repeats a held-out problem. Draw them without repetition.")
        domains[domain], shown = _evaluate_domain(sample, verify, list(problems), settings, form)
        samples.extend({"stage": stage, **record} for record in shown)
    return EvaluationResult(stage=stage, domains=domains, seed=settings.seed), samples


def _evaluate_domain(
    sample: Sample,
    verify: Verify,
    problems: list[Problem],
    settings: EvaluationSettings,
    form: ResponseForm,
) -> tuple[DomainEvaluation, list[dict[str, Any]]]:
    def judged(
        problems: list[Problem], num_samples: int, sampling: SamplingSettings
    ) -> list[list[Rollout]]:
        """Rollouts of each problem, with their verdicts."""
        sampled = sample(problems, num_samples, sampling)
        owners = [problem for problem in problems for _ in range(num_samples)]
        verdicts = iter(verify(owners, list(itertools.chain.from_iterable(sampled))))
        return [
            [dataclasses.replace(one, verdict=next(verdicts)) for one in rollouts]
            for rollouts in sampled
        ]

    answers = judged(problems, settings.samples_per_problem, settings.sampling)
    of = {problem.uid: rollouts for problem, rollouts in zip(problems, answers, strict=True)}
    greedy: dict[str, int] = {}
    if settings.greedy:
        once = judged(problems, 1, dataclasses.replace(settings.sampling, greedy=True))
        verdicts = [(p.uid, one.verdict) for p, (one,) in zip(problems, once, strict=True)]
        greedy = {uid: int(v.is_correct) for uid, v in verdicts if v is not None and v.is_graded}

    pass_at_correct = {}
    if settings.pass_at:
        subset = problems[: settings.num_pass_at_problems]
        more = settings.pass_at - settings.samples_per_problem
        extra = judged(subset, more, settings.sampling) if more and subset else [[]] * len(subset)
        pass_at_correct = {
            p.uid: _count([*of[p.uid], *others]) for p, others in zip(subset, extra, strict=True)
        }

    every = list(itertools.chain.from_iterable(answers))
    evaluation = DomainEvaluation(
        correct={uid: _count(rollouts) for uid, rollouts in of.items()},
        well_formed={
            uid: sum(read(r.text, form).is_well_formed for r in rollouts if _is_graded(r))
            for uid, rollouts in of.items()
        },
        level={p.uid: p.level for p in problems},
        greedy=greedy,
        pass_at=settings.pass_at,
        pass_at_correct=pass_at_correct,
        mean_length=float(np.mean([len(rollout.tokens) for rollout in every])),
        num_ungradable=sum(not _is_graded(rollout) for rollout in every),
        isolation=dict(collections.Counter(r.verdict.isolation for r in every if r.verdict)),
    )
    shown = list(zip(problems, answers, strict=True))[:8]
    return evaluation, [readable(problem, first, form) for problem, (first, *_) in shown]


def _is_graded(rollout: Rollout) -> bool:
    return rollout.verdict is not None and rollout.verdict.is_graded


def _count(rollouts: Sequence[Rollout]) -> tuple[int, int]:
    verdicts = [rollout.verdict for rollout in rollouts if rollout.verdict is not None]
    return sum(v.is_correct for v in verdicts), sum(v.is_graded for v in verdicts)
