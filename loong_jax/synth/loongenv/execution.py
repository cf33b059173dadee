"""Programs run in the sandbox; what they print is the answer."""

import concurrent.futures
import dataclasses
import os
import queue
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from loong_jax.errors import ConfigError
from loong_jax.synth.calls import CallStore
from loong_jax.synth.loongenv import gates
from loong_jax.synth.loongenv.candidates import Candidate
from loong_jax.verifiers.judge.client import content_hash
from loong_jax.verifiers.loongbench import rationales
from loong_jax.verifiers.loongbench.rationales import Execution, RationaleRunner

MAX_ANSWER_CHARS = 2000
NUM_WORKERS = 2  # sandboxes
NUM_RUNS = 2  # a program that prints two things is no gold


class Executions:
    """Runs programs on some sandboxes at once; what was run once is read from the store.

    `packages` is a directory as `pip install --target` fills it: this interpreter's own unless
    given, where the sandbox reads it.
    """

    def __init__(self, store: CallStore, *, packages: Path | None, cpu_s: float):
        if not cpu_s > 0:
            raise ConfigError(f"cpu_s={cpu_s} is not above 0. Raise it.")
        self._limits = dataclasses.replace(rationales.LIMITS, cpu_s=cpu_s, wall_s=30 + 5 * cpu_s)
        self._store = store
        self._empty = None
        self.where = rationales.directory(packages)
        if packages is None and not _sandbox_reads(self.where):
            self._empty = tempfile.TemporaryDirectory(prefix="no-packages-")
            os.chmod(self._empty.name, 0o755)
            self.where = Path(self._empty.name)
        self._runners: queue.SimpleQueue[RationaleRunner] = queue.SimpleQueue()
        self._made = [RationaleRunner(self.where, self._limits) for _ in range(NUM_WORKERS)]
        for runner in self._made:
            self._runners.put(runner)
        self._pool = concurrent.futures.ThreadPoolExecutor(NUM_WORKERS, "execution")

    @property
    def note(self) -> str:
        """The reason why programs have no packages, where that is so; else ""."""
        if self._empty is None:
            return ""
        return (
            f"programs may import the standard library alone: {rationales.directory(None)} cannot "
            "be read by the sandbox's user. Fill a directory with pip install --target and name it "
            "by --packages"
        )

    def available(self, packages: Sequence[str]) -> dict[str, str]:
        """The packages among these that are installed, with their versions."""
        installed = rationales.installed(self.where)
        found = {name: installed[name] for name in packages if name in installed}
        return {name: what for name, what in found.items() if what != "standard library"}

    def run(self, programs: Sequence[str]) -> list[list[Execution]]:
        """NUM_RUNS executions of each program, in order; one where the first one failed."""
        return list(self._pool.map(self._run, programs))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for runner in self._made:
            runner.close()
        if self._empty is not None:
            self._empty.cleanup()

    def _run(self, code: str) -> list[Execution]:
        packages = sorted(rationales.installed(self.where).items())
        key = content_hash(code, packages, dataclasses.asdict(self._limits), NUM_RUNS)
        if (record := self._store.get(key)) is not None:
            return [Execution(**one) for one in record["runs"]]
        runner = self._runners.get()
        try:
            runs = [runner.run(code)]
            while runs[-1].is_done and len(runs) < NUM_RUNS:
                runs.append(runner.run(code))
        finally:
            self._runners.put(runner)
        if not any(one.is_ours for one in runs):
            self._store.put(key, {"runs": [dataclasses.asdict(one) for one in runs]})
        return runs


def executed(
    candidates: Sequence[Candidate], packages: Mapping[str, str], executions: Executions
) -> list[Candidate]:
    """Every open candidate with the answer that its program prints, or ended without one."""
    found = {}
    for candidate in candidates:
        if len(candidate.code) > gates.MAX_CODE_CHARS:
            detail = f"a program of {len(candidate.code)} characters"
            found[candidate.id] = candidate.ended("not_executable", detail)
        elif module := gates.undeclared(candidate.code, set(packages), executions.where):
            found[candidate.id] = candidate.ended("undeclared_package", module)
    running = [one for one in candidates if one.id not in found]
    all_runs = executions.run([one.code for one in running])
    for candidate, runs in zip(running, all_runs, strict=True):
        found[candidate.id] = _answered(candidate, runs)
    return [found[candidate.id] for candidate in candidates]


def _answered(candidate: Candidate, runs: Sequence[Execution]) -> Candidate:
    last = runs[-1]
    if last.missing:
        return candidate.ended("undeclared_package", last.missing)
    if last.failure:
        return candidate.ended("sandbox_failed" if last.is_ours else "not_executable", last.failure)
    answers = {answer_of(one.output, candidate.domain) for one in runs}
    if len(answers) > 1:
        # They are in the store, and not told here: another run of it would have others.
        return candidate.ended("not_deterministic", f"{len(answers)} answers in {len(runs)} runs")
    [answer] = answers
    if len(answer) > MAX_ANSWER_CHARS:
        return candidate.ended("no_answer", f"an answer of {len(answer)} characters")
    if answer.casefold() in ("", "none", "nan", "inf", "-inf", "[]", "{}"):
        return candidate.ended("no_answer", f"the program prints {answer or 'nothing'}")
    answered = dataclasses.replace(candidate, answer=answer)
    if how := gates.hard_coded(candidate.code, answer, candidate.question):
        return answered.ended("hard_coded", how)
    if gates.tells(candidate.question, answer):
        return answered.ended("answer_in_question", answer)
    return answered


def answer_of(output: str, domain: str) -> str:
    """The last line of what was printed; all of it where the answer is a program's output."""
    if domain == "programming":
        return output.strip("\n").rstrip()
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _sandbox_reads(directory: Path) -> bool:
    """True if the user of the sandbox reaches a directory: our own, but nobody for root."""
    if os.geteuid() != 0:
        return os.access(directory, os.R_OK | os.X_OK)
    return all(place.stat().st_mode & 0o001 for place in (directory, *directory.parents))
