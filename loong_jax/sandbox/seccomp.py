"""A seccomp filter for the sandbox: system calls that no small program needs answer EPERM.

A deny list, on top of namespaces and resource limits: it takes away the network altogether, other
processes' memory, new namespaces and mounts, and the kernel's larger attack surfaces.
"""

import platform
import struct

# name: (x86_64, aarch64); None where the architecture has no such call
DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "kcmp": (312, 272),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "mknod": (133, None), "mknodat": (259, 33),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "syslog": (103, 116), "acct": (163, 89),
    "quotactl": (179, 60), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "personality": (135, 92),
    "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None),
    "fanotify_init": (300, 262), "mbind": (237, 235), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
}  # fmt: skip
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF opcodes
_ALLOW, _EPERM, _ENOSYS, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_X32_BIT = 0x40000000  # calls of the x32 interface carry this bit
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET

# Whole programs talk to themselves over sockets and set their threads' policy; what they may not
# do with such calls is refused by argument. clone3 hides its flags in memory, so it is absent and
# libraries fall back to clone.
_PROGRAMS_MAY = frozenset(
    {"socket", "socketpair", "connect", "bind", "sched_setscheduler", "mbind", "personality"}
)
_SOCKET_DOMAINS = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_CALLS = {"clone": (56, 220), "clone3": (435, 435), "ioctl": (16, 29), "socket": (41, 198)}

_Code = list[tuple[int, int, int, int]]


def filter_bytes(machine: str | None = None) -> bytes | None:
    """The BPF program for `bwrap --seccomp`, or None on an architecture without a table."""
    return _filter(frozenset(), None, machine)


def program_filter_bytes(machine: str | None = None) -> bytes | None:
    """The filter of whole programs: they may have threads, children and sockets of their own."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column = ARCHITECTURES[machine][0]
    number = {name: numbers[column] for name, numbers in _CALLS.items()}
    rules = _unless_any_bit(number["clone"], 0, _NEW_NAMESPACES)
    rules += [(_EQUAL, 0, 1, number["clone3"]), (_RETURN, 0, 0, _ENOSYS)]
    rules += _unless_equal(number["ioctl"], 1, _TERMINAL_INJECTION, is_allowed=False)
    rules += _unless_equal(number["socket"], 0, _SOCKET_DOMAINS, is_allowed=True)
    return _filter(_PROGRAMS_MAY, rules, machine)


def _filter(allowed: frozenset[str], rules: _Code | None, machine: str | None) -> bytes | None:
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column, audit_arch = ARCHITECTURES[machine]
    numbers = [
        number
        for name, row in DENIED.items()
        if name not in allowed and (number := row[column]) is not None
    ]
    code: _Code = [
        (_LOAD, 0, 0, 4),  # architecture
        (_EQUAL, 1, 0, audit_arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # number of the call
        (_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _EPERM),
        *(rules or []),
    ]
    for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
        code.append((_EQUAL, left, 0, number))
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _argument(index: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, 16 + 8 * index)  # its low half: the kernel ignores the other for these


def _unless_any_bit(number: int | None, index: int, bits: int) -> _Code:
    """Refuses the call if its argument has one of these bits, else allows it."""
    assert number is not None
    tail: _Code = [_argument(index), (_ANY_BIT, 0, 1, bits)]
    tail += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(tail), number), *tail]


def _unless_equal(
    number: int | None, index: int, values: tuple[int, ...], *, is_allowed: bool
) -> _Code:
    """Decides the call by whether its argument is one of these values."""
    assert number is not None
    hit, miss = (_ALLOW, _EPERM) if is_allowed else (_EPERM, _ALLOW)
    tail: _Code = [_argument(index)]
    tail += [
        (_EQUAL, left, 0, v) for left, v in zip(range(len(values), 0, -1), values, strict=True)
    ]
    tail += [(_RETURN, 0, 0, miss), (_RETURN, 0, 0, hit)]
    return [(_EQUAL, 0, len(tail), number), *tail]
