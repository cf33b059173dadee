"""Prints what a reader passes on three walks: `python tools/walks.py`, two minutes.

From a problem to its gradient:

A miniature stage of reinforcement learning, in one process and on policy, is watched from the draw
of a step's first problem to the end of the update that it leads to, once everything is compiled:
which files of loong_jax have a function called, on any thread, in the order of the first call, and
which of our types are made. Files that run only while JAX traces a program (the model, the loss)
are a second list, of the whole stage. A file counts if it handles the problem or what became of it;
`APART` names the others that are passed, and why. Verdicts are asked for as in any run and then
replaced by chance, so that a model that has learnt nothing meets groups that teach.
With --functions it names those of each file.

From a tensor in a file of Hugging Face's to the compiled step: the stage starts from such weights,
and what is called until there is a state to train is listed the same way. From a setting to its
use: the files that read it by its name on the object that the command line has set.
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

import jax
import rich.console

import loong_jax
from loong_jax.eval.evaluation import EvaluationSettings
from loong_jax.models.hf import save_weights_hf
from loong_jax.models.moe import MoEConfig, init_weights
from loong_jax.orchestrator.dora import DoraPolicy
from loong_jax.problems import verdict
from loong_jax.problems.response import FORMS
from loong_jax.recipes import (
    START,
    DomainProblems,
    EngineSettings,
    GeneratedProblems,
    LocalVerifiers,
    Recipe,
    RlStage,
)
from loong_jax.rl.objectives import longcat_objective
from loong_jax.rl.optimizers import AdamW, WarmupConstant
from loong_jax.rollout.records import SamplingSettings
from loong_jax.run import run
from loong_jax.verifiers import pool, worker

PACKAGE = Path(loong_jax.__file__).parent
WARM_STEPS = 2  # everything is compiled then
GROUP_SIZE, MAX_NEW_TOKENS = 4, 16
MODEL = MoEConfig.tiny()

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
APART_FROM_TENSOR = {
    "errors.py": "messages",
    "merge/published.py": "kinds of directories",
    "models/checking.py": "config.json",
    "models/decoder.py": "shapes",
    "models/families.py": "shapes",
    "models/hf/config_json.py": "config.json",
    "models/hf/published.py": "config.json",
    "models/hf/unfinished.py": "kinds of directories",
    "models/hf/writing.py": "the layout that an export keeps",
    "models/moe/balance.py": "state of its own",
    "models/moe/hf.py:_": "config.json",
    "models/moe/hf.py:read_config": "config.json",
    "models/moe/": "shapes",
    "remote.py": "kinds of directories",
    "report/": "metrics, and what a run shows",
    "rl/checkpoint.py": "what an interrupted stage left",
    "rl/optimizers.py": "moments",
    "run/sources.py": "kinds of directories",
    "sharding.py": "where arrays lie, for every room",
}
HANDLES_TENSOR = ("models/moe/hf.py:places",)
SETTINGS = ((EngineSettings, "decode_steps"), (EngineSettings, "slots_per_replica"),
            (DoraPolicy, "max_staleness"))  # fmt: skip
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
        self.loaded: dict[str, dict[str, None]] = {}  # as `passed`, for a tensor
        self.made: dict[str, None] = {}  # types
        self._is_on = self._is_rl = self._is_loading = False
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
            self._is_loading |= here == ("run/stages.py", "weights_of") and not self.loaded
            if self._is_loading:
                self.loaded.setdefault(file, {})[code.co_qualname] = None
            if here == ("orchestrator/tickets.py", "open") and self._num_steps == WARM_STEPS:
                self._is_on = True
            if self._is_on:
                self.passed.setdefault(file, {})[code.co_qualname] = None
            elif self._is_rl and file not in self.traced and _is_tracing(frame):
                self.traced[file] = None
        elif event == "return" and here == ("rl/trainer.py", "initial_state"):
            self._is_loading = False
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


def watch_reads() -> dict[str, dict[str, None]]:
    """By name of a setting the files that read it, to be filled as they do."""
    readers: dict[str, dict[str, None]] = {name: {} for _, name in SETTINGS}

    def read(settings: Any, asked: str) -> Any:
        file = sys._getframe(1).f_code.co_filename
        if asked in readers and file.startswith(f"{PACKAGE}/"):
            readers[asked][file[len(f"{PACKAGE}/") :]] = None
        return object.__getattribute__(settings, asked)

    for kind, _ in SETTINGS:
        setattr(kind, "__getattribute__", read)  # noqa: B010 - pyright knows its type
    return readers


def smallest(start_from: Path) -> Recipe:
    optimizer = AdamW(schedule=WarmupConstant(peak=1e-3))
    return Recipe(
        name="walk",
        model=MODEL,
        start_from=start_from,
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
            "rl": RlStage(
                after=START,
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


def counted(
    passed: dict[str, dict[str, None]], reasons: dict[str, str] = APART
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Files with those functions that count, and what is apart with its reason."""
    files: dict[str, list[str]] = {}
    apart: dict[str, str] = {}
    for file, functions in passed.items():
        for function in functions:
            here = f"{file}:{function}"
            why = next((why for name, why in reasons.items() if here.startswith(name)), None)
            why = None if here in HANDLES_TENSOR else why
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
    loaded, apart = counted(watch.loaded, APART_FROM_TENSOR)
    said(f"\n{len(loaded)} files from a tensor in a file to the state that a step trains")
    said(f"  {', '.join(loaded)}")
    said("apart: " + ", ".join(f"{file} ({why})" for file, why in apart.items()))
    for file, functions in passed.items() if names_functions else ():
        said(f"\n{file}: {', '.join(name for name in functions if '<' not in name)}")


def main() -> None:
    watch = Watch()
    pool.WorkerProcess = WatchedWorker
    threading.setprofile(watch)
    readers = watch_reads()
    with tempfile.TemporaryDirectory() as directory:
        save_weights_hf(MODEL, init_weights(MODEL, jax.random.key(0))[1], Path(directory) / "model")
        sys.setprofile(watch)
        run.train(smallest(Path(directory) / "model"), Path(directory) / "run")
        sys.setprofile(None)
    show(watch, names_functions="--functions" in sys.argv)
    for name, files in readers.items():
        print(f"\n{name} is read in {len(files)} files: {', '.join(files)}")


if __name__ == "__main__":
    main()
