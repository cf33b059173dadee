"""`loong bench async`: every scheduling policy on one seeded trace of response lengths.

The real loop and the real policies on a virtual clock. First all policies at 64 accelerators, with
the batches and lengths of arXiv:2604.26256 (Qwen2.5-32B, 512 prompts x 16, 2K in, 30K out, H800);
then DORA over synchronous at many more, with LongCat-Flash's sizes, which is an extrapolation.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from loong_jax import options
from loong_jax.bench import record, schedulers
from loong_jax.bench.schedulers import Case
from loong_jax.errors import ConfigError, refuse_below
from loong_jax.orchestrator.simulation.model import TRACES, CostModel
from loong_jax.run import places

# LongCat-Flash: 560B parameters, 27B active, and a latent cache of 576 numbers in each of 56
# attention blocks (arXiv:2509.01322). A replica spans 128 accelerators (high expert parallelism).
ACCELERATORS_PER_REPLICA = 128
CACHE_TOKEN_BYTES = 576 * 2 * 56.0
MEMORY_BYTES_PER_S = 3.35e12  # of one H800
LARGE_SPLITS = (0.1, 0.25)


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


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench async", arguments)
    places.prepare_files(json=chosen.json)
    measure(
        chosen, say=lambda text: print(text, flush=True), save=record.saver(chosen.json, chosen)
    )
    return 0


def measure(
    chosen: Options, *, say: Callable[[str], None], save: record.Save = lambda _: None
) -> dict[str, Any]:
    """All figures as one JSON object; `say` gets each table as soon as it is there, and `save` all
    figures so far."""
    cost, seeds = CostModel(), tuple(range(chosen.seeds))
    result: dict[str, Any] = {"policies": policies(cost, seeds)}
    say(policies_text(result["policies"]))
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
    say(f"DORA over synchronous at {count:,} accelerators, {groups} groups")
    result["assumptions"] = dataclasses.asdict(large.cost)
    result["by_staleness"] = []
    for bound in chosen.staleness:
        row = compare(dataclasses.replace(large, max_staleness=bound), LARGE_SPLITS)
        result["by_staleness"].append(row)
        say(comparison_text(row))
        save(result)
    return result


def split_at_64(name: str) -> float:
    """Share of 64 accelerators that train, from published shares of time alone.

    Training takes 67 % of a step of one step off (15.4 min: half of them) and 88 % of DORA's
    (12.9 min: five eighths). Others are given DORA's split.
    """
    if schedulers.SETUPS[name].placement == "shared":
        return 1.0
    return 0.5 if name == "one step off" else 0.625


def policies(cost: CostModel, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Every policy at 64 accelerators."""
    given = Case(
        num_accelerators=64, groups_per_step=512, trace=TRACES["dora-32b"], cost=cost, seeds=seeds
    )
    return {
        name: schedulers.run(name, given, split_at_64(name)).to_json() for name in schedulers.SETUPS
    }


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
    sync = schedulers.run("sync", dataclasses.replace(given, max_staleness=0), 1.0)
    dora = schedulers.run_at_best_split("DORA", given, splits)
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
