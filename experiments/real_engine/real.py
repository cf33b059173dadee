"""Every policy on a real engine and a real trainer: two processes, a core each.

The engine and the orchestrator share one process and one core, the trainer has the other. Response
lengths are those of a seeded trace: the end of sequence is written by no model, and each attempt
stops at its number of tokens. All policies meet the same engine, compiled once, the same decode
shapes, the same problems and batches, and are compared by consumed tokens per second.

On one core the steps of several replicas come one after the other, so whoever hosts two versions
pays for both. DORA gains where a step with few running responses costs nearly as much as a full
one: its replica keeps its slots full over several training steps and runs out once for all of them,
while a synchronous run runs out once per step.
"""

import bisect
import contextlib
import dataclasses
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from experiments.real_engine.regimes import Deployment, Setting, placements
from experiments.real_engine.traced_replicas import TracedReplicas
from experiments.real_engine.trainer_process import ProcessTrainer, TrainerSpec
from loong_jax.data.tokenizer import AsciiTokenizer
from loong_jax.models import moe
from loong_jax.orchestrator.loop import LoopSettings, Orchestrator
from loong_jax.orchestrator.simulation.run import simulated_problem
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.problems.problem import Problem
from loong_jax.problems.verdict import Verdict, correct
from loong_jax.rl import objectives, optimizers
from loong_jax.rl.local_trainer import TrainerSettings
from loong_jax.rl.rewards import Disposition
from loong_jax.rollout.engine_config import EngineSettings
from loong_jax.rollout.paged_engine import engine_for
from loong_jax.rollout.records import Group, SamplingSettings
from loong_jax.rollout.slot_engine import SlotEngine
from loong_jax.rollout.versions import VersionStore


class _Endless(AsciiTokenizer):
    """Its end of sequence is written by no model: the trace says where a response ends."""

    eos_id, end_ids = -1, (-1,)


class Bench:
    """Engine, trainer and what they compiled; `run` once per policy. A context manager."""

    def __init__(self, setting: Setting):
        self.setting = setting
        trace = setting.trace
        if setting.cores is not None:
            os.sched_setaffinity(0, {setting.cores[0]})
        graphdef, weights = moe.init_weights(setting.model, jax.random.key(0))
        shapes = EngineSettings(
            slots_per_replica=setting.slots_per_replica,
            cache_length=setting.cache_length,
            prefill_lengths=setting.prefill_lengths,
            prefill_prompts=4,
            prefill_members=4 * trace.group_size,
            decode_steps=setting.decode_steps,
            narrow_slots=setting.narrow_slots,
        )
        self.engine: SlotEngine = engine_for(graphdef, setting.model, _Endless(), shapes)
        self._weights = weights
        self._trainer = ProcessTrainer(
            TrainerSpec(
                model=setting.model,
                settings=TrainerSettings(
                    objective=objectives.longcat_objective(
                        group_size=trace.group_size, max_response_tokens=trace.cap_tokens
                    ),
                    optimizer=optimizers.AdamW(schedule=optimizers.WarmupConstant(peak=1e-5)),
                    max_staleness=setting.max_staleness,
                    row_length=setting.cache_length,
                    rows=setting.train_rows,
                    score_rows=1,
                ),
                core=None if setting.cores is None else setting.cores[1],
            )
        )

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: Any) -> None:
        self._trainer.close(60.0)

    def run(
        self, placement: Deployment, *, num_steps: int, warm_up: int, trace_seed: int = 0
    ) -> "Record":
        """`warm_up` + `num_steps` training steps under one policy."""
        setting, policy = self.setting, placement.policy
        trace = dataclasses.replace(setting.trace, seed=trace_seed)
        versions = VersionStore(setting.max_staleness + 1)
        self._trainer.begin(versions)
        replicas = TracedReplicas(
            self.engine,
            versions,
            trace=trace,
            sampling=SamplingSettings(max_new_tokens=trace.cap_tokens),
            encode_prompt=self._prompt,
            num_replicas=placement.num_replicas,
            groups_per_replica=placement.groups,
            clock=time.monotonic,
        )
        log = Log()
        orchestrator = Orchestrator(
            name="real",
            settings=LoopSettings(
                num_steps=warm_up + num_steps,
                scheduler=policy,
                checkpoint_every=warm_up + num_steps,
                stall_timeout_s=300.0,
            ),
            trainer=self._trainer,
            replicas=replicas,
            verifiers=InstantVerifiers(),
            tickets=TicketSource(simulated_problem, max_issues=1_000_000),
            versions=versions,
            grade=_grade,
            log=log,
        )
        try:
            orchestrator.run()
        finally:
            replicas.close(60.0)
        return Record(log, replicas, warm_up, self.setting)

    def _prompt(self, problem: Problem) -> np.ndarray:
        """Tokens that differ from problem to problem."""
        random = np.random.default_rng(problem.seed)
        vocab, length = self.setting.model.vocab_size, self.setting.trace.prompt_tokens
        return random.integers(2, vocab, length, np.int32)

    def step_times(self, *, rounds: int = 5) -> list[dict[str, float]]:
        """Seconds of a decode step by how many slots are active, in the shapes of the runs."""
        setting, engine = self.setting, self.engine
        widths = [*setting.narrow_slots, setting.slots_per_replica]
        counts = sorted({1, *setting.narrow_slots, *_halves(setting.slots_per_replica)})
        state = engine.init_decode_state()
        points = []
        for active in counts:
            width = min(w for w in widths if w >= active)
            slots = (
                None if width == setting.slots_per_replica else np.arange(active, dtype=np.int32)
            )
            times = []
            for _ in range(rounds + 1):
                start_s = time.perf_counter()
                state, result = engine.generate(self._weights, state, slots=slots)
                result.convert_to_numpy()
                times.append(time.perf_counter() - start_s)
            step_s = statistics.median(times[1:]) / setting.decode_steps
            points.append({"active_slots": active, "width": width, "step_s": step_s})
        for point in points:
            point["of_a_full_step"] = point["step_s"] / points[-1]["step_s"]
        return points


