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
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from loong_jax.data import json_files
from loong_jax.errors import ConfigError, LoongError, refuse_below
from loong_jax.eval import metrics
from loong_jax.problems.problem import Problem, current_uid
from loong_jax.problems.response import FORMS, ResponseForm, read
from loong_jax.problems.verdict import Verdict
from loong_jax.rollout.records import Rollout, SamplingSettings, readable

FORMAT_VERSION = 1


@runtime_checkable
class Sample(Protocol):
    def __call__(
        self, problems: Sequence[Problem], num_samples: int, sampling: SamplingSettings
    ) -> Sequence[Sequence[Rollout]]:
        """`num_samples` rollouts of each problem, in the order of `problems`."""
        ...


@runtime_checkable
class Verify(Protocol):
    def __call__(
        self, problems: Sequence[Problem], rollouts: Sequence[Rollout]
    ) -> Sequence[Verdict]:
        """The verdict on each rollout; `problems[i]` is the one that `rollouts[i]` answers."""
        ...


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
    sampled, verdicts = _sample_and_verify(
        sample, verify, problems, settings.samples_per_problem, settings.sampling
    )
    correct = {p.uid: _count(v) for p, v in zip(problems, verdicts, strict=True)}
    well_formed = {
        p.uid: sum(
            verdict.is_graded and read(rollout.text, form).is_well_formed
            for rollout, verdict in zip(rollouts, judged, strict=True)
        )
        for p, rollouts, judged in zip(problems, sampled, verdicts, strict=True)
    }
    every = [verdict for judged in verdicts for verdict in judged]
    greedy: dict[str, int] = {}
    if settings.greedy:
        one = dataclasses.replace(settings.sampling, greedy=True)
        _, judged = _sample_and_verify(sample, verify, problems, 1, one)
        greedy = {
            p.uid: int(v[0].is_correct)
            for p, v in zip(problems, judged, strict=True)
            if v[0].is_graded
        }

    pass_at_correct = {}
    if settings.pass_at:
        subset = problems[: settings.num_pass_at_problems]
        more = settings.pass_at - settings.samples_per_problem
        extra: list[list[Verdict]] = [[] for _ in subset]
        if more and subset:
            _, extra = _sample_and_verify(sample, verify, subset, more, settings.sampling)
        pass_at_correct = {p.uid: _count([*verdicts[i], *extra[i]]) for i, p in enumerate(subset)}

    lengths = [len(rollout.tokens) for rollouts in sampled for rollout in rollouts]
    evaluation = DomainEvaluation(
        correct=correct,
        well_formed=well_formed,
        level={p.uid: p.level for p in problems},
        greedy=greedy,
        pass_at=settings.pass_at,
        pass_at_correct=pass_at_correct,
        mean_length=float(np.mean(lengths)),
        num_ungradable=sum(not verdict.is_graded for verdict in every),
        isolation=dict(collections.Counter(verdict.isolation for verdict in every)),
    )
    shown = [
        readable(problem, dataclasses.replace(rollouts[0], verdict=judged[0]), form)
        for problem, rollouts, judged in list(zip(problems, sampled, verdicts, strict=True))[:8]
    ]
    return evaluation, shown


def _sample_and_verify(
    sample: Sample,
    verify: Verify,
    problems: list[Problem],
    num_samples: int,
    sampling: SamplingSettings,
) -> tuple[list[list[Rollout]], list[list[Verdict]]]:
    sampled = [list(rollouts) for rollouts in sample(problems, num_samples, sampling)]
    if [len(rollouts) for rollouts in sampled] != [num_samples] * len(problems):
        raise AssertionError(f"sample() must return {num_samples} rollouts for each problem")
    owners = [problem for problem in problems for _ in range(num_samples)]
    flat = list(verify(owners, [rollout for rollouts in sampled for rollout in rollouts]))
    if len(flat) != len(owners):
        raise AssertionError(f"verify() returned {len(flat)} verdicts for {len(owners)} rollouts")
    return sampled, [flat[i * num_samples : (i + 1) * num_samples] for i in range(len(problems))]


def _count(verdicts: Sequence[Verdict]) -> tuple[int, int]:
    return sum(v.is_correct for v in verdicts), sum(v.is_graded for v in verdicts)
