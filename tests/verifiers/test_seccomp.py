"""The filter, executed by an interpreter of BPF, against the kernel's own table of calls."""

import re
import struct
from pathlib import Path

import pytest

from loong_jax.sandbox import seccomp

ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}


def answer(code: bytes, arch: int, number: int) -> int:
    """What the kernel does with one call: just the four instructions that the filter uses."""
    data = {0: number, 4: arch}
    accumulator, at = 0, 0
    while True:
        opcode, if_true, if_false, k = struct.unpack_from("HBBI", code, 8 * at)
        at += 1
        if opcode == 0x20:
            accumulator = data[k]
        elif opcode == 0x15:
            at += if_true if accumulator == k else if_false
        elif opcode == 0x35:
            at += if_true if accumulator >= k else if_false
        elif opcode == 0x06:
            return k
        else:
            raise AssertionError(f"unknown opcode {opcode:#x}")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_exactly_the_denied_calls_are_refused(machine):
    column, arch = seccomp.ARCHITECTURES[machine]
    code = seccomp.filter_bytes(machine)
    denied = {row[column] for row in seccomp.DENIED.values()} - {None}
    refused = {number for number in range(600) if answer(code, arch, number) != ALLOW}
    assert refused == denied
    assert all(answer(code, arch, number) == EPERM for number in denied)


def test_other_interfaces_of_the_kernel_are_closed():
    code = seccomp.filter_bytes("x86_64")
    assert answer(code, 0x40000003, 1) == KILL  # 32-bit calls have numbers of their own
    assert answer(code, 0xC000003E, 0x40000000 | 39) == EPERM  # x32
    assert seccomp.filter_bytes("mips") is None


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_numbers_are_those_of_the_kernel_headers(machine):
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    text = header.read_text()
    pairs = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    known = {name: int(number) for name, number in pairs}
    column, _ = seccomp.ARCHITECTURES[machine]
    for name, row in seccomp.DENIED.items():
        if name in known:
            assert row[column] == known[name], name
    missing = {name for name, row in seccomp.DENIED.items() if row[column] is not None} - set(known)
    assert missing <= {"memfd_secret", "process_madvise", "mount_setattr"}  # newer than the header
