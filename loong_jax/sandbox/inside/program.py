"""The process of a program: gives up its powers, then is executed or runs Python in the fork."""

import bisect  # noqa: F401  imported once here, so that programs find them without a file read
import builtins
import collections  # noqa: F401
import contextlib
import ctypes
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import itertools  # noqa: F401
import math
import operator  # noqa: F401
import os
import random
import re  # noqa: F401
import resource
import signal
import string  # noqa: F401
import sys
import threading
import types
import typing  # noqa: F401

from loong_jax.sandbox.inside import system


def become_program(request, files, stdin, pipes, state):
    os.setsid()
    result = pipes[2][1]
    kept = [os.dup(fd) for fd in (stdin, pipes[0][1], pipes[1][1], result)]
    for target, fd in enumerate(kept):
        os.dup2(fd, target, inheritable=True)
    mode = request["mode"]
    source = None
    if mode == "python":
        part = dict(files).get(os.path.basename(request["argv"][0]))
        source = os.pread(part[0], part[2], part[1]) if part else None
    os.closerange(4 if request["reports"] else 3, 1024)
    set_limits(request["limits"])
    drop_powers(state.filter)
    os.chdir("/tmp")
    if mode == "exec":
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execve(request["argv"][0], request["argv"], request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request["env"])
    random.seed()  # what the hook of os.fork does
    gc.enable()
    run_python(request, source, state.streams)


def set_limits(limits):
    as_bytes = limits["address_bytes"] or resource.RLIM_INFINITY
    for name, soft, hard in (
        ("RLIMIT_CPU", math.ceil(limits["cpu_s"]) + 1, math.ceil(limits["cpu_s"]) + 2),
        ("RLIMIT_AS", as_bytes, as_bytes),
        ("RLIMIT_FSIZE", limits["disk_bytes"], limits["disk_bytes"]),
        ("RLIMIT_STACK", limits["stack_bytes"], limits["stack_bytes"]),
        ("RLIMIT_NPROC", limits["pids"] + 3, limits["pids"] + 3),
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_NOFILE", 512, 512),
        ("RLIMIT_MEMLOCK", 1 << 16, 1 << 16),
        ("RLIMIT_MSGQUEUE", 0, 0),
    ):
        number = getattr(resource, name)
        outer = resource.getrlimit(number)[1]
        if outer != resource.RLIM_INFINITY:
            hard = outer if hard == resource.RLIM_INFINITY else min(hard, outer)
            soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(number, (soft, hard))


def drop_powers(rules):
    """Gives up every capability and what the filter refuses, for good."""
    system.LIBC.prctl(system.PR_CAP_AMBIENT, 4, 0, 0, 0)  # clear all
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if system.LIBC.syscall(system.SYS_CAPSET, header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    system.LIBC.prctl(system.PR_SET_DUMPABLE, 1, 0, 0, 0)  # else its own /proc/self is closed to it
    if system.LIBC.prctl(system.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if rules:
        buffer = ctypes.create_string_buffer(rules, len(rules))
        program = (ctypes.c_uint64 * 2)(len(rules) // 8, ctypes.addressof(buffer))
        if system.LIBC.prctl(system.PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")


def run_python(request, source, streams):
    """Runs a script in this very process, as `python3 -I main.py` would. Never returns."""
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams
    path = request["argv"][0]
    sys.argv = list(request["argv"])
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=builtins)
    sys.modules["__main__"] = module
    sys.setrecursionlimit(1000)
    code = 0
    try:
        if source is None:
            with open(path, "rb") as file:
                source = file.read()
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        code = exit_code(error)
    except BaseException as error:
        code = 1
        show(error)
    try:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  waits for threads
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = code or 120
    os._exit(code)


def standard_streams():
    """sys.stdin, stdout and stderr over descriptors 0 to 2, made once: a fork inherits them.

    What kind of file a descriptor is, is asked when a stream is made: so 0 is an empty file and 1
    and 2 are a pipe meanwhile, as they will be for a program.
    """
    empty, (read_end, write_end) = os.memfd_create("stdin"), os.pipe()
    saved = [os.dup(fd) for fd in range(3)]
    for fd, other in enumerate((empty, write_end, write_end)):
        os.dup2(other, fd)
    kinds = ((0, "r", "surrogateescape", -1), (1, "w", "surrogateescape", -1),
             (2, "w", "backslashreplace", 1))  # fmt: skip
    streams = [
        open(fd, mode, encoding="utf-8", errors=errors, buffering=buffering)  # noqa: SIM115
        for fd, mode, errors, buffering in kinds
    ]
    for fd, other in enumerate(saved):
        os.dup2(other, fd)
    for fd in (empty, read_end, write_end, *saved):
        os.close(fd)
    return streams


def exit_code(error):
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        print(error.code, file=sys.stderr)
    return 1


def show(error):
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        frames = error.__traceback__
        sys.excepthook(type(error), error, frames.tb_next if frames else None)
