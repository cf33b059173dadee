"""Namespaces without bubblewrap: makes them, builds the file tree, and becomes the zygote.

Run as `python -I -S -c SOURCE PLAN` (mechanism.py) by an unprivileged user; standard library only.
PLAN is JSON: `tree`, the (kind, source, target) of what is inside; `command`, what to execute.

The order is that of a container: a user namespace gives the right to make the others; a tmpfs
becomes the root, what is needed is bound into it read-only, and the old root is let go. Of its
capabilities the zygote keeps CAP_SYS_ADMIN over its own namespaces.
"""

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_ALL = 0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 24, 38, 47
CAP_SYS_ADMIN, NUM_CAPS = 21, 64
SYS_PIVOT_ROOT, SYS_CAPSET = {"x86_64": (155, 126), "aarch64": (41, 91)}[os.uname().machine]
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
NOBODY = 65534


def check(result, what):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source, target, kind, flags, data=None):
    words = [None if text is None else text.encode() for text in (source, target, kind, data)]
    check(LIBC.mount(*words[:3], ctypes.c_ulong(flags), words[3]), f"mount on {target}")


def main(plan):
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    uid, gid = os.getuid(), os.getgid()
    check(LIBC.unshare(CLONE_ALL), "unshare")
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1"),
    ):  # fmt: skip
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    pid = os.fork()
    if pid:
        os.closerange(0, 1024)  # the pipes are the zygote's alone
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    build_tree(plan["tree"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        fcntl.ioctl(plain, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    socket.sethostname("sandbox")
    keep_one_power()
    os.execve(plan["command"][0], plan["command"], {})


def build_tree(tree):
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for name in ("old", "new"):
        os.mkdir(f"/tmp/{name}")
    check(LIBC.syscall(SYS_PIVOT_ROOT, b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    mount("/new", "/new", None, MS_BIND)
    for kind, source, target in tree:
        place = "/new" + target
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if kind == "symlink":
            os.symlink(source, place)
        elif kind == "proc":
            os.mkdir(place)
            mount("proc", place, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        elif kind == "dir":
            os.makedirs(place, exist_ok=True)
        else:
            source = "/old" + source
            if os.path.isdir(source):
                os.makedirs(place, exist_ok=True)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
            mount(source, place, None, MS_BIND | MS_REC)
            if kind == "bind":
                make_read_only(place)
    os.chdir("/new")
    check(LIBC.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(LIBC.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")
    mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def make_read_only(place):
    """The mount and those below it; flags that are set already may not be taken away."""
    points = [place]
    with open("/old/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split()[4])
            if point.startswith(place + "/"):
                points.append(point)
    for point in points:
        had = os.statvfs(point).f_flag
        kept = had & (MS_NODEV | MS_NOEXEC | 1024 | 2048) | (MS_RELATIME if had & 4096 else 0)
        try:
            mount(None, point, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)
        except OSError:
            if point == place:
                raise  # one below that we may not even look into is out of a program's reach too


def keep_one_power():
    for number in range(NUM_CAPS):
        if number != CAP_SYS_ADMIN:
            LIBC.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    power = 1 << CAP_SYS_ADMIN
    check(
        LIBC.syscall(SYS_CAPSET, header, (ctypes.c_uint32 * 6)(power, power, power, 0, 0, 0)),
        "capset",
    )
    check(LIBC.prctl(PR_CAP_AMBIENT, 2, CAP_SYS_ADMIN, 0, 0), "ambient capability")
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
