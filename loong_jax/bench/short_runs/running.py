"""The runs of a bench: each in a process on a core of its own, each result in a file.

    WORK_DIR/cold_start/          the run whose first stage all others begin with
    WORK_DIR/runs/KEY/            a run that is under way, to be gone on with after a kill
    WORK_DIR/results/KEY.json     one that has ended; it is not run again

The key is made of everything a run depends on, so a change of settings makes new runs.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Protocol

from loong_jax import configs
from loong_jax.bench.short_runs import child
from loong_jax.data import json_files
from loong_jax.errors import CheckpointError, ConfigError, LoongError
from loong_jax.orchestrator.pipeline import is_done
from loong_jax.rollout.process_hosts import SINGLE_THREADED

FORMAT_VERSION = 1
COLD_START = "sft"  # the stage that all runs begin with
COLD_START_S = 3600.0  # at most, for the stage that all runs begin with
Say = Callable[[str], None]


class Run(Protocol):
    """One training run: what is trained, and what is to be known of it afterwards."""

    @property
    def label(self) -> str:
        """For people."""
        ...

    @property
    def key(self) -> str:
        """Equal for runs that are the same: made by `key_of`."""
        ...

    @property
    def recipe(self) -> Any: ...

    @property
    def stage(self) -> str:
        """The one stage of the recipe that is run; those before it are taken from the source."""
        ...

    @property
    def about(self) -> Mapping[str, Any]:
        """What its result says of its settings, as JSON values."""
        ...

    def read(self, directory: Path) -> dict[str, Any]:
        """What came of the finished run in a directory; `pass@1` is among it."""
        ...


def key_of(*parts: Any) -> str:
    """Sixteen hex digits for everything that a run depends on, given as JSON values."""
    texts = (part if isinstance(part, str) else json.dumps(part, sort_keys=True) for part in parts)
    record = " ".join(texts)
    return hashlib.sha256(f"{FORMAT_VERSION} {record}".encode()).hexdigest()[:16]


class RunFailed(LoongError):
    """A run ended without a result; the message is its reason."""


class WorkDir:
    """Where a bench keeps what it has; see the module."""

    def __init__(self, path: Path, source: Path | None):
        self.path = path.absolute()
        source = None if source is None else source.absolute()
        known = json_files.read_json(self.path / "source.json", {"source": None})["source"]
        if self.finished() and known != (None if source is None else str(source)):
            raise ConfigError(
                f"the results in {path} are of runs that began with {known or 'its own cold start'}"
                f", and --from is {source}. Give the same, or another --work-dir."
            )
        json_files.write_json(
            self.path / "source.json", {"source": None if source is None else str(source)}
        )
        self.source = source or self.path / "cold_start"

    def finished(self) -> list[str]:
        """Keys of the runs that have a result."""
        return sorted(path.stem for path in (self.path / "results").glob("*.json"))

    def result(self, run: Run) -> dict[str, Any] | None:
        return json_files.read_json(self.path / "results" / f"{run.key}.json", None)

    def keep(self, run: Run, result: Mapping[str, Any]) -> None:
        json_files.write_json(self.path / "results" / f"{run.key}.json", result)
        shutil.rmtree(self.run_dir(run), ignore_errors=True)

    def run_dir(self, run: Run) -> Path:
        return self.path / "runs" / run.key


def make_cold_start(work: WorkDir, recipe: Any, *, say: Say) -> None:
    """Trains the stage that all runs begin with, unless it is there. CheckpointError without it."""
    if is_done(work.source, COLD_START):
        return
    if work.source != work.path / "cold_start":
        raise CheckpointError(
            f"{work.source} has no finished stage {COLD_START} to begin with. Name a run that has "
            "one with --from, or leave it out and the bench trains its own."
        )
    say("training the cold start, once")
    _live(
        child.Task(
            recipe=configs.to_json(recipe),
            stage=COLD_START,
            run_dir=str(work.source),
            source=None,
            core=None,
            parent=os.getpid(),
        ),
        work.source,
        COLD_START_S,
        {},
        threading.Event(),
    )


def run_all(
    work: WorkDir, runs: Sequence[Run], *, jobs: int, timeout_s: float, say: Say
) -> dict[str, dict[str, Any]]:
    """By key: the result of each run, of this process or an earlier one, or {"error": reason}."""
    found = {run.key: known for run in runs if (known := work.result(run)) is not None}
    missing = [run for run in runs if run.key not in found]
    if found:
        say(f"{len(found)} of {len(runs)} runs have their result already")
    cores: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for core in _cores(jobs):
        cores.put(core)

    stopping = threading.Event()

    def one(run: Run) -> dict[str, Any]:
        core = cores.get()
        try:
            return _run(work, run, core, timeout_s, stopping)
        except RunFailed as error:
            return {"error": str(error)}
        except Exception as error:  # a run without figures is a row, not the end of the bench
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            cores.put(core)

    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(one, run): run for run in missing}
        try:
            for future in as_completed(futures):
                run = futures[future]
                found[run.key] = future.result()
                say(f"[{len(found)}/{len(runs)}] {run.label}: {_shown(found[run.key])}")
        except BaseException:
            stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _shown(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"failed, {result['error']}"
    return (
        f"pass@1 {100 * result['pass@1']:.1f} %, {result['cpu_s']:.0f} s of CPU, "
        f"{result['wall_s']:.0f} s"
    )


def _cores(jobs: int) -> list[int | None]:
    """One core for each job; None, for anywhere, where there are fewer cores or no such thing."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * jobs
    mine = sorted(os.sched_getaffinity(0))
    return list(mine[:jobs]) if len(mine) >= jobs else [None] * jobs