class InstantVerifiers:
    """Every answer is right at once: the bench is not about verifiers."""

    def submit(self, requests: Sequence[Any]) -> list[Future[Verdict]]:
        futures: list[Future[Verdict]] = []
        for _ in requests:
            future: Future[Verdict] = Future()
            future.set_result(correct())
            futures.append(future)
        return futures

    def close(self, timeout_s: float) -> None:
        del timeout_s


class Log:
    """A run's log in memory: intervals by kind, and one entry per training step."""

    def __init__(self):
        self.events: list[Mapping[str, Any]] = []
        self.steps: list[dict[str, Any]] = []

    def event(self, record: Mapping[str, Any]) -> None:
        self.events.append(record)

    def step(self, step: int, metrics: Mapping[str, Any], groups: Sequence[Group]) -> None:
        del metrics
        train = self.events[-1]  # of this very step, see `Orchestrator._log_step`
        self.steps.append(
            {
                "step": step,
                "start_s": train["start_s"],
                "end_s": train["end_s"],
                "tokens": sum(len(r.tokens) for group in groups for r in group.rollouts),
                "ages": [step - 1 - group.version for group in groups],
                "versions_per_response": max(
                    len(r.versions) for group in groups for r in group.rollouts
                ),
            }
        )

    def judged(self, group: Group, disposition: Disposition) -> None: ...


@dataclasses.dataclass
class Record:
    """What one run did."""

    log: Log
    replicas: TracedReplicas
    warm_up: int
    setting: Setting

    @property
    def window(self) -> tuple[float, float]:
        """Ends of the last step that does not count and of the last one, in clock seconds."""
        return self.log.steps[self.warm_up - 1]["end_s"], self.log.steps[-1]["end_s"]

    def sums(self) -> dict[str, float]:
        """What `figures` adds up over runs: seconds and counts within the window."""
        start_s, end_s = self.window
        blocks = [b for b in self.replicas.blocks if start_s <= b.end_s <= end_s]
        steps = self.log.steps[self.warm_up :]
        training_s = sum(
            min(work_end_s, end_s) - max(work_start_s, start_s)
            for work_start_s, work_end_s in self._trainer_work()
            if start_s < work_end_s <= end_s
        )
        return dict(
            num_steps=len(steps),
            seconds=end_s - start_s,
            consumed_tokens=sum(step["tokens"] for step in steps),
            written_tokens=sum(b.num_tokens for b in blocks),
            training_s=training_s,
            decoding_s=sum(b.end_s - b.start_s for b in blocks),
            blocks=len(blocks),
            active_slots=sum(b.active_slots for b in blocks),
            reprefilled_tokens=self.replicas.statistics()["num_tokens_reprefilled"],
            **self.replicas.update_counts(),
        )

    def block_seconds(self) -> tuple[list[float], list[float]]:
        """Of full slots within the window: blocks while the trainer rests, and while it works."""
        start_s, end_s = self.window
        work = sorted(self._trainer_work())
        starts = [begin_s for begin_s, _ in work]
        apart: list[float] = []
        beside: list[float] = []
        for block in self.replicas.blocks:
            if (
                not start_s <= block.end_s <= end_s
                or block.active_slots < self.setting.slots_per_replica
            ):
                continue
            last = bisect.bisect_right(starts, block.end_s) - 1
            is_beside = last >= 0 and block.start_s < work[last][1]
            (beside if is_beside else apart).append(block.end_s - block.start_s)
        return apart, beside

    def _trainer_work(self) -> list[tuple[float, float]]:
        """When the trainer scored, trained or published."""
        kinds = ("train", "score", "publish")
        return [(e["start_s"], e["end_s"]) for e in self.log.events if e["kind"] in kinds]

    def ages(self) -> Counter[int]:
        return Counter(age for step in self.log.steps[self.warm_up :] for age in step["ages"])


