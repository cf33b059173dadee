"""One simulated run, and what it is judged by."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from loong_jax.errors import ConfigError
from loong_jax.orchestrator.loop import LoopSettings, Orchestrator
from loong_jax.orchestrator.protocols import Policy
from loong_jax.orchestrator.simulation.model import CostModel, LengthTrace
from loong_jax.orchestrator.simulation.world import Layout, SimulatedWorld, problem_number
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.problems.problem import Problem
from loong_jax.rollout.records import Group

REFERENCE_PROBLEMS = 2000  # whose lengths stand for what the policy writes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Means over the measured steps of one run; seconds are virtual."""

    step_s: float
    drift: float  # second half of the measured steps over the first half, less 1
    trainer_idle_share: float  # of time: only generation goes on
    idle_share: float  # of device time: neither decodes, prefills, scores nor trains
    tokens_per_device_s: float  # response tokens that a step consumed
    tokens_per_step: float
    mean_active_slots: float  # of one replica that decodes
    tokens_wasted_share: float  # written and never trained on, over consumed
    tokens_reprefilled_per_step: float
    tokens_moved_per_step: float
    cache_bytes_per_step: float
    weight_bytes_per_step: float
    staleness: dict[str, dict[int, int]]  # easy, medium, hard -> groups by age in steps
    ks_trained_vs_written: float  # the distance of Kolmogorov and Smirnov
    ks_noise: float  # 95 % of samples as large as this one, drawn fairly, stay below
    problems_never_trained: int  # dropped for good
    problems_put_back: int  # waiting for another issue at the end
    num_steps: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class QuietLog:
    """A run's log that keeps nothing."""

    def event(self, record: Mapping[str, Any]) -> None: ...

    def step(self, step: int, metrics: Mapping[str, Any], groups: Any) -> None: ...

    def judged(self, group: Group, disposition: Any) -> None: ...


class CountedVersions:
    """A version store without weights: every published version exists until it is retired."""

    def __init__(self):
        self.hosted: set[int] = set()

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.hosted)

    def retire(self, version: int) -> bool:
        self.hosted.discard(version)
        return True

    def checksum(self, version: int) -> str:
        return ""


def simulated_problem(cursor: int) -> Problem:
    return Problem(
        uid=f"simulated/{cursor}",
        domain="stem",
        environment="simulated",
        level=1,
        seed=cursor,
        canonical=str(cursor),
        prompt="",
        verifier="simulated",
    )


def orchestrator_for(
    world: SimulatedWorld, policy: Policy, num_steps: int, **more: Any
) -> Orchestrator:
    """The real loop and ledger around a simulated world; `more` are fields of `LoopSettings`."""
    return Orchestrator(
        name="simulated",
        settings=LoopSettings(
            num_steps=num_steps,
            scheduler=policy,
            checkpoint_every=num_steps,
            stall_timeout_s=1e7,
            **more,
        ),
        trainer=world,
        replicas=world,
        verifiers=world,
        tickets=TicketSource(simulated_problem, max_issues=1_000_000),
        versions=CountedVersions(),
        grade=lambda group: (group, "keep"),
        log=QuietLog(),
        clock=world.clock,
        events=world,
    )


def simulate(
    policy: Policy,
    layout: Layout,
    trace: LengthTrace,
    cost: CostModel,
    *,
    num_steps: int = 5,
    warm_up: int = 4,
    reuses_cache: bool = True,
) -> Report:
    """Runs `warm_up` + `num_steps` steps on a virtual clock and reports on the latter."""
    if num_steps < 1 or warm_up < 1:
        raise ConfigError(
            f"num_steps={num_steps} and warm_up={warm_up} must be at least 1. Raise them."
        )
    world = SimulatedWorld(layout=layout, trace=trace, cost=cost, reuses_cache=reuses_cache)
    run = orchestrator_for(world, policy, warm_up + num_steps)
    run.run()
    return _report(world, run, warm_up, num_steps)


