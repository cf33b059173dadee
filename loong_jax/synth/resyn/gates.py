"""The mechanical gates: what a module must pass before a judge reads it, each with its reason.

`examine` tries them in order and stops at the first refusal, so that cheap gates spare dear ones
and a later gate may rely on what an earlier one has shown.
"""

import concurrent.futures
import dataclasses
import os
import queue
from collections.abc import Callable, Sequence
from pathlib import Path

from loong_jax.data import json_files
from loong_jax.environments import modules
from loong_jax.environments.modules import Module, ModuleRunner
from loong_jax.sandbox import SandboxLost
from loong_jax.synth.resyn import instance_gates, reward_gates
from loong_jax.synth.resyn.instance_gates import Trial

IN_SANDBOX: dict[str, Callable[[Trial], str]] = {
    "runs": instance_gates.runs,
    "bounded": instance_gates.bounded,
    "varied": instance_gates.varied,
    "split": instance_gates.split,
    "deterministic": instance_gates.deterministic,
    "leak": instance_gates.leak,
    "reference": reward_gates.reference,
    "total": reward_gates.total,
    "constant": reward_gates.constant,
    "junk": reward_gates.junk,
    "lengths": reward_gates.lengths,
    "echo": reward_gates.echo,
    "literals": reward_gates.literals,
    "perturbed": reward_gates.perturbed,
}
GATES = (*modules.SOURCE_RULES, *IN_SANDBOX)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examined:
    """The result of a module: the gate that refused it and why, or measures of an accepted one."""

    gate: str = ""  # "" for none
    detail: str = ""
    levels: tuple[int, ...] = ()
    guess_share: float = 0.0  # of the cases, for the best constant answer
    prompt_chars: tuple[int, ...] = ()  # of the longest question met, by level

    @property
    def is_accepted(self) -> bool:
        return not self.gate


def examine(module: Module, runner: ModuleRunner, second: ModuleRunner) -> Examined:
    """Tries every gate; the two runners must be two interpreters. Raises SandboxLost twice over."""
    for name, check in modules.SOURCE_RULES.items():
        if why := check(module.source):
            return Examined(gate=name, detail=why)
    trial = Trial(module, runner, second)
    for name, gate in IN_SANDBOX.items():
        try:
            why = gate(trial)
        except SandboxLost:  # ours, or a module that sleeps: told apart by a second try
            why = gate(trial)
        if why:
            return Examined(gate=name, detail=why)
    share, _ = reward_gates.guess(trial)
    asked = {level: [c.question for c in trial.cases if c.level == level] for level in trial.levels}
    longest = tuple(max(map(len, questions)) for questions in asked.values())
    return Examined(levels=trial.levels, guess_share=round(share, 4), prompt_chars=longest)


class Examiner:
    """Pairs of sandboxes, and what they found, kept in a directory by the module's hash."""

    def __init__(self, directory: Path, num_pairs: int | None = None):
        self._directory = directory / f"gates-{len(GATES)}"
        count = num_pairs or len(os.sched_getaffinity(0))
        self._pairs: queue.SimpleQueue[tuple[ModuleRunner, ModuleRunner]] = queue.SimpleQueue()
        self._runners = [ModuleRunner() for _ in range(2 * count)]
        for pair in zip(self._runners[::2], self._runners[1::2], strict=True):
            self._pairs.put(pair)
        self._threads = concurrent.futures.ThreadPoolExecutor(count, "examiner")

    @property
    def runner(self) -> ModuleRunner:
        """One of the sandboxes, for other work between examinations."""
        return self._runners[0]

    def examine(self, modules: Sequence[Module]) -> list[Examined]:
        return list(self._threads.map(self._examine, modules))

    def _examine(self, module: Module) -> Examined:
        path = self._directory / f"{module.hash}.json"
        if (known := json_files.read_json(path)) is not None:
            tuples = {name: tuple(known[name]) for name in ("levels", "prompt_chars")}
            return Examined(**known | tuples)
        pair = self._pairs.get()
        try:
            found = examine(module, *pair)
        finally:
            self._pairs.put(pair)
        json_files.write_json(path, dataclasses.asdict(found))
        return found

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for runner in self._runners:
            runner.close()
