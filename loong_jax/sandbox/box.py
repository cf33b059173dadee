"""One zygote and what it takes to start, feed and restart it: programs in, how they ended out."""

import contextlib
import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from loong_jax.child import Child, ChildLost
from loong_jax.errors import VerifierError
from loong_jax.problems.verdict import IsolationTier
from loong_jax.sandbox.mechanism import Mechanism

Mode = Literal["exec", "python", "call"]
End = Literal[
    "exited", "cpu", "wall", "memory", "output", "artefact", "lost", "crashed", "forged"
]  # fmt: skip

_GRACE_S = 15.0
_MAX_RESULT_BYTES = 64 * 2**20
_MAX_STRETCH = 4  # of a run's wall time, as the zygote has it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one run. CPU time ends a busy program, wall time one that sleeps.

    The defaults are for calls of a function, and the lower half is for whole programs alone: theirs
    start from `PROGRAM`.
    """

    cpu_s: float = 1.0  # of all its processes together
    wall_s: float = 4.0  # longer than cpu_s, so that a loaded machine makes no program late
    memory_bytes: int = 256 * 2**20
    source_bytes: int = 64 * 2**10  # of a call's source
    result_bytes: int = 64 * 2**10  # all values of a call, as JSON
    output_bytes: int = 4 * 2**10  # stdout, and stderr: a call may print more, and it is dropped
    address_bytes: int = 0  # address space of each process; 0 leaves it to memory_bytes
    stack_bytes: int = 64 * 2**20
    pids: int = 64  # processes and threads
    disk_bytes: int = 64 * 2**20  # of /tmp, and of one file
    disk_files: int = 4096
    collect_bytes: int = 48 * 2**20  # of an artefact

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if value < 0 or (value == 0 and name != "address_bytes"):
                raise VerifierError(f"{name}={value} is not above 0. Give a positive limit.")
        if self.result_bytes > _MAX_RESULT_BYTES:
            raise VerifierError(
                f"result_bytes={self.result_bytes} is above {_MAX_RESULT_BYTES}. Have the program "
                "return less."
            )


PROGRAM = Limits(
    cpu_s=10.0, wall_s=21.0, memory_bytes=512 * 2**20, result_bytes=8 * 2**20,
    output_bytes=16 * 2**20,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One program to run: `mode` "exec" executes argv, "python" runs argv[0] as Python in a fork.

    "call" takes stdin for JSON of a source, its function and arguments (calls.py); such a run has
    nothing of what follows but its limits, and `guard`, which refuses imports.
    `files` land in /tmp, the working directory; `artefact` names what is at /app; `collect` returns
    what the run leaves in /tmp/out. One that `reports` has descriptor 3 for a result.
    """

    argv: Sequence[str] = ()
    mode: Mode = "exec"
    stdin: bytes = b""
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    artefact: str = ""
    collect: bool = False
    reports: bool = False
    guard: bool = False
    limits: Limits = PROGRAM


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a run. `status` is the exit code, or minus the signal that ended it.

    `lost` is no fault of the program: the sandbox failed. A call that ended without a report has
    `crashed`, or `forged` where it wrote something else.
    """

    end: End
    status: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    result: bytes = b""
    files: Mapping[str, tuple[bytes, bool]] = dataclasses.field(default_factory=dict)
    detail: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    waited_s: float = 0.0  # runnable, but without a processor
    memory_bytes: int = 0


class Box:
    """Runs one program at a time. Safe to share between threads."""

    def __init__(self, mechanism: Mechanism, cache: Path | None = None):
        """Without a cache of artefacts it runs calls only, and there is nothing of /tmp inside."""
        self.mechanism = mechanism
        self._cache = cache
        self._lock = threading.Lock()
        self._zygote: Child | None = None
        self._group = Group()
        self.num_lost = 0

    @property
    def tier(self) -> IsolationTier:
        return self.mechanism.tier

    @property
    def pid(self) -> int | None:
        return self._zygote.pid if self._zygote else None

    @property
    def group_counts(self) -> tuple[str, ...]:
        return self._group.counts

    def run(self, program: Run) -> Ended:
        """Runs a program; raises BoxLost only where no zygote can be started."""
        body = _encode(program)
        with self._lock:
            for _ in range(2):
                zygote = self._running()
                deadline = time.monotonic() + _MAX_STRETCH * program.limits.wall_s + _GRACE_S
                try:
                    zygote.send(body, deadline)
                    return _decode(zygote.receive(deadline))
                except (ChildLost, TimeoutError):
                    self.num_lost += 1
                    self._stop()
        return Ended(end="lost", detail="the sandbox was lost twice while it ran this program")

    def start(self) -> None:
        with self._lock:
            self._running()

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _running(self) -> Child:
        """The zygote, started where there is none that lives."""
        if self._zygote is None or not self._zygote.is_alive():
            self._stop()
            if self._cache is not None:
                self._group = make_group()
            self._zygote = self.mechanism.start(self._cache, self._group.fds)
        return self._zygote

    def _stop(self) -> None:
        if self._zygote is not None:
            self._zygote.stop()
            self._zygote = None
        self._group.close()
        self._group = Group()


def _encode(program: Run) -> bytes:
    names = ("mode", "argv", "env", "artefact", "collect", "reports", "guard")
    head = {name: getattr(program, name) for name in names}
    head["files"] = [(name, len(content)) for name, content in program.files.items()]
    head["limits"] = dataclasses.asdict(program.limits)
    parts = [json.dumps(head).encode(), b"\n", *program.files.values(), program.stdin]
    return b"".join(parts)


def _decode(frame: bytes) -> Ended:
    head, _, blob = frame.partition(b"\n")
    reply = json.loads(head)
    parts, position = [], 0
    for size in reply.get("sizes", [0, 0, 0, 0]):
        parts.append(blob[position : position + size])
        position += size
    files, position = {}, 0
    for name, size, is_executable in reply.get("files", []):
        files[name] = (parts[3][position : position + size], is_executable)
        position += size
    names = ("end", "status", "detail", "cpu_s", "wall_s", "waited_s", "memory_bytes")
    known = {name: reply[name] for name in names if name in reply}
    return Ended(stdout=parts[0], stderr=parts[1], result=parts[2], files=files, **known)


# ---- control groups: memory, processes and CPU time of a run, where this process may make them

# A zygote gets one group per controller; only the init of a run enters, so the zygote itself is
# never counted or killed. Version 1 and version 2 hierarchies are known. The files are opened here
# and inherited, since the zygote sees no cgroup file system and has no right to write to one.
_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "loong-"
_COUNTER = itertools.count()

# the zygote's name of a file -> its name, by version of the hierarchy
_FILES_V1 = {
    "memory": {
        "memory_tasks": "cgroup.procs",
        "memory_max": "memory.limit_in_bytes",
        "memory": "memory.usage_in_bytes",
        "memory_peak": "memory.max_usage_in_bytes",
        "kills": "memory.oom_control",
    },
    "pids": {"pids_tasks": "cgroup.procs", "pids_max": "pids.max"},
    "cpuacct": {"cpu_tasks": "cgroup.procs", "cpu": "cpuacct.usage"},
}
_FILES_V2 = {
    "memory_tasks": "cgroup.procs",
    "memory_max": "memory.max",
    "memory": "memory.current",
    "memory_peak": "memory.peak",
    "kills": "memory.events",
    "pids_max": "pids.max",
    "cpu": "cpu.stat",
}


@dataclasses.dataclass
class Group:
    """Directories of one group and the open files that steer it."""

    directories: list[Path] = dataclasses.field(default_factory=list)
    fds: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def counts(self) -> tuple[str, ...]:
        """The limits that the kernel enforces for the group as a whole."""
        found = {"memory_max": "memory", "pids_max": "processes", "cpu": "cpu"}
        return tuple(word for name, word in found.items() if name in self.fds)

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}
        for directory in self.directories:
            for _ in range(50):  # the kernel takes a moment to let the last process go
                try:
                    directory.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
                else:
                    break
        self.directories = []


def make_group() -> Group:
    """A group with every controller that may be used here; perhaps none."""
    group = Group()
    if os.geteuid() != 0:
        return group  # a delegated subtree would do; none is assumed
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return group
    name = f"{_PREFIX}{os.getpid()}-{next(_COUNTER)}"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") if controllers else [""]:
            files = _FILES_V1.get(controller) if controller else _FILES_V2
            parent = _ROOT / controller / path.lstrip("/")
            if files and os.access(parent / "cgroup.procs", os.W_OK):
                _open(group, parent, name, files)
    return group


def _open(group: Group, parent: Path, name: str, files: dict[str, str]) -> None:
    _remove_stale(parent)
    directory = parent / name
    try:
        directory.mkdir()
    except OSError:
        return
    group.directories.append(directory)
    found = {}
    for key, mode in itertools.product(files, (os.O_RDWR, os.O_RDONLY)):
        if key not in group.fds and key not in found:
            with contextlib.suppress(OSError):
                found[key] = os.open(directory / files[key], mode | os.O_CLOEXEC)
    tasks = [key for key in found if key.endswith("_tasks")]
    if tasks and len(found) > len(tasks):
        with contextlib.suppress(OSError):  # else a program could swap instead of ending
            (directory / "memory.swappiness").write_text("0")
        group.fds |= found
        return
    for fd in found.values():
        os.close(fd)


def _remove_stale(parent: Path) -> None:
    """Groups of processes that were killed before they could clean up."""
    with contextlib.suppress(OSError):
        for directory in parent.glob(f"{_PREFIX}*-*"):
            owner = directory.name.removeprefix(_PREFIX).partition("-")[0]
            if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
                with contextlib.suppress(OSError):
                    directory.rmdir()