def _report(world: SimulatedWorld, run: Orchestrator, warm_up: int, num_steps: int) -> Report:
    first, last = world.marks[warm_up - 1], world.marks[-1]

    def grown(key: str) -> float:
        return last.get(key, 0.0) - first.get(key, 0.0)

    seconds = grown("at_s")
    device_s = seconds * world.layout.num_accelerators
    tokens = sum(mark["tokens"] for mark in world.marks[warm_up:])
    trained = [
        (step - 1 - group.version, problem_number(group.ticket), group.ticket.issue)
        for _, step, groups in world.trained[warm_up:]
        for group in groups
    ]
    lengths = np.concatenate([world.trace.lengths(k, issue) for _, k, issue in trained])
    reference = np.concatenate([world.trace.lengths(k) for k in range(REFERENCE_PROBLEMS)])
    effective = len(trained) * REFERENCE_PROBLEMS / (len(trained) + REFERENCE_PROBLEMS)
    snapshot = run.ledger.source.snapshot()
    ever_trained = {
        problem_number(group.ticket) for _, _, groups in world.trained for group in groups
    }
    waiting = {p["seed"] for key in ("again", "deferred") for p, _, _ in snapshot[key]}
    in_flight = {problem_number(ticket) for ticket in run.cancelled_at_end}
    lost = set(range(snapshot["cursor"])) - ever_trained - waiting - in_flight
    distance: Any = stats.ks_2samp(lengths, reference, method="asymp")
    decoding_s = grown("slot_s")
    busy_s = grown("busy_device_s") - grown("trainer_device_ms") / 1e3
    replica_busy_s = max(1e-9, busy_s / world.layout.accelerators_per_replica)
    return Report(
        step_s=seconds / num_steps,
        drift=_drift([mark["at_s"] for mark in world.marks[warm_up - 1 :]]),
        trainer_idle_share=1 - grown("trainer_ms") / 1e3 / seconds,
        idle_share=max(0.0, 1 - grown("busy_device_s") / device_s),
        tokens_per_device_s=tokens / device_s,
        tokens_per_step=tokens / num_steps,
        mean_active_slots=decoding_s / replica_busy_s,
        tokens_wasted_share=grown("tokens_wasted") / tokens,
        tokens_reprefilled_per_step=grown("tokens_reprefilled") / num_steps,
        tokens_moved_per_step=grown("tokens_moved") / num_steps,
        cache_bytes_per_step=grown("tokens_moved") * world.cost.cache_token_bytes / num_steps,
        weight_bytes_per_step=grown("weight_bytes") / num_steps,
        staleness=_by_difficulty(trained, world.trace),
        ks_trained_vs_written=float(distance.statistic),
        # Responses of one problem are correlated, so problems are what counts as a draw.
        ks_noise=1.36 / math.sqrt(effective),
        problems_never_trained=len(lost),
        problems_put_back=len(waiting),
        num_steps=num_steps,
    )


def _drift(ends_s: list[float]) -> float:
    """The drift of the time between steps, second half over first; 0 where there are too few."""
    half = (len(ends_s) - 1) // 2
    if not half:
        return 0.0
    return (ends_s[-1] - ends_s[-1 - half]) / (ends_s[half] - ends_s[0]) - 1


def _by_difficulty(
    trained: list[tuple[int, int, int]], trace: LengthTrace
) -> dict[str, dict[int, int]]:
    """Age in steps, apart for the easiest, middle and hardest third of all problems."""
    table: dict[str, dict[int, int]] = {"easy": {}, "medium": {}, "hard": {}}
    for age, problem, _ in trained:
        z = trace.difficulty(problem)
        third = "easy" if z < -0.4307 else "hard" if z > 0.4307 else "medium"
        table[third][age] = table[third].get(age, 0) + 1
    return {third: dict(sorted(ages.items())) for third, ages in table.items()}