def figures(runs: Sequence[Record]) -> dict[str, Any]:
    """The runs of one policy as one row."""
    parts = [run.sums() for run in runs]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    seconds = total["seconds"]
    apart, beside = zip(*(run.block_seconds() for run in runs), strict=True)
    return {
        "num_steps": total["num_steps"],
        "step_s": seconds / total["num_steps"],
        "consumed_tokens": total["consumed_tokens"],
        "consumed_tokens_per_s": total["consumed_tokens"] / seconds,
        "consumed_tokens_per_s_by_round": [
            part["consumed_tokens"] / part["seconds"] for part in parts
        ],
        "written_tokens": total["written_tokens"],
        "trainer_busy_share": total["training_s"] / seconds,
        "engine_busy_share": total["decoding_s"] / seconds / runs[0].replicas.num_replicas,
        "block_s": _median(apart),
        "block_s_beside_training": _median(beside),
        "mean_active_slots": total["active_slots"] / max(1, total["blocks"]),
        "slots": runs[0].setting.slots_per_replica,
        "staleness": dict(sorted(sum((run.ages() for run in runs), Counter[int]()).items())),
        "versions_per_response": max(
            step["versions_per_response"] for run in runs for step in run.log.steps
        ),
        "reprefilled_tokens": total["reprefilled_tokens"],
        "versions_taken_up": total["versions_taken_up"],
        "drained_slots": total["drained_slots"],
    }


def measure(
    setting: Setting, *, names: Sequence[str] = (), say: Callable[[str], None] = print
) -> tuple[dict[str, Any], dict[str, list[Record]]]:
    """All policies (or `names`) in one setting, as JSON values, and what each run did.

    Runs of one round come one after the other, and rounds do, so that a machine that is busy for
    a while is so for several policies.
    """
    chosen = {n: one for n, one in placements(setting).items() if not names or n in names}
    runs: dict[str, list[Record]] = {name: [] for name in chosen}
    with Bench(setting) as bench:
        bench.run(placements(setting)["sync"], num_steps=1, warm_up=1)  # compiles both sides
        points = bench.step_times()
        load_before = os.getloadavg()[0]
        for turn in range(setting.rounds):
            for name, placement in chosen.items():
                runs[name].append(
                    bench.run(
                        placement,
                        num_steps=setting.num_steps,
                        warm_up=setting.warm_up,
                        trace_seed=setting.trace.seed + turn,
                    )
                )
                row = figures(runs[name][-1:])
                say(
                    f"  round {turn + 1}, {name}: {row['consumed_tokens_per_s']:.0f} consumed "
                    f"tokens/s, trainer busy {row['trainer_busy_share']:.0%}"
                )
    policies = {name: figures(found) for name, found in runs.items()}
    base = policies.get("sync", {}).get("consumed_tokens_per_s")
    for row in policies.values():
        row["speedup_vs_sync"] = row["consumed_tokens_per_s"] / base if base else None
    ours = policies.get("DORA", {})
    return {
        "speedup_vs_sync": ours.get("speedup_vs_sync"),
        "drained_slots": ours.get("drained_slots"),
        "reprefilled_tokens": ours.get("reprefilled_tokens"),
        "step_time_vs_active_slots": points,
        "step_at_one_slot": points[0]["of_a_full_step"],
        "policies": policies,
        "setting": _plain(setting),
        "load_average": [load_before, os.getloadavg()[0]],
        "num_cores": len(setting.cores) if setting.cores else os.cpu_count(),
    }, runs


def two_cores() -> tuple[int, int] | None:
    """Two cores this process may use, or None where there is one alone."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else None


@contextlib.contextmanager
def cores_given_back() -> Iterator[None]:
    """This thread may use the cores it may use now once `Bench` has pinned it to one."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _grade(group: Group) -> tuple[Group, Disposition]:
    """Half of the attempts are rewarded, so that every group trains."""
    rollouts = tuple(dataclasses.replace(r, reward=float(r.attempt % 2)) for r in group.rollouts)
    return group.replace_rollouts(rollouts), "keep"


def _median(lists: Sequence[Sequence[float]]) -> float | None:
    """Of all entries; None where there are none."""
    entries = [entry for part in lists for entry in part]
    return statistics.median(entries) if entries else None


def _halves(number: int) -> list[int]:
    found = [number]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found


def _plain(setting: Setting) -> dict[str, Any]:
    fields = {f.name: getattr(setting, f.name) for f in dataclasses.fields(setting)}
    del fields["model"]
    return fields | {"trace": dataclasses.asdict(setting.trace)}
