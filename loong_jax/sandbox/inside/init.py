"""Init of one run, pid 1 of its namespaces: trusted, and out of the program's reach.

It mounts a fresh /tmp (bounded in bytes and files), a procfs of its own and the artefact
(read-only), forks the program, and alone writes the exit status. Whatever the program leaves behind
dies with init.
"""

import contextlib
import json
import os
import resource
import signal
import stat
import typing

from loong_jax.sandbox.inside import program, system


def init(request, files, stdin, pipes, state):
    system.LIBC.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    limits, control = request["limits"], pipes[3][1]
    for name in ("memory_tasks", "pids_tasks", "cpu_tasks"):
        if name in state.group:
            os.write(state.group[name], b"0")
    for read_end, _ in pipes:
        os.close(read_end)
    mount_all(request, limits)
    for name, part in files:
        fd = os.open(f"/tmp/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        system.copy_part(fd, *part)
        os.close(fd)
    if request["collect"]:
        os.mkdir("/tmp/out")
    child = system.clone(0)  # os.fork runs hooks of modules, which cost more than the fork
    if child == 0:
        try:
            program.become_program(request, files, stdin, pipes, state)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"the program cannot be started: {error}\n".encode())
        finally:
            os._exit(127)
    for fd in (stdin, *(write_end for _, write_end in pipes[:3])):
        os.close(fd)
    while True:
        pid, status, _ = os.wait4(-1, 0)
        if pid == child:
            break
    ended: dict[str, typing.Any] = {"status": os.waitstatus_to_exitcode(status)}
    blobs = []
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    if request["collect"] and ended["status"] == 0:
        try:
            ended["files"], blobs = collect("/tmp/out", limits["collect_bytes"])
        except (OSError, ValueError) as error:
            ended["refused"] = str(error)[:300]
            ended["status"] = 1
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended["cpu_s"] = usage.ru_utime + usage.ru_stime
    ended["memory_bytes"] = usage.ru_maxrss * 1024
    report(control, ended, *blobs)
    os._exit(0)


def report(control, ended, *blobs):
    for part in (json.dumps(ended).encode() + b"\n", *blobs):
        view = memoryview(part)
        while view:
            view = view[os.write(control, view) :]


def mount_all(request, limits):
    """A fresh /tmp, a procfs of this pid namespace alone, and the artefact at /app."""
    read_only = system.MS_RDONLY | system.MS_NOSUID | system.MS_NODEV
    if artefact := request["artefact"]:
        system.mount(f"/cache/{artefact}", "/app", None, system.MS_BIND)
        system.mount(None, "/app", None, system.MS_REMOUNT | system.MS_BIND | read_only)
    # Other artefacts are not this program's business.
    if system.LIBC.umount2(b"/cache", system.MNT_DETACH) != 0:
        system.mount("none", "/cache", "tmpfs", read_only, "size=4k,nr_inodes=2")
    quota = f"size={limits['disk_bytes']},nr_inodes={limits['disk_files']},mode=1777"
    system.mount("none", "/tmp", "tmpfs", system.MS_NOSUID | system.MS_NODEV, quota)
    if os.path.isdir("/proc"):
        flags = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC
        try:
            system.mount("proc", "/proc", "proc", flags)
        except OSError:  # a container that masks its own: then no procfs at all
            system.mount("none", "/proc", "tmpfs", flags | system.MS_RDONLY, "size=4k,nr_inodes=2")


def collect(root, max_bytes):
    """Regular files below `root`, their sizes and whether they are executable; links are refused.

    Nothing else of the run lives any more, so no file changes while it is read.
    """
    names, blobs, total = [], [], 0
    pending = [(root, "")]
    while pending:
        directory, prefix = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                name = prefix + entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode) and name.count("/") < 8:
                    pending.append((entry.path, name + "/"))
                    continue
                if not stat.S_ISREG(mode):
                    raise ValueError(f"{name!r} is no regular file")
                fd = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(fd, "rb") as file:
                    blobs.append(file.read(max_bytes - total + 1))
                total += len(blobs[-1])
                if total > max_bytes or len(names) >= 4096:
                    raise ValueError(f"the artefact is above {max_bytes} bytes or 4096 files")
                names.append((name, len(blobs[-1]), bool(mode & 0o100)))
    return names, blobs
