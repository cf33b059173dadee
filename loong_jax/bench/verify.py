"""`loong bench verify`: accuracy and speed of the maths verifier, alone and beside Math-Verify; and
costs of a run in the code sandbox.
"""

import collections
import dataclasses
import gc
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loong_jax.bench import Report, Save, timing
from loong_jax.errors import ConfigError, VerifierError, refuse_below
from loong_jax.sandbox import PROGRAM, Executor, Run
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.answers import gold as gold_room

PEER = "math_verify"
PARTS = ("math", "sandbox")
_LONG_CHARS = 60_000
_EXPECTED = (True, False, "correct", "not correct", "ungradable")

Judge = Callable[[str, str], bool | None]  # None: ungradable, a time-out or a crash


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Judges cases with our verifier and, where it is installed, with Math-Verify.

    Both run in this process, in turns, on one thread. Accuracy is per class of cases; speed is the
    median over rounds of the CPU seconds that all cases take, those of the processes in which we
    ask sympy among them.
    Example: loong bench verify --cases tests/verifiers/maths/cases --json verify.json
    """

    cases: tuple[Path, ...] = (Path("tests/verifiers/maths/cases"),)
    """JSON-lines files, or directories of them, with `gold`, `answer`, `expected`."""
    json: Path | None = None  # all figures
    rounds: int = 3  # of timing
    peer: bool = True  # compare with Math-Verify if it is installed
    parts: tuple[str, ...] = PARTS  # measurements

    def __post_init__(self):
        refuse_below(self, 1, "rounds")
        if not self.parts or set(self.parts) - set(PARTS):
            raise ConfigError(f"parts={list(self.parts)} must name some of {', '.join(PARTS)}.")


class Case(NamedTuple):
    kind: str
    gold: str
    answer: str
    is_correct: bool
    is_hostile: bool


def measure(
    chosen: Options, *, report: Report = print, save: Save = lambda _: None
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if "math" in chosen.parts:
        cases = read_cases(chosen.cases)
        result |= measure_judges(cases, rounds=chosen.rounds, with_peer=chosen.peer)
        report(as_text(result))
        save(result)
    if "sandbox" in chosen.parts:
        try:
            result["sandbox"] = measure_sandbox()
            report(sandbox_as_text(result["sandbox"]))
        except VerifierError as error:
            report(f"sandbox: not measured, {error}")
            result["sandbox"] = {"skipped": str(error)}
        save(result)
    return result


def read_cases(paths: Sequence[Path]) -> list[Case]:
    """Cases of all files. `expected` is a bool, or "correct", "not correct" or "ungradable"."""
    files = [
        f for path in paths for f in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])
    ]
    cases = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}. Name files of cases.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is no UTF-8 text: {error}. Name files of cases.") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                case = _case(json.loads(line), file.stem)
            except ValueError as error:
                raise ConfigError(
                    f"line {number} of {file} is no case: {error}. Write an object with `gold`, "
                    f"`answer` and `expected`, which is one of {_EXPECTED}."
                ) from error
            cases += [] if case is None else [case]
    if not cases:
        raise ConfigError(f"{', '.join(map(str, paths))} hold no cases. Name files of cases.")
    return cases


def _case(value: Any, kind: str) -> Case | None:
    """The case of a line, None of a contested one; ValueError where it is no case."""
    if not isinstance(value, dict):
        raise ValueError(f"it holds a value of type {type(value).__name__}")
    if value.get("contested"):
        return None
    for name in ("gold", "answer"):
        if not isinstance(value.get(name), str):
            raise ValueError(f"its {name} is {value.get(name)!r}, no text")
    expected = value.get("expected")
    if not isinstance(expected, bool | str) or expected not in _EXPECTED:
        raise ValueError(f"its expected is {expected!r}")
    return Case(
        value.get("class", kind),
        value["gold"],
        value["answer"],
        expected in (True, "correct"),
        expected == "ungradable",
    )


def measure_judges(cases: Sequence[Case], *, rounds: int, with_peer: bool) -> dict[str, Any]:
    """Accuracy and speed of each judge; `speedup` compares them on the same cases."""
    verifier: Any = get_verifier("math")

    def ours(gold: str, answer: str) -> bool | None:
        judged = verifier.judge(gold, answer)
        return judged.is_correct if judged.is_graded else None

    judges: dict[str, Judge] = {"loong_jax": ours}
    if with_peer and importlib.util.find_spec(PEER) is not None:
        judges["Math-Verify"] = _peer()
    result: dict[str, Any] = {"cases": len(cases), "load": os.getloadavg()[0], "judges": {}}
    for name, judge in judges.items():
        judge("\\int_0^1 2x dx", "1.0")  # what is started or imported by the first such case
        said, seconds = [], []
        for case in cases:
            start = time.perf_counter()
            said.append(judge(case.gold, case.answer))
            seconds.append(time.perf_counter() - start)
        p99 = sorted(seconds)[min(len(seconds) - 1, int(0.99 * len(seconds)))]
        median, longest = statistics.median(seconds), max(seconds)
        latency = {"median_s": median, "p99_s": p99, "max_s": longest}
        result["judges"][name] = {"accuracy": _accuracy(cases, said), "latency": latency}
    ordinary = [case for case in cases if not case.is_hostile]
    groups = {
        "all cases": ordinary,
        "boxed integers": [_boxed(number, "So it is ") for number in range(200)],
        "60,000 characters": [
            _boxed(number, "So we add 1 and get $n + 1$. " * (_LONG_CHARS // 29))
            for number in range(5)
        ],
    }
    result["speed"] = {key: _speed(judges, group, rounds) for key, group in groups.items()}
    verifier.close()
    return result


def _boxed(number: int, before: str) -> Case:
    return Case("", str(number), f"{before}\\boxed{{{number}}}.", True, False)


def _peer() -> Judge:
    """Math-Verify as its readers use it: both sides as LaTeX or expression, gold first."""
    from math_verify import parse, verify  # type: ignore[import-not-found]

    def judge(gold: str, answer: str) -> bool | None:
        try:
            wanted = parse(gold if "$" in gold or "\\boxed" in gold else f"${gold}$")
            plain = "$" in answer or "\\boxed" in answer or " " in answer.strip()
            return bool(verify(wanted, parse(answer if plain else f"${answer}$")))
        except Exception:  # a crash and its own time-out alike: no verdict
            return None

    return judge


def _accuracy(cases: Sequence[Case], said: Sequence[bool | None]) -> dict[str, dict[str, Any]]:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case, outcome in zip(cases, said, strict=True):
        for kind in (case.kind, "total"):
            if case.is_correct:
                counts[kind]["positives"] += 1
                counts[kind]["accepted"] += outcome is True
            else:
                counts[kind]["negatives"] += 1
                counts[kind]["false positives"] += outcome is True
            counts[kind]["ungradable"] += outcome is None
    return {kind: dict(counter) for kind, counter in counts.items()}


def _speed(judges: dict[str, Judge], cases: Sequence[Case], rounds: int) -> dict[str, Any]:
    """Verdicts per CPU second, of this process and of those that it starts.

    The judges take turns, so that other load meets them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in judges}
    for _ in range(rounds):
        for name, judge in judges.items():
            gc.collect()
            gold_room.clear_caches()  # no parsed text is carried from one round to the next
            start = timing.family_cpu_s()
            for case in cases:
                judge(case.gold, case.answer)
            times[name].append(timing.family_cpu_s() - start)
    speeds = {name: len(cases) / statistics.median(values) for name, values in times.items()}
    figures: dict[str, Any] = {"verdicts_per_cpu_s": speeds}
    if len(speeds) == 2:
        ours, other = speeds.values()
        figures["speedup"] = ours / other
    return figures