def _run(
    work: WorkDir, run: Run, core: int | None, timeout_s: float, stopping: threading.Event
) -> dict[str, Any]:
    directory = work.run_dir(run)
    task = child.Task(
        recipe=configs.to_json(run.recipe),
        stage=run.stage,
        run_dir=str(directory),
        source=str(work.source),
        core=core,
        parent=os.getpid(),
    )
    started_s = time.monotonic()
    cpu_s = _live(task, directory, timeout_s, SINGLE_THREADED, stopping)
    wall_s = time.monotonic() - started_s
    result = run.read(directory) | {
        "label": run.label,
        **run.about,
        "cpu_s": round(cpu_s, 1),
        "wall_s": round(wall_s, 1),
    }
    work.keep(run, result)
    return result


def _live(
    task: child.Task,
    directory: Path,
    timeout_s: float,
    environment: Mapping[str, str],
    stopping: threading.Event,
) -> float:
    """Runs a child to its end; CPU seconds of it and its own children. RunFailed with a reason."""
    directory.mkdir(parents=True, exist_ok=True)
    spec, log = directory / "task.json", directory / "log.txt"
    json_files.write_json(spec, dataclasses.asdict(task))
    flags = " ".join(filter(None, (os.environ.get("XLA_FLAGS"), environment.get("XLA_FLAGS"))))
    inherited = {**os.environ, "JAX_PLATFORMS": "cpu", **environment, "XLA_FLAGS": flags}
    inherited["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", child.__name__, str(spec)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=inherited,
            start_new_session=True,
        )
        status, cpu_s = _wait(process, time.monotonic() + timeout_s, stopping)
    if status is None and stopping.is_set():
        raise RunFailed("the bench was stopped; run it again to go on")
    if status is None:
        raise RunFailed(f"not done after {timeout_s:.0f} s; run the bench again to go on with it")
    if status != 0:
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        raise RunFailed(f"{how}: {_last_line(log)}")
    return cpu_s


def _wait(
    process: subprocess.Popen, deadline_s: float, stopping: threading.Event
) -> tuple[int | None, float]:
    """Its status, None where the deadline or a stop came first, and its CPU seconds."""
    try:
        while time.monotonic() < deadline_s and not stopping.is_set():
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                process.returncode = os.waitstatus_to_exitcode(status)
                return process.returncode, usage.ru_utime + usage.ru_stime
            time.sleep(0.05)
        return None, 0.0
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
