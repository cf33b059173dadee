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
from loong_jax.sandbox import PROGRAM, Ended, Executor, Limits, Run

# The command's words follow the names of its outputs; what it made is copied to where it is read.
_SCRIPT = (
    'n=$1; shift; names=; while [ "$n" -gt 0 ]; do names="$names $1"; shift; n=$((n-1)); done\n'
)
_SCRIPT += '"$@"; s=$?; for f in $names; do [ -e "$f" ] && cp -P -- "$f" out/; done; exit $s'


def limits(cpu_s: float, *, memory_bytes: int = 2 * 2**30, file_bytes: int = 32 * 2**20) -> Limits:
    """Limits of one run of a checker; its wall time is four times its CPU time."""
    return dataclasses.replace(
        PROGRAM, cpu_s=cpu_s, wall_s=4 * cpu_s, memory_bytes=memory_bytes,
        address_bytes=2 * memory_bytes, disk_bytes=2 * file_bytes, output_bytes=4 * 2**20,
        collect_bytes=file_bytes,
    )  # fmt: skip


def run(
    command: Sequence[str], files: Mapping[str, bytes], outputs: Sequence[str], limits: Limits
) -> Ended:
    """Runs `command` where `files` lie in its directory; returns it with those of `outputs`.

    Raises VerifierError where that says nothing about the proof: no isolation, a failure of the
    sandbox, or no memory left.
    """
    words = [str(len(outputs)), *outputs, *command]
    ended = _executor().run(
        Run(
            argv=["/bin/sh", "-c", _SCRIPT, "sh", *words],
            env={"HOME": "/tmp", "PATH": "/usr/local/bin:/usr/bin:/bin"},
            files=files, collect=True, limits=limits,
        )
    )  # fmt: skip
    if ended.end == "lost":
        raise VerifierError(f"the sandbox failed: {ended.detail}")
    if ended.end == "memory":
        raise VerifierError(f"{limits.memory_bytes} bytes of memory are used up")
    return ended


def said(ended: Ended) -> str:
    return (ended.stdout + ended.stderr).decode(errors="replace")


@functools.cache
def _executor() -> Executor:
    """One for all proofs of this process; a box starts with its first run."""
    executor = Executor(num_boxes=len(os.sched_getaffinity(0)))
    atexit.register(executor.close)
    return executor
