"""Prints what a reader passes from a problem to its gradient: `python tools/walks.py` (CPU, minutes).

A run of a miniature stage of reinforcement learning, in one process and on policy, is watched from
the draw of a step's first problem to the end of the update that it leads to, once everything is
compiled: which files of loong_jax have a function called, on any thread, in the order of the first
call, and which of our types are made. Files that run only while JAX traces a program (the model,
the loss) stand in a second list, of the whole stage. A file counts if it handles the problem or what
became of it; `APART` names the others that are passed, and why. The verdict of the real verifier is
replaced by chance, so that a model that has learnt nothing meets groups that teach.
"""

import json
import sys
import tempfile
import threading
import zlib
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rich.console

import loong_jax
from loong_jax.data.response import FORMS
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.moe import MoEConfig
from loong_jax.orchestrator.dora import DoraPolicy
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
from loong_jax.verifiers import pool, verdict, worker

PACKAGE = Path(loong_jax.__file__).parent
WARM_STEPS = 2  # everything is compiled then
GROUP_SIZE, MAX_NEW_TOKENS = 4, 16

APART = {
    "checksums.py": "of weights",
    "configs.py": "of settings",
    "errors.py": "messages",
    "interrupts.py": "signals",
    "logs.py": "messages",
    "report/": "metrics and what a run shows",
    "run/": "puts the parts together before a run, and shows it",
    "rl/collapse.py": "reads metrics",
    "rollout/statistics.py": "metrics",
    "rollout/publishing.py": "weights",
    "rollout/versions.py": "weights",
    "sharding.py": "where arrays lie, for every room",
}  # files and folders that the walk leaves out, and what they handle
MESSAGES = ("orchestrator.changes", "events", "host_messages", "mailbox")
"""Modules whose types are notes about a problem by its number, or carry one of the forms below."""


class Watch:
    """A profile function for all threads; `passed` and `traced` are files in order, `made` types."""

    def __init__(self):
        self.passed: dict[str, dict[str, None]] = {}  # and functions of theirs
        self.traced: dict[str, dict[str, None]] = {}
        self.made: dict[str, None] = {}
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
            self._see_made(frame)
        if file is None:
            return
        here = (file, code.co_name)
        if event == "call":
            self._is_rl |= here == ("run/stages.py", "run_rl")
            if here == ("orchestrator/tickets.py", "open") and self._num_steps == WARM_STEPS:
                self._is_on = True
            if self._is_on:
                self.passed.setdefault(file, {})[code.co_name] = None
            elif self._is_rl and (file not in self.traced) and _is_tracing(frame):
                self.traced[file] = {}
        elif event == "return" and here == ("rl/trainer.py", "train_step"):
            self._num_steps += 1
            self._is_on = False

    def _see_made(self, frame: FrameType) -> None:
        name = "self" if frame.f_code.co_name == "__init__" else "_cls"  # that of a NamedTuple
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

    def judge(self, request: bytes, deadline_s: float) -> bytes:
        super().judge(request, deadline_s)
        worker.judge(self._verifiers, self._config, json.loads(request))
        is_correct = zlib.crc32(request) % 2
        return worker.encode(verdict.correct() if is_correct else verdict.wrong("value"))


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
            num_replicas=1, slots_per_replica=16, cache_length=48, prefill_length=32
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


def show(watch: Watch) -> None:
    said = rich.console.Console(highlight=False, width=120).print
    apart = {file: why for file in watch.passed for name, why in APART.items()
             if file.startswith(name)}  # fmt: skip
    passed = [file for file in watch.passed if file not in apart]
    traced = [file for file in watch.traced if not file.startswith(tuple(APART))]
    for title, files in (
        (f"{len(passed)} files from a problem to its gradient", passed),
        ("files passed while programs are traced, too", [f for f in traced if f not in passed]),
    ):
        said(f"\n{title}")
        rooms: dict[str, list[str]] = {}
        for file in files:
            room, _, name = file.partition("/")
            rooms.setdefault(room, []).append(name)
        for room, names in rooms.items():
            said(f"  {room} ({len(names)}): {', '.join(names)}")
    said("\napart")
    for file, why in apart.items():
        said(f"  {file}: {why}")
    forms = [name for name in watch.made if not any(m in name for m in MESSAGES)]
    said(f"\n{len(forms)} types made on the way: {', '.join(forms)}")
    said(f"\nmessages: {', '.join(name for name in watch.made if name not in forms)}")


def main() -> None:
    watch = Watch()
    pool.WorkerProcess = WatchedWorker
    threading.setprofile(watch)
    sys.setprofile(watch)
    with tempfile.TemporaryDirectory() as directory:
        run.train(smallest(), Path(directory) / "run")
    sys.setprofile(None)
    show(watch)
    print(watch.passed)


if __name__ == "__main__":
    main()
