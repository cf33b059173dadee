"""`loong bench async`: every scheduling policy on one seeded trace of response lengths."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loong_jax import options
from loong_jax.bench import record
from loong_jax.bench.rollouts import agreement, calibration, figures, scale, setups, tables
from loong_jax.errors import ConfigError
from loong_jax.launch import places
from loong_jax.orchestrator.simulation.cost import CostModel

MOST_ACCELERATORS = 200_000  # of an extrapolation that is made unasked
GOAL = 3.0  # times synchronous, at the largest scales
PARTS = ("simulated", "sleep", "real_engine")
REGIMES = ("generation_bound", "trainer_bound", "narrow_shapes")  # of `rollouts.regimes`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Compares DORA with other schedulers: the real loop and policies on a virtual clock.

    `simulated`: the simulator against a published table, whose 64-accelerator column alone four
    numbers were fitted to; all policies at one size; DORA over synchronous at larger ones.
    `sleep`: threads that sleep instead of decoding, to check the virtual clock against the real.
    `real_engine`: a real engine and a real trainer, two processes on a core each; minutes each of
    its regimes.
    Example: loong bench async --json async.json --chart async.png
    """

    json: Path | None = None  # all figures
    chart: Path | None = None  # the same as a PNG
    timeline: Path | None = None  # of real_engine: who decoded which version when, as a PNG
    parts: str = "simulated"  # comma-separated
    regimes: str = "generation_bound,narrow_shapes"  # of real_engine; trainer_bound too
    accelerators: int = 10_240  # of the extrapolation
    large_batch: int = 1024  # groups per step where the batch is scaled; 512 otherwise
    staleness: tuple[int, ...] = (1, 2, 3, 4)  # bounds of the extrapolation
    seeds: int = 1  # of the trace; figures are means over them, and with two there is a spread
    sensitivity: bool = False  # also move every assumption; takes several minutes more
    fit: bool = False  # fit the free parameters anew first; takes several minutes more

    def __post_init__(self):
        unknown = set(self.chosen_parts) - set(PARTS)
        if unknown or not self.chosen_parts:
            raise ConfigError(f"parts={self.parts!r} must name some of {', '.join(PARTS)}.")
        unknown = set(self.chosen_regimes) - set(REGIMES)
        if unknown or not self.chosen_regimes:
            raise ConfigError(f"regimes={self.regimes!r} must name some of {', '.join(REGIMES)}.")
        if self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds} must be at least 1: nothing is run otherwise.")
        if self.accelerators < 2 * scale.ACCELERATORS_PER_REPLICA:
            raise ConfigError(
                f"accelerators={self.accelerators} are fewer than two replicas of "
                f"{scale.ACCELERATORS_PER_REPLICA}. Raise it."
            )

        if not self.staleness or min(self.staleness) < 0:
            raise ConfigError(
                f"staleness={self.staleness} must name bounds of 0 or more steps. Name one or more."
            )
        if self.large_batch < 1:
            raise ConfigError(f"large_batch={self.large_batch} must be at least 1. Raise it.")

    @property
    def chosen_parts(self) -> tuple[str, ...]:
        return _names(self.parts)

    @property
    def chosen_regimes(self) -> tuple[str, ...]:
        return _names(self.regimes)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(Options, "loong bench async", arguments)
    places.prepare_files(json=chosen.json, chart=chosen.chart, timeline=chosen.timeline)
    started_s = time.perf_counter()
    save = record.saver(chosen.json, chosen)
    result = measure(chosen, say=lambda text: print(text, flush=True), save=save)
    result["wall_s"] = time.perf_counter() - started_s
    save(result)
    if chosen.chart is not None and "simulated" in result:
        chosen.chart.write_bytes(figures.png(result))
    return 0


def measure(
    chosen: Options, *, say: Callable[[str], None], save: record.Save = lambda _: None
) -> dict[str, Any]:
    """All figures as one JSON object; `say` gets each table as soon as it is there, and `save` all
    figures so far."""
    result: dict[str, Any] = {}
    if "sleep" in chosen.chosen_parts:
        result["sleep"] = {name: agreement.measure(name) for name in agreement.POLICIES}
        say(tables.sleep(result["sleep"]))
        save(result)
    if "real_engine" in chosen.chosen_parts:
        result["real_engine"] = _real_engine(chosen, say)
        save(result)
    if "simulated" not in chosen.chosen_parts:
        return result
    seeds = tuple(range(chosen.seeds))
    cost = calibration.fit(CostModel(), say=say) if chosen.fit else CostModel()
    result["calibration"] = calibration.check(cost, seeds)
    say(tables.calibration(result["calibration"]))
    save(result)
    result["policies"] = policies(cost, seeds)
    say(tables.policies(result["policies"]))
    save(result)
    result["simulated"] = extrapolate(chosen, cost, seeds)
    say(tables.simulated(result["simulated"]))
    return result


def _real_engine(chosen: Options, say: Callable[[str], None]) -> dict[str, Any]:
    from loong_jax.bench.rollouts import real, real_process, regimes

    made = real_process.measure(
        {
            name: dataclasses.replace(regimes.REGIMES[name], cores=real.two_cores())
            for name in chosen.chosen_regimes
        },
        say=say,
    )
    say(tables.real_engine(made.result))
    if chosen.timeline is not None:
        chosen.timeline.write_bytes(made.picture)
    return made.result


def policies(cost: CostModel, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Every policy at 64 accelerators on the trace of the calibration."""
    given = calibration.case(64, cost, seeds)
    return {
        name: setups.run(name, given, calibration.split_at_64(name)).to_json()
        for name in setups.SETUPS
    }


def _larger(chosen: Options) -> list[dict[str, Any]]:
    """A larger batch, and ten times the accelerators as far as there are so many anywhere."""
    changes: list[dict[str, Any]] = [{"groups_per_step": chosen.large_batch}]
    if 10 * chosen.accelerators <= MOST_ACCELERATORS:
        changes.append({"num_accelerators": 10 * chosen.accelerators})
    return changes


def headline(by_staleness: list[dict[str, Any]]) -> dict[str, Any]:
    """The smallest bound at which DORA is GOAL times synchronous, else the fastest."""
    reached = [row for row in by_staleness if row["speedup_vs_sync"] >= GOAL]
    if reached:
        return min(reached, key=lambda row: row["max_staleness"])
    return max(by_staleness, key=lambda row: row["speedup_vs_sync"])


def extrapolate(chosen: Options, cost: CostModel, seeds: tuple[int, ...]) -> dict[str, Any]:
    def case(**changes: Any) -> setups.Case:
        return scale.case(
            **({"num_accelerators": chosen.accelerators, "seeds": seeds} | changes), cost=cost
        )

    by_staleness = [scale.compare(case(max_staleness=bound)) for bound in chosen.staleness]
    base = headline(by_staleness)
    bounds = {min(2, base["max_staleness"]), base["max_staleness"]}
    simulated: dict[str, Any] = {
        **base,
        "assumptions": dataclasses.asdict(case().cost)
        | {"accelerators_per_replica": scale.ACCELERATORS_PER_REPLICA, "trace": "dora-prod"},
        "by_staleness": by_staleness,
        "larger": [
            scale.compare(case(max_staleness=bound, **changes), (base["split"],))
            for changes in _larger(chosen)
            for bound in sorted(bounds)
        ],
        "break_even": scale.break_even(cost),
    }
    if chosen.sensitivity:
        simulated["sensitivity"] = scale.sensitivity(case(), base["split"])
    return simulated
