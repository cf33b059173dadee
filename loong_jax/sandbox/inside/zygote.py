"""Runs inside the sandbox: starts each program in namespaces of its own and watches over it.

The zygote is pid 1 of the outer namespaces and holds CAP_SYS_ADMIN over them, nothing beyond. For
a run it clones an init into new pid and mount namespaces, which starts the program: executed, or,
for Python, run in the fork itself, which saves the start of an interpreter. The call of a function
(call.py) is a plain fork. Expected answers never come in here.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import site
import sys
import time

from loong_jax.sandbox.inside import call, init, system, usage

NOBODY = 65534


def main():
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    setup = json.loads(system.read_frame(stdin) or b"{}")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as pid 1: signals from inside are then ignored
    system.LIBC.prctl(system.PR_SET_DUMPABLE, 0, 0, 0, 0)
    if os.getuid() == 0:  # started by root, without namespaces
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    os.dup2(2, 1)  # replies keep a descriptor of their own
    if setup["packages"]:
        preload(setup)
    state = usage.State(setup)
    gc.collect()
    gc.freeze()
    system.write_frame(stdout, {"ready": True}, [])
    null = os.open("/dev/null", os.O_WRONLY)  # from here on nobody reads what we print
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    while True:
        found = system.read_request()
        if found is None:
            return
        request, blob = found
        starts = call.run if request["mode"] == "call" else run
        reply, outputs = starts(request, blob, state)
        with contextlib.suppress(ChildProcessError):  # orphans
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        system.write_frame(stdout, reply, outputs)
        for fd in {blob, *(fd for fd, _, _ in outputs)}:
            os.close(fd)


def preload(setup):
    """Imports packages before the forks, so that a run does not pay for them."""
    sys.path.append(setup["packages"])
    sys.dont_write_bytecode = True
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    site.sethelper()  # packages read `help` when they are imported
    site.setquit()
    for name in setup["preloaded"]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def run(request, blob, state):
    """Returns how the program ended and the bytes it wrote."""
    limits = request["limits"]
    files, position = [], 0
    for name, size in request["files"]:
        files.append((name, (blob, position, size)))
        position += size
    stdin = os.memfd_create("stdin", os.MFD_CLOEXEC)
    system.copy_part(stdin, blob, position, os.fstat(blob).st_size - position)
    os.lseek(stdin, 0, os.SEEK_SET)
    pipes = [os.pipe() for _ in range(4)]  # stdout, stderr, result, control
    cpu_before, kills_before = state.cpu_s(), state.kills()
    used_before = int(state.read("memory") or 0)  # file pages that earlier runs have read
    if "memory_peak" in state.group:
        with contextlib.suppress(OSError):
            os.pwrite(state.group["memory_peak"], b"0", 0)
    start = time.monotonic()
    try:
        usage.set_group_limits(state, limits)
        pid = system.clone(system.CLONE_NEWPID | system.CLONE_NEWNS)
    except OSError as error:  # the machine is out of processes or memory: not the program's fault
        for fd in (stdin, *(fd for pair in pipes for fd in pair)):
            os.close(fd)
        return {"end": "lost", "detail": f"cannot start a process: {error}"}, []
    if pid == 0:
        try:
            init.init(request, files, stdin, pipes, state)
        except BaseException as error:
            init.report(pipes[3][1], {"failed": f"{type(error).__name__}: {error}"[:300]})
        finally:
            os._exit(71)
    for _, write_end in pipes:
        os.close(write_end)
    os.close(stdin)
    watch = usage.Watch(state, limits, start, cpu_before or 0.0, used_before)
    caps = [limits["output_bytes"]] * 2
    caps += [limits["result_bytes"], limits["collect_bytes"] + (1 << 20)]
    outputs, end = watch.drain([read_end for read_end, _ in pipes], caps)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # returns once every process of its namespace is dead
    for read_end, _ in pipes:
        os.close(read_end)
    return summary(state, watch, outputs, end, limits, kills_before)


def summary(state, watch, outputs, end, limits, kills_before):
    """The reply, and the parts of files that go with it."""
    head, fd, size = b"", *outputs[3][::2]
    while b"\n" not in head and (more := os.pread(fd, 4096, len(head))):
        head += more
    head = head.partition(b"\n")[0]
    collected = (fd, min(len(head) + 1, size), max(0, size - len(head) - 1))
    ended = json.loads(head) if head else {}
    usage_s = ended.get("cpu_s", 0.0)
    reply = {
        "end": end,
        "wall_s": time.monotonic() - watch.start,
        "waited_s": watch.waited_s,
        "cpu_s": max(watch.cpu_s(), usage_s),
        "memory_bytes": max(watch.memory_bytes(), ended.get("memory_bytes", 0)),
    }
    killed_for_memory = state.kills() > kills_before
    if "failed" in ended:
        reply |= {"end": "lost", "detail": ended["failed"]}
    elif end == "closed":
        reply["end"] = "exited" if "status" in ended else "lost"
        reply["detail"] = "" if "status" in ended else "init ended without a report"
        if reply["cpu_s"] > limits["cpu_s"] and "status" in ended:
            reply["end"] = "cpu"
    reply["status"] = ended.get("status")
    if killed_for_memory and reply["end"] in ("exited", "lost", "wall", "cpu"):
        reply["end"] = "memory"
    if "files" in ended:
        sizes = sum(size for _, size, _ in ended["files"])
        if collected[2] == sizes:
            reply["files"] = ended["files"]
        else:
            reply |= {"end": "lost", "detail": "the artefact is incomplete"}
    if "files" not in reply:
        collected = (fd, 0, 0)
    parts = [*outputs[:3], collected]
    reply["sizes"] = [size for _, _, size in parts]
    return reply, parts
