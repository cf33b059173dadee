"""Runs inside the sandbox: forks one short-lived process per untrusted program.

This file is sent as text to a bare `python -I -S` (sandbox.py); it imports the standard library
only and nothing of this package. Frames on stdin and stdout are a 4-byte little-endian length and
that many bytes. A request is JSON; a reply is one line of JSON about how the program ended, then
what the program's process wrote to its pipe, which is never interpreted here.

The process of a program can neither fork nor write a file, and it holds no descriptor but its own
pipe. What it writes there must begin with a random token, which refuses naive forgeries only: code
in that process may find the token, but all it can claim then is the values it returned, and
those are compared outside with answers that never came in here.
"""

import bisect  # noqa: F401  imported once here, so that programs find them without a file read
import builtins
import cmath  # noqa: F401
import collections  # noqa: F401
import contextlib
import copy  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import itertools  # noqa: F401
import json
import math
import operator  # noqa: F401
import os
import random  # noqa: F401
import re  # noqa: F401
import resource
import select
import signal
import string  # noqa: F401
import sys
import time
import typing  # noqa: F401

PLAIN = (bool, int, float, str)
NOBODY = 65534
MAX_INT_BITS = 4096
MAX_DEPTH = 16
# Where no namespace hides the machine, programs may import these and cause these audit events only.
IMPORTS = frozenset(
    {"bisect", "cmath", "collections", "copy", "fractions", "functools", "heapq", "itertools"}
    | {"math", "operator", "random", "re", "string", "typing"}
)
EVENTS = frozenset(["compile", "exec", "builtins.id", "object.__getattr__", "object.__setattr__"])


def main(stdin, stdout):
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as pid 1: signals from inside are then ignored
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR)
    if os.getuid() == 0:  # the process tier, started by root
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    sys.setrecursionlimit(1000)
    gc.disable()
    gc.freeze()
    send(stdout, {"ready": True, "uid": os.getuid(), "pid": os.getpid()}, b"")
    while True:
        head = stdin.read(4)
        if len(head) < 4:
            return
        request = json.loads(stdin.read(int.from_bytes(head, "little")))
        reply, payload = run_program(request, null)
        send(stdout, reply, payload)


def send(stdout, reply, payload):
    body = json.dumps(reply).encode() + b"\n" + payload
    stdout.write(len(body).to_bytes(4, "little") + body)
    stdout.flush()


def run_program(request, null):
    """Returns how the program ended and what its process wrote, at most `result_bytes`."""
    limits = request["limits"]
    token = os.urandom(16)
    read_end, write_end = os.pipe()
    start = time.monotonic()
    deadline = start + limits["wall_s"]
    try:
        pid = os.fork()
    except OSError as error:  # the machine is out of processes or memory: not the program's fault
        os.close(read_end)
        os.close(write_end)
        return {"end": "lost", "detail": f"fork: {error}"}, b""
    if pid == 0:
        try:
            os.close(read_end)
            child(request, null, write_end, token)
        finally:
            os._exit(71)
    os.close(write_end)
    payload, end = drain(read_end, deadline, limits["result_bytes"] + len(token))
    if end == "closed" and not payload.startswith(token) and not has_ended(pid, deadline):
        end = "wall"  # it closed the pipe itself and lived on
    os.close(read_end)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    reap_orphans()
    reply = {"end": end, "cpu_s": usage.ru_utime + usage.ru_stime}
    reply["wall_s"] = time.monotonic() - start
    if end == "closed":
        code = os.waitstatus_to_exitcode(status)
        if payload.startswith(token):
            reply["end"], payload = "reported", payload[len(token) :]
        elif code in (-signal.SIGXCPU, -signal.SIGPROF):
            reply["end"], payload = "cpu", b""
        else:
            reply["detail"] = f"exit status {code}" if code >= 0 else f"signal {-code}"
            reply["end"], payload = "crashed" if code or not payload else "forged", b""
    else:
        payload = b""
    return reply, payload


def drain(read_end, deadline, max_bytes):
    """Reads the pipe until it closes, the deadline passes, or it holds too much."""
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    chunks, size = [], 0
    while True:
        remaining_ms = math.ceil((deadline - time.monotonic()) * 1000)
        if remaining_ms <= 0 or not poll.poll(remaining_ms):
            return b"", "wall"
        chunk = os.read(read_end, 65536)
        if not chunk:
            return b"".join(chunks), "closed"
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            return b"", "output"


