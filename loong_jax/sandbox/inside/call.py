"""Calls of a function that a small source defines, in a plain fork of the zygote.

Its process can neither fork nor write a file, and it holds no descriptor but its own pipe. What it
writes there must begin with a random token, which refuses naive forgeries only: code in that
process may find the token, but all it can claim then is the values it returned, and those are
compared outside with answers that never came in here.
"""

import builtins
import cmath  # noqa: F401  imported once here, so that programs find them without a file read
import contextlib
import copy  # noqa: F401
import fractions  # noqa: F401
import json
import math
import os
import resource
import signal
import sys
import time

from loong_jax.sandbox.inside import program, system, usage

PLAIN = (bool, int, float, str)
MAX_INT_BITS = 4096
MAX_DEPTH = 16
# Where no namespace hides the machine, programs may import these and cause these audit events only.
IMPORTS = frozenset(
    {"bisect", "cmath", "collections", "copy", "fractions", "functools", "heapq", "itertools"}
    | {"math", "operator", "random", "re", "string", "typing"}
)
EVENTS = frozenset(["compile", "exec", "builtins.id", "object.__getattr__", "object.__setattr__"])
HIDDEN = (
    *("os", "posix", "signal", "_signal", "gc", "select", "sys", "ctypes", "_ctypes"),
    *("threading", "_thread", "resource", "mmap"),
)


def run(head, blob, state):
    """Runs a call in a fork; returns how it ended, and where its report is."""
    limits = head["limits"]
    token = os.urandom(16)
    read_end, write_end = os.pipe()
    start = time.monotonic()
    try:
        pid = os.fork()
    except OSError as error:  # the machine is out of processes or memory: not the program's fault
        os.close(read_end)
        os.close(write_end)
        return {"end": "lost", "detail": f"fork: {error}"}, []
    if pid == 0:
        try:
            child(head, blob, write_end, token, state)
        finally:
            os._exit(71)
    os.close(write_end)
    watch = usage.Watch(state, limits, start, 0.0, 0)
    ((report, _, size),), end = watch.drain([read_end], [limits["result_bytes"] + len(token)])
    has_token = os.pread(report, len(token), 0) == token
    if end == "closed" and not has_token and not has_ended(pid, watch):
        end = "wall"  # it closed the pipe itself and lived on
    os.close(read_end)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    reply = {"end": end, "cpu_s": used.ru_utime + used.ru_stime}
    reply["wall_s"] = time.monotonic() - start
    parts = [(report, 0, 0)]
    if end == "closed":
        code = os.waitstatus_to_exitcode(status)
        if has_token:
            reply["end"] = "exited"
            parts = [(report, len(token), size - len(token))]
        elif code in (-signal.SIGXCPU, -signal.SIGPROF):
            reply["end"] = "cpu"
        else:
            reply["detail"] = f"exit status {code}" if code >= 0 else f"signal {-code}"
            reply["end"] = "crashed" if code or not size else "forged"
    reply["sizes"] = [0, 0, parts[0][2], 0]
    return reply, parts


def has_ended(pid, watch):
    """Waits for a process that closed its pipe without a reply, no longer than it may live."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= watch.deadline:
            return False
        time.sleep(0.001)
    return True


# ---- Below: the process of one call. ----


def child(head, blob, write_end, token, state):
    limits = head["limits"]
    size = os.fstat(blob).st_size
    request = {"limits": limits, "guard": head["guard"]} | json.loads(os.pread(blob, size, 0))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, write_end)
    os.closerange(write_end + 1, 1024)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
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
    if state.filter:
        program.drop_powers(state.filter)
    sink = Sink(limits["output_bytes"])
    sys.stdin, sys.stdout, sys.stderr = open(os.devnull), sink, sink  # noqa: SIM115
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = None
    if request["guard"]:
        sys.addaudithook(guard)
        sys.modules.update(dict.fromkeys(HIDDEN))  # type: ignore[arg-type]  makes imports fail
    report: dict[str, object]
    try:
        report = {"values": call_program(request)}
    except SyntaxError as error:
        report = {"error": f"SyntaxError: {error.msg} (line {error.lineno})"}
    except (RecursionError, MemoryError) as error:
        report = {"error": type(error).__name__}
    except BaseException as error:  # SystemExit ends the program, not the reply
        report = {"error": describe(error)}
    report["output"] = sink.text()
    system.write_all(write_end, token + json.dumps(report).encode())
    os._exit(0)


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
    """A stream for a program's output: the first `max_bytes` are kept, the rest is dropped."""

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
