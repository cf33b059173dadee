"""Hostile programs, which `hostile.toml` lists, and what each of them may end with."""

import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple

LIMIT_MB = 200  # of the tests' memory limit
_ATTEMPT = """\
import ctypes, errno, glob, mmap, os, resource, signal, socket, subprocess, sys
import threading, time
libc = ctypes.CDLL(None, use_errno=True)
def act():
%s
try:
    worked = act()
except BaseException as error:
    worked = print(repr(error), file=sys.stderr)
print('PWNED' if worked else 'survived')
"""


class Hostile(NamedTuple):
    number: int
    name: str
    source: str
    statuses: tuple[str, ...]
    call: bool
    outside: str


def _read(number, name, source="", attempt="", statuses=("OK",), call=False, outside=""):
    source = source.replace("MINUSES", "-" * 200_000) or _ATTEMPT % textwrap.indent(
        attempt.strip(), "    "
    )
    return Hostile(number, name, source, tuple(statuses), call, outside)


_TEXT = Path(__file__).with_name("hostile.toml").read_text(encoding="utf-8")
HOSTILE = [_read(**entry) for entry in tomllib.loads(_TEXT)["programs"]]
