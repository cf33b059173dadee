"""System calls, frames and files in memory, for which Python has no function.

A frame to or from the zygote is a 4-byte little-endian length and that many bytes: one line of
JSON, then raw bytes whose sizes the JSON gives. What programs are given and what they write passes
through files in memory and one buffer that no fork inherits, so nothing of a run is left in the
memory that the next one starts with.
"""

import ctypes
import json
import mmap
import os
import signal

LIBC = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock, as a fork must
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, -1)
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}.get(os.uname().machine, -1)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MNT_DETACH = 2
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 4, 22, 38, 47
PR_SET_PDEATHSIG = 1
CHUNK = 1 << 16
SCRATCH = mmap.mmap(-1, CHUNK)
SCRATCH.madvise(mmap.MADV_DONTFORK)


def clone(flags):
    pid = LIBC.syscall(SYS_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def mount(source, target, kind, flags, data=""):
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    if LIBC.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]) == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind or 'bind'} on {target}: {os.strerror(code)}")


def read_frame(stream):
    head = stream.read(4)
    return None if len(head) < 4 else stream.read(int.from_bytes(head, "little"))


def write_frame(stream, header, parts):
    """A frame of a header and parts of files: (descriptor, offset, size)."""
    body = json.dumps(header).encode() + b"\n"
    size = len(body) + sum(size for _, _, size in parts)
    stream.write(size.to_bytes(4, "little") + body)
    stream.flush()
    for fd, offset, size in parts:
        copy_part(stream.fileno(), fd, offset, size)


def read_request():
    """The header of the next frame on descriptor 0, and a file in memory with the rest of it."""
    size = b""
    while len(size) < 4:
        more = os.read(0, 4 - len(size))
        if not more:
            return None
        size += more
    left, header, is_read = int.from_bytes(size, "little"), b"", False
    blob = os.memfd_create("request", os.MFD_CLOEXEC)
    view = memoryview(SCRATCH)
    while left:
        count = os.readv(0, [view[: min(left, CHUNK)]])
        if not count:
            return None
        left -= count
        start = 0
        if not is_read:
            end = SCRATCH.find(b"\n", 0, count)
            is_read, start = end >= 0, end + 1 if end >= 0 else count
            header += SCRATCH[: end if end >= 0 else count]
        write_all(blob, view[start:count])
    return json.loads(header), blob


def write_all(fd, view):
    while view:
        view = view[os.write(fd, view) :]


def copy_part(target, source, offset, size):
    """Copies a part of one file into another without reading it into our memory."""
    while size:
        count = os.sendfile(target, source, offset, size)
        if not count:
            raise OSError("a file in memory is too short")
        offset, size = offset + count, size - count
