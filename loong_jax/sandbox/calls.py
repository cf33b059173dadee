"""Calls of functions that small untrusted sources define, and the values that they return.

Each source runs in a fork of its own (inside/call.py). Expected answers never come in there: a
source gets its arguments, and the values it returned are compared by the caller. Values are int,
float, str, bool and lists of them. What a source claims to have computed is all that it can forge.
"""

import dataclasses
import functools
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from loong_jax.errors import VerifierError
from loong_jax.problems.verdict import IsolationTier
from loong_jax.sandbox import mechanism
from loong_jax.sandbox.box import Box, Ended, Limits, Run

Status = Literal["ok", "error", "timeout", "stalled", "limit", "crash", "lost"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """Source that defines `entry`, and the arguments of each call of it (JSON values)."""

    source: str
    arguments: Sequence[Sequence[Any]]
    entry: str = "f"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """The result of a program: `ok` with one value per call, else the way it ended.

    `error`: it raised, or returned what is no plain value. `timeout`: its CPU time is used up.
    `stalled`: its wall time passed first, so it slept or the machine is overloaded. `limit`: a
    size. `crash`: it ended without a reply. `lost`: the sandbox failed, no fault of the program.
    """

    status: Status
    values: tuple[Any, ...] = ()
    detail: str = ""
    output: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    tier: IsolationTier = "none"


def expression_program(
    expression: str, arguments: Sequence[Sequence[Any]], parameters: Sequence[str] = ("x",)
) -> Program:
    """The program whose `f(*parameters)` is the value of one expression; statements are errors."""
    names = ", ".join(parameters)
    scope = ", ".join(f"{name!r}: {name}" for name in parameters)
    source = (
        f"_code = compile({expression.strip()!r}, '<expression>', 'eval')\n"
        f"def f({names}):\n    return eval(_code, {{{scope}}})\n"
    )
    return Program(source=source, arguments=arguments)


class SandboxLost(VerifierError):
    """The sandbox failed, which says nothing about the program: the verdict is `ungradable`."""


class Sandbox:
    """One box for calls. Safe to share between threads; runs one at a time.

    `tier` asks for one tier, else the best that works here is taken, at the first run; what is
    below `min_tier` or cannot be had raises VerifierError, at once where either was given.
    `packages` is a directory of them that is there as well, and those `preloaded` are imported
    once, before the forks.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        min_tier: IsolationTier = "process",
        tier: IsolationTier | None = None,
        packages: str = "",
        preloaded: tuple[str, ...] = (),
    ):
        self.limits = limits or Limits()
        self.num_runs = 0  # programs run so far
        self._isolation = functools.partial(mechanism.required_isolation, min_tier, tier)
        self._imports: dict[str, Any] = {"packages": packages, "preloaded": preloaded}
        self._lock = threading.Lock()
        if min_tier != "process" or tier is not None:  # "process" can be had everywhere
            self._isolation()
        if packages:
            self._box.start()  # the directory may be out of its reach

    @functools.cached_property
    def _box(self) -> Box:  # made under the lock
        return Box(dataclasses.replace(self._isolation(), **self._imports))

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def tier(self) -> IsolationTier:
        return self._isolation().tier

    def run(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """Runs each program in a process of its own, in order. Raises only if none can start."""
        with self._lock:
            self.num_runs += len(programs)
            return [self._run(program) for program in programs]

    def judged(self, programs: Sequence[Program]) -> list[ProgramResult]:
        """Runs as `run`; SandboxLost where a result would blame a program for our failure."""
        results = self.run(programs)
        for result in results:
            if result.status == "lost":
                raise SandboxLost(f"{result.detail}. Run it again.")
            if result.status == "stalled":
                raise SandboxLost(
                    f"a program got {result.cpu_s:.2f} s of CPU in {result.wall_s:.1f} s: it "
                    "slept, or the machine is overloaded. Use fewer workers or a longer wall_s."
                )
        return results

    def values(
        self, runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]
    ) -> list[list[Any] | str]:
        """Values of each expression under each assignment of its names, or a text that says why
        there are none; raises SandboxLost.
        """
        programs = []
        for expression, assignments in runs:
            names = tuple(assignments[0]) if assignments else ()
            arguments = [[assignment[name] for name in names] for assignment in assignments]
            programs.append(expression_program(expression, arguments, names))
        return [
            list(result.values) if result.status == "ok" else f"{result.status}: {result.detail}"
            for result in self.judged(programs)
        ]

    def pid(self) -> int | None:
        """The zygote's process as seen from here, while there is one."""
        return self._box.pid if "_box" in self.__dict__ else None

    def close(self) -> None:
        if "_box" in self.__dict__:
            self._box.close()

    def _run(self, program: Program) -> ProgramResult:
        size = len(program.source.encode("utf-8", "surrogatepass"))
        if size > self.limits.source_bytes:
            detail = f"the source has {size} bytes, more than {self.limits.source_bytes}"
            return ProgramResult(status="limit", detail=detail, tier=self.tier)
        arguments = [list(one) for one in program.arguments]
        request = {"source": program.source, "entry": program.entry, "arguments": arguments}
        guard = self.tier == "process"
        body = json.dumps(request).encode()
        ended = self._box.run(Run(mode="call", stdin=body, guard=guard, limits=self.limits))
        return _result(ended, len(arguments), self.tier)


_ENDS: dict[str, tuple[Status, str]] = {
    "cpu": ("timeout", "CPU time"),
    "wall": ("stalled", "wall time"),
    "output": ("limit", "size of the result"),
    "crashed": ("crash", "it ended without a reply"),
    "forged": ("error", "it wrote on the reply's pipe"),
    "lost": ("lost", "the sandbox could not run it"),
}


def _result(ended: Ended, num_calls: int, tier: IsolationTier) -> ProgramResult:
    used = {"tier": tier, "cpu_s": ended.cpu_s, "wall_s": ended.wall_s}
    if ended.end != "exited":
        status, detail = _ENDS[ended.end]
        detail = f"{detail}: {ended.detail}" if ended.detail else detail
        return ProgramResult(status=status, detail=detail, **used)
    try:
        report = json.loads(ended.result)  # untrusted: checked for what it may hold
        output = str(report["output"])
        if "error" in report:
            detail = str(report["error"])[:300]
            return ProgramResult(status="error", detail=detail, output=output, **used)
        values = report["values"]
        if type(values) is not list or len(values) != num_calls or not _is_plain(values):
            raise ValueError("values")
    except (ValueError, KeyError, TypeError, RecursionError):
        return ProgramResult(status="error", detail="a malformed reply", **used)
    return ProgramResult(status="ok", values=tuple(values), output=output, **used)


def _is_plain(value: Any) -> bool:
    if type(value) is list:
        return all(_is_plain(item) for item in value)
    return type(value) in (int, float, str, bool)
