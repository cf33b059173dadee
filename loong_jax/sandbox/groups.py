"""Control groups for runs, where this process may make them: memory, processes and CPU time.

A zygote gets one group per controller; only the init of a run enters, so the zygote itself is
never counted or killed. Version 1 and version 2 hierarchies are known. The files are opened here
and inherited, since the zygote sees no cgroup file system and has no right to write to one.
"""

import contextlib
import dataclasses
import itertools
import os
import time
from pathlib import Path

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