def as_text(result: dict[str, Any]) -> str:
    """The tables for people."""
    names = list(result["judges"])
    lines = [f"{result['cases']} cases, load {result['load']:.1f}", ""]
    lines.append(f"{'class':28}" + "".join(f"{name:>34}" for name in names))
    lines.append(f"{'':28}" + "".join(f"{'accepted  false pos.  ungradable':>34}" for _ in names))
    for kind in sorted(result["judges"][names[0]]["accuracy"], key=lambda k: (k == "total", k)):
        row = f"{kind:28}"
        for name in names:
            counts = result["judges"][name]["accuracy"][kind]
            positive = f"{counts.get('accepted', 0)}/{counts.get('positives', 0)}"
            negative = f"{counts.get('false positives', 0)}/{counts.get('negatives', 0)}"
            row += f"{positive:>12}{negative:>11}{counts['ungradable']:>11}"
        lines.append(row)
    lines.append("")
    for name in names:
        latency = result["judges"][name]["latency"]
        lines.append(
            f"{name}: median {1e3 * latency['median_s']:.2f} ms, "
            f"p99 {1e3 * latency['p99_s']:.1f} ms, worst {1e3 * latency['max_s']:.0f} ms"
        )
    for key, figures in result["speed"].items():
        speeds = ", ".join(f"{n} {s:,.0f}/s" for n, s in figures["verdicts_per_cpu_s"].items())
        ratio = f", ratio {figures['speedup']:.1f}" if "speedup" in figures else ""
        lines.append(f"{key}: {speeds}{ratio} (verdicts per CPU second)")
    return "\n".join(lines)


# --- the sandbox ---------------------------------------------------------------------------------


