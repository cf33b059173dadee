"""Costs of a run in the code sandbox: for `loong bench verify`."""

import dataclasses
import os
import statistics
import time
from pathlib import Path
from typing import Any

from loong_jax.errors import VerifierError
from loong_jax.sandbox import PROGRAM, Executor, Run

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


def measure(num_runs: int = 400, num_boxes: int = 2) -> dict[str, Any]:
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
    start, cpu_start_s = time.perf_counter(), _cpu_s(executor)
    ended = list(executor.threads.map(executor.run, [run] * num_runs))
    took_s, cpu_s = time.perf_counter() - start, _cpu_s(executor) - cpu_start_s
    wanted = b"42\n" if run.stdin else b""
    if any(one.stdout != wanted for one in ended):
        raise VerifierError("a run gave another output than the program prints")
    return {
        "runs_per_s": num_runs / took_s,
        "median_ms": statistics.median(one.wall_s for one in ended) * 1e3,
        "cpu_ms": cpu_s / num_runs * 1e3,
    }


def _cpu_s(executor: Executor) -> float:
    """CPU seconds of this process, the zygotes and all that has run in them."""
    ticks = 0
    for pid in executor.zygote_pids():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


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


def as_text(result: dict[str, Any]) -> str:
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
