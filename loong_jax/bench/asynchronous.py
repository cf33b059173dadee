"""`loong bench async`: every scheduling policy on one seeded trace of response lengths.

The real loop and the real policies on a virtual clock. First all policies at 64 accelerators, with
the batches and lengths of arXiv:2604.26256 (Qwen2.5-32B, 512 prompts x 16, 2K in, 30K out, H800);
then DORA over synchronous at many more, with LongCat-Flash's sizes, which is an extrapolation.
"""

import collections
import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from loong_jax.bench import Report, Save
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.orchestrator import baselines, dora
from loong_jax.orchestrator.protocols import Policy
from loong_jax.orchestrator.simulation.model import TRACES, CostModel, LengthTrace
from loong_jax.orchestrator.simulation.run import Report as Simulated
from loong_jax.orchestrator.simulation.run import simulate
from loong_jax.orchestrator.simulation.world import Layout

# LongCat-Flash: 560B parameters, 27B active, and a latent cache of 576 numbers in each of 56
# attention blocks (arXiv:2509.01322). A replica spans 128 accelerators (high expert parallelism).
ACCELERATORS_PER_REPLICA = 128
CACHE_TOKEN_BYTES = 576 * 2 * 56.0
MEMORY_BYTES_PER_S = 3.35e12  # of one H800
LARGE_SPLITS = (0.1, 0.25)