def has_ended(pid, deadline):
    """Waits for a process that closed its pipe without a reply, no longer than it may live."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)
    return True


def reap_orphans():
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# ---- Below: the process of one program. ----


def child(request, null, write_end, token):
    limits = request["limits"]
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, write_end)
    os.closerange(write_end + 1, write_end + 64)
    limit(limits)
    sink = Sink(limits["output_bytes"])
    sys.stdin, sys.stdout, sys.stderr = open(os.devnull), sink, sink  # noqa: SIM115
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None
    if request["guard"]:
        sys.addaudithook(guard)
        for name in ("os", "posix", "signal", "_signal", "gc", "select", "sys"):
            sys.modules[name] = None  # type: ignore[assignment]  makes its import fail
    report: dict[str, object]
    try:
        report = {"values": call_program(request)}
    except RecursionError:
        report = {"error": "RecursionError"}
    except MemoryError:
        report = {"error": "MemoryError"}
    except SyntaxError as error:
        report = {"error": f"SyntaxError: {error.msg} (line {error.lineno})"}
    except (
        BaseException
    ) as error:  # SystemExit and KeyboardInterrupt end the program, not the reply
        report = {"error": describe(error)}
    report["output"] = sink.text()
    body = token + json.dumps(report).encode()
    while body:
        body = body[os.write(write_end, body) :]
    os._exit(0)


def limit(limits):
    cpu_s = limits["cpu_s"]
    signal.setitimer(signal.ITIMER_PROF, cpu_s)  # CPU time below a second; its default action kills
    for name, soft, hard in (
        ("RLIMIT_CPU", math.ceil(cpu_s), math.ceil(cpu_s) + 1),
        ("RLIMIT_AS", limits["memory_bytes"], limits["memory_bytes"]),
        ("RLIMIT_FSIZE", 0, 0),
        ("RLIMIT_NPROC", 0, 0),
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_NOFILE", 64, 64),
        ("RLIMIT_MEMLOCK", 0, 0),
        ("RLIMIT_MSGQUEUE", 0, 0),
    ):
        resource.setrlimit(getattr(resource, name), (soft, hard))


def guard(event, args):
    """Refuses what could reach the machine. A hurdle, not a wall: the tier says "process"."""
    if event == "import":
        if args[0].partition(".")[0] in IMPORTS:
            return
    elif event in EVENTS:
        return
    raise PermissionError(f"{event} is not allowed here")


def call_program(request):
    namespace = {"__name__": "program", "__builtins__": builtins}
    exec(compile(request["source"], "<program>", "exec"), namespace)
    if request["entry"] not in namespace:
        raise NameError(f"the program defines no {request['entry']!r}")
    entry = namespace[request["entry"]]
    return [plain(entry(*arguments), 0) for arguments in request["arguments"]]


def plain(value, depth):
    """The value, if JSON carries it as it is; exact types, so that no foreign method is called."""
    kind = type(value)
    if kind is int and value.bit_length() > MAX_INT_BITS:
        raise ValueError(f"an int of {value.bit_length()} bits is above {MAX_INT_BITS}")
    if kind in PLAIN:
        return value
    if kind is not list:
        raise TypeError(f"a {kind.__name__} was returned; int, float, str, bool or list is allowed")
    if depth == MAX_DEPTH:
        raise ValueError(f"lists are nested more than {MAX_DEPTH} deep")
    return [plain(item, depth + 1) for item in value]


def describe(error):
    try:
        return f"{type(error).__name__}: {str(error)[:200]}"
    except BaseException:
        return type(error).__name__


class Sink:
    """What the program prints: the first `max_bytes` are kept, the rest is dropped."""

    def __init__(self, max_bytes):
        self.max_bytes, self.parts, self.size = max_bytes, [], 0

    def write(self, text):
        if self.size < self.max_bytes:
            kept = text[: self.max_bytes - self.size]
            self.parts.append(kept)
            self.size += len(kept)
        return len(text)

    def flush(self):
        pass

    def text(self):
        return "".join(self.parts)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
