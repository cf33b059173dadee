"""Runs a proof checker's command in the sandbox.

Each run has a fresh directory of its own. What it leaves there is read back by name, regular files
only.
"""

import atexit
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence

from loong_jax.errors import VerifierError
from loong_jax.verifiers.sandbox import Executor, Limits, Run

# The command's words follow the names of its outputs; what it made is copied to where it is read.
_SCRIPT = (
    'n=$1; shift; names=; while [ "$n" -gt 0 ]; do names="$names $1"; shift; n=$((n-1)); done\n'
)
_SCRIPT += '"$@"; s=$?; for f in $names; do [ -e "$f" ] && cp -P -- "$f" out/; done; exit $s'


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandLimits:
    """What one run of a checker may use."""

    cpu_s: int = 20
    wall_s: float = 60.0
    memory_bytes: int = 2 * 2**30
    file_bytes: int = 32 * 2**20
    output_bytes: int = 4 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandResult:
    status: int  # exit status; minus the signal that ended it
    output: str  # stdout, then stderr
    files: Mapping[str, bytes]
    timed_out: bool
    cpu_limit: bool


def run(
    command: Sequence[str],
    files: Mapping[str, bytes],
    outputs: Sequence[str],
    limits: CommandLimits,
) -> CommandResult:
    """Runs `command` where `files` lie in its directory; returns it with those of `outputs`.

    Raises VerifierError where that says nothing about the proof: no isolation, a failure of the
    sandbox, or no memory left.
    """
    words = [str(len(outputs)), *outputs, *command]
    ended = _executor().run(
        Run(
            argv=["/bin/sh", "-c", _SCRIPT, "sh", *words],
            env={"HOME": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/bin"},
            files=files,
            collect=True,
            limits=Limits(
                cpu_s=limits.cpu_s,
                wall_s=limits.wall_s,
                memory_bytes=limits.memory_bytes,
                address_bytes=2 * limits.memory_bytes,
                disk_bytes=2 * limits.file_bytes,
                output_bytes=limits.output_bytes,
                collect_bytes=limits.file_bytes,
            ),
        )
    )
    if ended.end == "lost":
        raise VerifierError(f"the sandbox failed: {ended.detail}")
    if ended.end == "memory":
        raise VerifierError(f"{limits.memory_bytes} bytes of memory are used up")
    return CommandResult(
        status=1 if ended.status is None else ended.status,
        output=(ended.stdout + ended.stderr).decode(errors="replace"),
        files={name: content for name, (content, _) in ended.files.items() if name in outputs},
        timed_out=ended.end == "wall",
        cpu_limit=ended.end == "cpu",
    )


@functools.cache
def _executor() -> Executor:
    """One for all proofs of this process; a box starts with its first run."""
    executor = Executor(num_boxes=len(os.sched_getaffinity(0)))
    atexit.register(executor.close)
    return executor