Sharing = Literal["shared", "split", "elastic"]


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
    reports: tuple[Simulated, ...]

    def mean(self, field: str) -> float:
        return statistics.fmean(getattr(report, field) for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """Means over seeds, ages added up, and how far step times of the seeds lie apart."""
        table: dict[str, Any] = {
            field.name: self.mean(field.name)
            for field in dataclasses.fields(Simulated)
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
def _run_once(name: str, case: Case, split: float, seed: int) -> Simulated:
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


def run_at_best_split(name: str, case: Case, splits: Sequence[float]) -> Measured:
    """The split that consumes most, tried on the first seed alone."""
    one = dataclasses.replace(case, seeds=case.seeds[:1])
    tried = [run(name, one, split) for split in splits]
    best = max(tried, key=lambda measured: measured.mean("tokens_per_device_s"))
    return run(name, case, best.split)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Compares DORA with other schedulers: the real loop and policies on a virtual clock.

    All policies at 64 accelerators, then DORA over synchronous at --num-accelerators for each bound
    of --staleness.
    Example: loong bench async --json async.json
    """

    json: Path | None = None  # all figures
    # of the extrapolation
    num_accelerators: Annotated[int, tyro.conf.arg(aliases=["--accelerators"])] = 10_240
    groups_per_step: Annotated[int, tyro.conf.arg(aliases=["--groups"])] = 512  # there
    staleness: tuple[int, ...] = (1, 2, 3, 4)  # bounds, there
    seeds: int = 1  # of the trace; figures are means over them, and with two there is a spread

    def __post_init__(self):
        refuse_below(self, 1, "seeds", "groups_per_step")
        if self.num_accelerators < 2 * ACCELERATORS_PER_REPLICA:
            raise ConfigError(
                f"num_accelerators={self.num_accelerators} are fewer than two replicas of "
                f"{ACCELERATORS_PER_REPLICA}. Raise it."
            )
        if not self.staleness or min(self.staleness) < 0:
            raise ConfigError(
                f"staleness={self.staleness} must name bounds of 0 or more steps. Name one or more."
            )


def measure(
    chosen: Options, *, report: Report = print, save: Save = lambda _: None
) -> dict[str, Any]:
    """All figures as one JSON object; each table is reported as soon as it is there."""
    cost, seeds = CostModel(), tuple(range(chosen.seeds))
    result: dict[str, Any] = {"policies": policies(cost, seeds)}
    report(policies_text(result["policies"]))
    save(result)
    large = Case(
        num_accelerators=chosen.num_accelerators,
        groups_per_step=chosen.groups_per_step,
        trace=TRACES["dora-prod"],
        cost=large_model(cost),
        accelerators_per_replica=ACCELERATORS_PER_REPLICA,
        num_steps=10,
        warm_up=8,
        seeds=seeds,
    )
    count, groups = chosen.num_accelerators, chosen.groups_per_step
    report(f"DORA over synchronous at {count:,} accelerators, {groups} groups")
    result["assumptions"] = dataclasses.asdict(large.cost)
    result["by_staleness"] = []
    for bound in chosen.staleness:
        row = compare(dataclasses.replace(large, max_staleness=bound), LARGE_SPLITS)
        result["by_staleness"].append(row)
        report(comparison_text(row))
        save(result)
    return result


def split_at_64(name: str) -> float:
    """Share of 64 accelerators that train, from published shares of time alone.

    Training takes 67 % of a step of one step off (15.4 min: half of them) and 88 % of DORA's
    (12.9 min: five eighths). Others are given DORA's split.
    """
    if SETUPS[name].placement == "shared":
        return 1.0
    return 0.5 if name == "one step off" else 0.625


def policies(cost: CostModel, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Every policy at 64 accelerators."""
    given = Case(
        num_accelerators=64, groups_per_step=512, trace=TRACES["dora-32b"], cost=cost, seeds=seeds
    )
    return {name: run(name, given, split_at_64(name)).to_json() for name in SETUPS}


def large_model(cost: CostModel, width: int = ACCELERATORS_PER_REPLICA) -> CostModel:
    """The cost model of 27B active of 560B parameters on `width` accelerators, from 32B on four.

    A step of one slot and the training of one token on one device keep their seconds, since about
    as many parameters are active; what is done per slot and per prompt token is spread over more
    accelerators; caches are as large as the architecture makes them.
    """
    return dataclasses.replace(
        cost,
        decode_slot_s=cost.decode_slot_s * 4 / width,
        prefill_token_s=cost.prefill_token_s * 4 / width,
        decode_context_s=CACHE_TOKEN_BYTES / (width * MEMORY_BYTES_PER_S),
        cache_token_bytes=CACHE_TOKEN_BYTES,
        cache_capacity_tokens=1e8,
        weight_bytes=1.12e12,
        publish_s=23.7,  # verl's figure for 235B
    )


def compare(given: Case, splits: tuple[float, ...]) -> dict[str, Any]:
    """DORA over synchronous; batches, staleness bound and trace are equal.

    The ratio is one of consumed tokens per device-second, since the measured steps of the two need
    not hold the same problems. That of step times is given beside it.
    """
    # It knows no staleness, so one run of it serves every bound.
    sync = run("sync", dataclasses.replace(given, max_staleness=0), 1.0)
    dora = run_at_best_split("DORA", given, splits)
    ratios = [
        theirs.tokens_per_device_s / ours.tokens_per_device_s
        for ours, theirs in zip(sync.reports, dora.reports, strict=True)
    ]
    return {
        "max_staleness": given.max_staleness,
        "sync_step_s": sync.mean("step_s"),
        "dora_step_s": dora.mean("step_s"),
        "sync_tokens_per_step": sync.mean("tokens_per_step"),
        "dora_tokens_per_step": dora.mean("tokens_per_step"),
        "speedup_vs_sync": statistics.fmean(ratios),
        "speedup_least": min(ratios),
        "speedup_most": max(ratios),
        "speedup_in_steps": sync.mean("step_s") / dora.mean("step_s"),
        "split": dora.split,
    }


def policies_text(result: Mapping[str, Any]) -> str:
    sync = result["sync"]["step_s"]
    head = ("step min", "vs sync", "tok/dev/s", "idle", "wasted", "prefilled", "KS", "lost")
    lines = ["All policies, 64 accelerators, equal batches and lengths"]
    lines.append(f"{'':28}" + "".join(f"{title:>11}" for title in head))
    for name, row in result.items():
        cells = (
            f"{row['step_s'] / 60:.2f}",
            f"{sync / row['step_s']:.2f}x",
            f"{row['tokens_per_device_s']:.0f}",
            f"{row['idle_share']:.0%}",
            f"{row['tokens_wasted_share']:.0%}",
            f"{row['tokens_reprefilled_per_step'] / 1e6:.2f}M",
            f"{row['ks_trained_vs_written']:.3f}",
            f"{row['problems_never_trained']}",
        )
        lines.append(f"{name:28}" + "".join(f"{cell:>11}" for cell in cells))
    noise = max(row["ks_noise"] for row in result.values())
    lines.append(f"KS below {noise:.3f} cannot be told from a fair sample; lost: problems dropped")
    return "\n".join(lines)


def comparison_text(row: Mapping[str, Any]) -> str:
    return (
        f"  S = {row['max_staleness']}: {row['speedup_vs_sync']:5.2f}x in tokens per device-second "
        f"({row['speedup_least']:.2f}-{row['speedup_most']:.2f}); steps {row['sync_step_s']:.0f} s "
        f"and {row['dora_step_s']:.0f} s, {row['speedup_in_steps']:.2f}x; trains on "
        f"{row['split']:.0%}"
    )
