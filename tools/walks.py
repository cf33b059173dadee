"""Prints what a reader passes from a problem to its gradient: `python tools/walks.py`, two minutes.

A miniature stage of reinforcement learning, in one process and on policy, is watched from the draw
of a step's first problem to the end of the update that it leads to, once everything is compiled:
which files of loong_jax have a function called, on any thread, in the order of the first call, and
which of our types are made. Files that run only while JAX traces a program (the model, the loss)
are a second list, of the whole stage. A file counts if it handles the problem or what became of it;
`APART` names the others that are passed, and why. Verdicts are asked for as in any run and then
replaced by chance, so that a model that has learnt nothing meets groups that teach.
With --functions it names those of each file.
"""

import json
import sys
import tempfile
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rich.console

import loong_jax
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.problems import verdict
from loong_jax.problems.response import FORMS
from loong_jax.recipes import (
    DomainProblems,
    EngineSettings,
    GeneratedProblems,
    LocalVerifiers,
    Recipe,
    RlStage,
    SftStage,
)
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rollout.records import SamplingSettings
from loong_jax.run import run
from loong_jax.verifiers import pool, worker

PACKAGE = Path(loong_jax.__file__).parent
WARM_STEPS = 2  # everything is compiled then
GROUP_SIZE, MAX_NEW_TOKENS = 4, 16

# What the walk leaves out, and what it handles instead: files, folders and single functions.
APART = {
    "checksums.py": "weights",
    "configs.py": "settings",
    "data/disk.py": "the message of a full disk",
    "data/json_files.py": "lines of files",
    "errors.py": "messages",
    "interrupts.py": "signals",
    "orchestrator/faults.py": "how often something failed",
    "process.py:start_logging": "messages",
    "report/": "metrics, and what a run shows",
    "rl/collapse.py": "metrics",
    "rl/objectives/loss.py:summarise": "metrics",
    "rl/policy_model.py:longcat_policy.<locals>.load_metrics": "metrics",
    "rollout/publishing.py": "weights",
    "rollout/records.py:completion_metrics": "metrics",
    "rollout/versions.py": "weights",
    "run/stages.py": "puts the parts together",
    "sharding.py": "where arrays lie, for every room",
    "child.py": "frames of bytes, whatever they hold",
    "verifiers/raised.py": "how often something failed",
}
MESSAGES = (
    "orchestrator.changes",
    "GroupVerified",
    "events",
    "records.BlockDecoded",
    "records.Replica",
    "Mailbox",
)
MESSAGES += ("records.GroupGenerated", "records.GroupsMigrated")
"""Modules whose types are notes about a problem by its number, or carry one of the forms below."""
ARRAYS = ("rollout.programs", "rollout.slots", "moe.attention", "rl.trainer", "rl.objectives")
ARRAYS += ("packing.Predicted",)
"""Modules whose types are what compiled programs take and give: a batch's, not a problem's."""


class Watch:
    """A profile function for all threads."""

    def __init__(self):
        self.passed: dict[str, dict[str, None]] = {}  # files with their functions, in order
        self.traced: dict[str, None] = {}
        self.made: dict[str, None] = {}  # types
        self._is_on = self._is_rl = False
        self._num_steps = 0
        self._files: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code not in self._files:
            inside = code.co_filename.startswith(f"{PACKAGE}/")
            self._files[code] = code.co_filename[len(f"{PACKAGE}/") :] if inside else None
        file = self._files[code]
        if event == "call" and self._is_on and code.co_name in ("__init__", "<lambda>"):
            self._see_made(frame)  # the lambda is a NamedTuple's __new__
        if file is None:
            return
        here = (file, code.co_name)
        if event == "call":
            self._is_rl |= here == ("run/stages.py", "run_rl")
            if here == ("orchestrator/tickets.py", "open") and self._num_steps == WARM_STEPS:
                self._is_on = True
            if self._is_on:
                self.passed.setdefault(file, {})[code.co_qualname] = None
            elif self._is_rl and file not in self.traced and _is_tracing(frame):
                self.traced[file] = None
        elif event == "return" and here == ("rl/trainer.py", "train_step"):
            self._num_steps += 1
            self._is_on = False

    def _see_made(self, frame: FrameType) -> None:
        name = "self" if frame.f_code.co_name == "__init__" else "_cls"
        made = frame.f_locals.get(name)
        kind = made if isinstance(made, type) else type(made)
        if kind.__module__.startswith("loong_jax."):
            self.made[f"{kind.__module__.removeprefix('loong_jax.')}.{kind.__qualname__}"] = None


