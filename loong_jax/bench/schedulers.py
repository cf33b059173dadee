"""The policies that are compared, each with the way it uses its accelerators."""

import collections
import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from loong_jax.orchestrator import baselines, dora
from loong_jax.orchestrator.protocols import Policy
from loong_jax.orchestrator.simulation.model import CostModel, LengthTrace
from loong_jax.orchestrator.simulation.run import Report, simulate
from loong_jax.orchestrator.simulation.world import Layout

Sharing = Literal["shared", "split", "elastic"]
SPLITS = (0.5, 0.625, 0.75)  # shares of accelerators that train, tried where a policy needs one


class Setup(NamedTuple):
    make: Callable[[int, int], Policy]  # (groups per step, max staleness) -> policy
    placement: Sharing  # all in turns; some only train; or some are lent to generation
    reuses_cache: bool = True


def _dora(**fields) -> Callable[[int, int], Policy]:
    return lambda groups, staleness: dora.algorithm_1(groups, staleness, **fields)


def _partial(keep_cache: bool) -> Callable[[int, int], Policy]:
    return lambda groups, staleness: baselines.PartialRolloutPolicy(
        groups_per_step=groups, max_staleness=staleness, keep_cache=keep_cache
    )


SETUPS: dict[str, Setup] = {
    "sync": Setup(lambda p, s: baselines.SynchronousPolicy(groups_per_step=p), "shared"),
    "sync, tail batching": Setup(
        lambda p, s: baselines.TailBatchingPolicy(groups_per_step=p), "shared"
    ),
    "one step off": Setup(lambda p, s: baselines.OneStepOffPolicy(groups_per_step=p), "split"),
    "partial, prefilled again": Setup(_partial(False), "shared"),
    "partial, stale cache": Setup(_partial(True), "shared"),
    "partial, split": Setup(_partial(False), "split"),
    "drop and replace": Setup(
        lambda p, s: baselines.DropAndReplacePolicy(groups_per_step=p, max_staleness=s), "split"
    ),
    "DORA": Setup(_dora(), "elastic"),
    "DORA, regenerates": Setup(_dora(over_stale="regenerate"), "elastic"),
    "DORA, no cache reuse": Setup(_dora(), "elastic", reuses_cache=False),
    "DORA, not elastic": Setup(_dora(), "split"),
    "DORA, static": Setup(_dora(triggers=None), "elastic"),
    "DORA, static, not elastic": Setup(_dora(triggers=None), "split"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The settings that all policies share."""

    num_accelerators: int
    groups_per_step: int
    trace: LengthTrace
    cost: CostModel
    max_staleness: int = 2
    accelerators_per_replica: int = 4
    slots_per_replica: int = 512
    num_steps: int = 6
    warm_up: int = 5  # steps that are not counted; more than S + 1
    seeds: tuple[int, ...] = (0,)  # of the trace; figures are means over them


def layout_of(setup: Setup, case: Case, split: float) -> Layout:
    """`split` is the share of accelerators that train: whole replicas, one at least per side."""
    width = case.accelerators_per_replica
    num_replicas = case.num_accelerators // width
    taken = min(num_replicas - 1, max(1, round(split * num_replicas)))
    elastic = {"shared": num_replicas, "split": 0, "elastic": taken}[setup.placement]
    return Layout(
        num_accelerators=num_replicas * width,
        accelerators_per_replica=width,
        slots_per_replica=case.slots_per_replica,
        num_elastic=elastic,
        num_trainer_accelerators=taken * width if setup.placement == "split" else 0,
    )


class Measured(NamedTuple):
    """Reports of one setup under one split, a seed each."""

    split: float
    reports: tuple[Report, ...]

    def mean(self, field: str) -> float:
        return statistics.fmean(getattr(report, field) for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """Means over seeds, ages added up, and how far step times of the seeds lie apart."""
        table: dict[str, Any] = {
            field.name: self.mean(field.name)
            for field in dataclasses.fields(Report)
            if field.name != "staleness"
        }
        ages = {third: collections.Counter() for third in self.reports[0].staleness}
        for report in self.reports:
            for third, counts in report.staleness.items():
                ages[third].update(counts)
        steps_s = [report.step_s for report in self.reports]
        return {
            "split": self.split,
            "num_seeds": len(self.reports),
            "step_s_spread": (max(steps_s) - min(steps_s)) / statistics.fmean(steps_s),
            **table,
            "staleness": {third: dict(sorted(counts.items())) for third, counts in ages.items()},
        }


def run(name: str, case: Case, split: float) -> Measured:
    """One run per seed of the case; `split` is the share of accelerators that train."""
    bare = dataclasses.replace(case, seeds=())
    return Measured(split, tuple(_run_once(name, bare, split, seed) for seed in case.seeds))


@functools.lru_cache(maxsize=512)  # tables share runs, and a run always ends alike
def _run_once(name: str, case: Case, split: float, seed: int) -> Report:
    setup = SETUPS[name]
    return simulate(
        setup.make(case.groups_per_step, case.max_staleness),
        layout_of(setup, case, split),
        dataclasses.replace(case.trace, seed=seed),
        case.cost,
        num_steps=case.num_steps,
        warm_up=case.warm_up,
        reuses_cache=setup.reuses_cache,
    )


def run_at_best_split(name: str, case: Case, splits: Sequence[float] = SPLITS) -> Measured:
    """The split that consumes most, tried on the first seed alone; who takes turns has none."""
    if SETUPS[name].placement == "shared":
        return run(name, case, 1.0)
    best = splits[0]
    if len(splits) > 1:
        one = dataclasses.replace(case, seeds=case.seeds[:1])
        tried = [run(name, one, split) for split in splits]
        best = max(tried, key=lambda measured: measured.mean("tokens_per_device_s")).split
    return run(name, case, best)