_SCRIPT = b"print(int(input()) + 1)"
_LIMITS = dataclasses.replace(PROGRAM, wall_s=30.0)
_COMPILED = {
    "c": '#include <stdio.h>\nint main() { int x; scanf("%d", &x); printf("%d", x + 1); }',
    "cpp": "#include <bits/stdc++.h>\nint main() { int x; std::cin >> x; std::cout << x + 1; }",
    "rust": 'fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap(); '
    'print!("{}", s.trim().parse::<i32>().unwrap() + 1); }',
    "go": 'package main\nimport "fmt"\nfunc main() { var x int; fmt.Scan(&x); fmt.Print(x + 1) }',
    "java": "public class Main { public static void main(String[] a) { "
    "System.out.print(new java.util.Scanner(System.in).nextInt() + 1); } }",
}  # fmt: skip


def measure_sandbox(num_runs: int = 400, num_boxes: int = 2) -> dict[str, Any]:
    """Runs a second through the fork server and by plain starts; and what compiling once saves.

    Times are wall time, in milliseconds; every run is checked for the right output.
    """
    executor = Executor(num_boxes=num_boxes)
    try:
        interpreter = executor.mechanism.interpreter
        files = {"main.py": _SCRIPT}
        kinds = {
            "python_fork": Run(mode="python", argv=["/tmp/main.py"], files=files,
                               stdin=b"41\n", limits=_LIMITS),
            "python_plain": Run(argv=[interpreter, "-I", "-B", "/tmp/main.py"], files=files,
                                stdin=b"41\n", limits=_LIMITS),
            "true": Run(argv=["/bin/true"], limits=_LIMITS),
        }  # fmt: skip
        result: dict[str, Any] = {
            "tier": executor.mechanism.tier,
            "mechanism": executor.mechanism.name,
            "counted_by_the_kernel": list(executor.group_counts),
            "num_boxes": num_boxes,
            "load": os.getloadavg()[0],
            "runs": {name: _throughput(executor, run, num_runs) for name, run in kinds.items()},
            "compile_once": {},
        }
        for language, source in _COMPILED.items():
            try:
                result["compile_once"][language] = _compile_once(executor, language, source)
            except VerifierError as error:
                result["compile_once"][language] = {"skipped": str(error)}
        return result
    finally:
        executor.close()


def _throughput(executor: Executor, run: Run, num_runs: int) -> dict[str, float]:
    for _ in executor.threads.map(executor.run, [run] * 8):
        pass
    start, cpu_start_s = time.perf_counter(), timing.family_cpu_s()
    ended = list(executor.threads.map(executor.run, [run] * num_runs))
    took_s, cpu_s = time.perf_counter() - start, timing.family_cpu_s() - cpu_start_s
    wanted = b"42\n" if run.stdin else b""
    if any(one.stdout != wanted for one in ended):
        raise VerifierError("a run gave another output than the program prints")
    return {
        "runs_per_s": num_runs / took_s,
        "median_ms": statistics.median(one.wall_s for one in ended) * 1e3,
        "cpu_ms": cpu_s / num_runs * 1e3,
    }


def _compile_once(executor: Executor, language: str, source: str) -> dict[str, float]:
    executor.version(language)
    start = time.perf_counter()
    built = executor.build(language, source)
    compile_ms = (time.perf_counter() - start) * 1e3
    if built.failure or built.lost:
        raise VerifierError(built.failure or built.lost)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        ended = executor.execute(executor.build(language, source), _LIMITS, stdin=b"41\n")
        times.append((time.perf_counter() - start) * 1e3)
        if ended.stdout != b"42":
            raise VerifierError(f"{language} gave {ended.stdout!r}, not 42")
    run_ms = statistics.median(times)
    return {"compile_ms": compile_ms, "run_ms": run_ms, "gain": (compile_ms + run_ms) / run_ms}


def sandbox_as_text(result: dict[str, Any]) -> str:
    lines = [
        f"sandbox: {result['mechanism']}, tier {result['tier']}, {result['num_boxes']} boxes, "
        f"counted by the kernel: {', '.join(result['counted_by_the_kernel']) or 'nothing'}"
    ]
    for name, row in result["runs"].items():
        lines.append(
            f"  {name:<14}{row['runs_per_s']:8.0f} runs/s{row['median_ms']:9.1f} ms each, "
            f"{row['cpu_ms']:.1f} ms of CPU"
        )
    for name, row in result["compile_once"].items():
        lines.append(
            f"  {name:<14}{row['skipped']}"
            if "skipped" in row
            else f"  {name:<14}compile {row['compile_ms']:7.0f} ms, then {row['run_ms']:6.1f} ms a "
            f"run: {row['gain']:.0f} times faster than compiling each time"
        )
    return "\n".join(lines)