def _is_tracing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith("jax/_src/interpreters/partial_eval.py"):
            return True
        frame = frame.f_back
    return False


class WatchedWorker(worker.WorkerProcess):
    """Judges in a child process, as any run does, and once more here, where it is seen."""

    def __init__(self, config: worker.WorkerConfig):
        super().__init__(config)
        self._verifiers: dict[str, Any] = {}

    def judge(self, requests: Sequence[bytes], deadlines_s: Sequence[float]) -> list[bytes]:
        super().judge(requests, deadlines_s)
        for request in requests:
            worker.judge(self._verifiers, self._config, json.loads(request))
        return [
            worker.encode(verdict.correct() if zlib.crc32(request) % 2 else verdict.wrong("value"))
            for request in requests
        ]


def smallest() -> Recipe:
    optimizer = AdamW(schedule=WarmupConstant(peak=1e-3))
    return Recipe(
        name="walk",
        model=MoEConfig.tiny(),
        form=FORMS["plain"],
        problems=GeneratedProblems(
            domains={"stem": DomainProblems(environment="vector_sum", levels=(2,))}
        ),
        engine=EngineSettings(
            num_replicas=1, slots_per_replica=16, cache_length=48, prefill_lengths=(32,)
        ),
        verifiers=LocalVerifiers(num_workers=1),
        evaluation=EvaluationSettings(
            num_problems=2, sampling=SamplingSettings(max_new_tokens=MAX_NEW_TOKENS)
        ),
        stages={
            "sft": SftStage(num_steps=1, optimizer=optimizer, rows=2, row_length=128),
            "rl": RlStage(
                after="sft",
                domains=("stem",),
                num_steps=WARM_STEPS + 1,
                scheduler=DoraPolicy(groups_per_step=2, max_staleness=0),
                objective=longcat_objective(
                    group_size=GROUP_SIZE, max_response_tokens=MAX_NEW_TOKENS
                ),
                optimizer=optimizer,
                group_size=GROUP_SIZE,
                sampling=SamplingSettings(max_new_tokens=MAX_NEW_TOKENS),
                rows=4,
                row_length=64,
                checkpoint_every=100,
            ),
        },
    )


def counted(passed: dict[str, dict[str, None]]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Files with those functions that count, and what is apart with its reason."""
    files: dict[str, list[str]] = {}
    apart: dict[str, str] = {}
    for file, functions in passed.items():
        for function in functions:
            here = f"{file}:{function}"
            why = next((why for name, why in APART.items() if here.startswith(name)), None)
            if why is None:
                files.setdefault(file, []).append(function)
            else:
                apart[file] = why
    return files, apart


def show(watch: Watch, *, names_functions: bool) -> None:
    said = rich.console.Console(highlight=False, width=100).print
    passed, apart = counted(watch.passed)
    traced = [f for f in watch.traced if f not in passed and not f.startswith(tuple(APART))]
    for title, files in (
        (f"{len(passed)} files from a problem to its gradient", list(passed)),
        (f"{len(traced)} more while programs are traced", traced),
    ):
        said(f"\n{title}")
        rooms: dict[str, list[str]] = {}
        for file in files:
            room, _, name = file.partition("/")
            rooms.setdefault(room, []).append(name)
        for room, names in rooms.items():
            said(f"  {room} ({len(names)}): {', '.join(names)}")
    said("\napart: " + ", ".join(f"{file} ({why})" for file, why in apart.items()))
    others = {
        kind: [name for name in watch.made if any(m in name for m in modules)]
        for kind, modules in (
            ("arrays of programs", ARRAYS),
            ("messages", MESSAGES),
            ("views of all tickets at once", ("orchestrator.ledger",)),
        )
    }
    grouped = {name for names in others.values() for name in names}
    forms = [name for name in watch.made if name not in grouped]
    said(f"\n{len(forms)} types that a problem takes on the way: {', '.join(forms)}")
    for kind, names in others.items():
        said(f"{len(names)} {kind}: {', '.join(names)}")
    for file, functions in passed.items() if names_functions else ():
        said(f"\n{file}: {', '.join(name for name in functions if '<' not in name)}")


def main() -> None:
    watch = Watch()
    pool.WorkerProcess = WatchedWorker
    threading.setprofile(watch)
    sys.setprofile(watch)
    with tempfile.TemporaryDirectory() as directory:
        run.train(smallest(), Path(directory) / "run")
    sys.setprofile(None)
    show(watch, names_functions="--functions" in sys.argv)


if __name__ == "__main__":
    main()
