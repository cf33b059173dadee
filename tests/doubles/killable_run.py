"""A run small enough to be killed two hundred times: real loop, journal, checkpoints and verifier
processes, with a generator and a trainer that need no model.

`python -m tests.doubles.killable_run DIR` runs it or goes on with it, and prints one line of
JSON at the end. Weights are eight numbers that every trained token changes, so two runs with equal
weights trained the same tokens in the same order.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loong_jax.data import disk
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.orchestrator.protocols import Emit
from loong_jax.orchestrator.tickets import TicketSource
from loong_jax.problems import response
from loong_jax.problems.problem import Problem
from loong_jax.rl import checkpoint, rewards
from loong_jax.rl import events as rl_events
from loong_jax.rollout import records
from loong_jax.rollout.records import Group, Rollout, Ticket
from loong_jax.rollout.reuse import GroupReuse
from loong_jax.rollout.versions import VersionStore
from loong_jax.verifiers.pool import LocalVerifierPool, VerdictFuture, VerifierRequest
from tests.doubles import crash_point
from tests.doubles.fake_world import fake_rollout, made_loop
from tests.doubles.problems import made_problem
from tests.doubles.scoring import scored_as_sampled

NUM_STEPS, GROUP_SIZE, TOKENS = 4, 2, 16
POLICY = DoraPolicy(groups_per_step=2, max_staleness=1, deterministic=True)
REUSE = GroupReuse(share=0.5)  # step 2 trains on the groups of step 1 once more


def problem_at(cursor: int) -> Problem:
    """Answer `cursor`; the generator below is right in half of its attempts."""
    return made_problem(cursor, prompt=f"{cursor}?", gold=str(cursor))


class Workers:
    """ReplicaGroup and TrainerGroup; what is asked of the trainer is done at once, in order."""

    num_replicas, groups_per_replica = 2, 2

    def __init__(self, directory: Path, store: VersionStore):
        self.directory, self.store = directory, store
        self.weights = np.zeros(8)
        self.emit: Emit = lambda event: None

    def start(self, emit: Emit) -> None:
        self.emit = emit

    def assign(self, replica: int, version: int) -> None: ...

    def cancel(self, replica: int, ticket_numbers: Sequence[int]) -> None: ...

    def mend(self, replica: int) -> None: ...

    def cache_pressure(self) -> float:
        return 0.0

    def dispatch(self, replica: int, tickets: Sequence[Ticket], version: int) -> None:
        weights = self.store.get(version)["w"]
        for ticket in tickets:
            _note(self.directory / "generated.jsonl", [ticket.number, version])
            self.emit(records.GroupGenerated(_group(ticket, version, weights)))

    def score(self, groups: Sequence[Group]) -> None:
        self.emit(rl_events.GroupsScored(scored_as_sampled(groups), 0.0, 0.0))

    def train(self, step: int, groups: Sequence[Group]) -> None:
        for group in groups:
            for rollout in group.rollouts:
                change = rollout.tokens.reshape(-1, 8).mean(0) * (rollout.reward or -0.5)
                self.weights = np.tanh(self.weights * 1.1 + change / 100)
        batch = [[group.ticket.key, group.version] for group in groups]
        _note(self.directory / "trained.jsonl", [step, batch])
        self.emit(rl_events.StepTrained(step, {}, 0.0, 0.0))

    def publish(self, version: int) -> None:
        self.store.put(version, {"w": self.weights.copy()})
        self.emit(rl_events.VersionPublished(version, 0.0, 0.0))

    def save(self, step: int, control: Mapping[str, Any]) -> None:
        arrays = {
            "w": self.weights,
            "versions": {v: self.store.get(v) for v in control["versions"]},
            "control": {"record": np.frombuffer(records.encode(control), np.uint8)},
        }
        _kill_when_half_written(self.directory / "checkpoints")
        checkpoint.save(self.directory / "checkpoints", step, arrays, keep=2)
        crash_point.reach("saved")
        self.emit(rl_events.Saved(step, "", 0.0, 0.0))

    def close(self, timeout_s: float) -> None: ...


def _note(path: Path, record: list[Any]) -> None:
    with disk.writing(path), path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def _kill_when_half_written(directory: Path) -> None:
    """At the crash point `half_saved`, the process dies while Orbax writes its first files."""
    if not crash_point.is_here("half_saved"):
        return

    def watch() -> None:
        while not any("tmp" in path.name for path in directory.glob("*")):
            pass
        crash_point.kill()

    threading.Thread(target=watch, daemon=True).start()


def _group(ticket: Ticket, version: int, weights: np.ndarray) -> Group:
    rollouts = tuple(_rollout(ticket, i, version, weights) for i in range(GROUP_SIZE))
    return Group(ticket=ticket, version=version, rollouts=rollouts)


def _rollout(ticket: Ticket, attempt: int, version: int, weights: np.ndarray) -> Rollout:
    seed = int(abs(float(weights.sum())) * 1e6)
    generator = np.random.default_rng([ticket.number, attempt, seed])
    answer = int(ticket.problem.gold or 0) + (attempt + ticket.number) % 2
    return dataclasses.replace(
        fake_rollout(ticket, attempt, version),
        tokens=generator.integers(0, 100, TOKENS).astype(np.int32),
        loss_mask=np.ones(TOKENS, bool),
        engine_logprob=generator.normal(size=TOKENS).astype(np.float32),
        behavior_logprob=None,
        text=response.render_response("counted", str(answer)),
    )


class MortalPool(LocalVerifierPool):
    """At the crash point `verifier_worker` its first worker process is killed at work."""

    def submit(self, requests: Sequence[VerifierRequest]) -> list[VerdictFuture]:
        futures = super().submit(requests)
        if crash_point.is_here("verifier_worker"):
            deadline_s = time.monotonic() + 10.0
            while not self.pids() and time.monotonic() < deadline_s:
                time.sleep(0.001)
            os.kill(self.pids()[0], signal.SIGKILL)
        return futures


class NoLog:
    def event(self, record: Mapping[str, Any]) -> None: ...

    def step(self, step: int, metrics: Mapping[str, Any], groups: Sequence[Group]) -> None: ...

    def judged(self, group: Group, disposition: rewards.Disposition) -> None: ...


def run(directory: Path) -> dict[str, Any]:
    """Runs to the end, or goes on to it; returns weights and counts."""
    directory.mkdir(parents=True, exist_ok=True)
    store = VersionStore(POLICY.max_staleness)
    workers, control = Workers(directory, store), None
    if checkpoint.steps(directory / "checkpoints"):
        found = checkpoint.restore(directory / "checkpoints", fall_back=True)
        workers.weights = found.arrays["w"]
        control = records.decode(found.arrays["control"]["record"].data)
        for version, weights in found.arrays["versions"].items():
            store.put(version, weights)
    else:
        store.put(0, {"w": workers.weights.copy()})
    pool = MortalPool(1)
    settings = dict(scheduler=POLICY, checkpoint_every=2, stall_timeout_s=60.0, reuse=REUSE)
    orchestrator = made_loop(
        settings | {"num_steps": NUM_STEPS},
        trainer=workers,
        replicas=workers,
        verifiers=pool,
        tickets=TicketSource(problem_at),
        versions=store,
        log=NoLog(),
        journal=crash_point.MortalJournal(directory / "journal"),
    )
    try:
        orchestrator.restore(control)
        final = orchestrator.run()
    finally:
        pool.close(timeout_s=10.0)
    return {
        "weights": workers.weights.tobytes().hex(),
        "counts": final.counts(),
        "workers_lost": pool.num_lost,
    }


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]))))
