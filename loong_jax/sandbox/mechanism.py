"""Ways to start a zygote: bubblewrap where it is, our own namespaces, or limits alone."""

import dataclasses
import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from loong_jax.child import Child, ChildLost
from loong_jax.errors import VerifierError
from loong_jax.problems.verdict import IsolationTier
from loong_jax.sandbox import inside, seccomp

logger = logging.getLogger(__name__)

TIERS: tuple[IsolationTier, ...] = ("none", "process", "namespaces")  # weakest first
REMEDY = "Install bubblewrap (apt-get install bubblewrap) and allow user namespaces"
_NOBODY = 65534
_PACKAGES = "/packages"
_START_S = 30.0
# Makes modules of what it is sent, runs the last one's main, and leaves no name to import.
_BOOTSTRAP = """
import json, sys, types
size = int.from_bytes(sys.stdin.buffer.read(4), "little")
room, files = json.loads(sys.stdin.buffer.read(size))
package = sys.modules[room] = types.ModuleType(room)
for name, text in files:
    module = types.ModuleType(name)
    setattr(package, name, module)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
del sys.modules[room]
module.main()
"""
# Files of /etc that toolchains read; nothing else of it is there.
_ETC = (
    "alternatives", "ocamlfind.conf", "fonts", "mono", "php", "perl", "R", "racket",
    "swi-prolog", "erlang", "guile", "ghc", "nim", "sbclrc", "emacs", "scala", "crystal",
    "debian_version",
)  # fmt: skip
_ETC_PATTERNS = ("java-*-openjdk", "fpc*.cfg", "ldc2*.conf", "lua*")
_VAR = ("/var/lib/ghc",)  # a toolchain that lies half outside /usr


class BoxLost(VerifierError):
    """The sandbox failed, which says nothing about the program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A way to start a zygote, with or without walls around it."""

    name: Literal["bubblewrap", "own namespaces", "limits"]
    tier: IsolationTier
    interpreter: str
    bwrap: str = ""  # the program, where it is used
    packages: str = ""  # a directory that is mounted at /packages, for calls
    preloaded: tuple[str, ...] = ()  # packages that are imported before the forks
    reason: str = ""  # why it is no better tier

    def command(self, cache: Path | None) -> list[str]:
        flags = "-S" if cache is None else "-B"
        zygote = [self.interpreter, "-I", flags, "-c", _BOOTSTRAP]
        if self.name == "limits":
            return zygote
        tree = _tree(self, cache)
        if self.name == "bubblewrap":
            return [*_bwrap_command(self.bwrap, tree, is_bare=cache is None), *zygote]
        source = resources.files("loong_jax.sandbox").joinpath("launcher.py").read_text()
        plan = json.dumps({"tree": tree, "command": zygote})
        return [self.interpreter, "-I", "-S", "-c", source, plan]

    def start(self, cache: Path | None, group: Mapping[str, int] | None = None) -> Child:
        """Starts a zygote and waits until it is ready; BoxLost with its last words.

        `group` are descriptors of its control group's files, by the zygote's names for them.
        """
        group = dict(group or {})
        popen: dict[str, Any] = {"env": {}, "cwd": "/", "stderr": subprocess.PIPE}
        rules = b""
        if self.tier == "namespaces":
            rules = seccomp.filter_bytes() if cache is None else seccomp.program_filter_bytes()
            if os.geteuid() == 0:  # root escapes RLIMIT_NPROC, and its bwrap is root outside
                popen |= {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        command = self.command(cache)
        try:
            child = Child(command, pass_fds=tuple(group.values()), **popen)
        except OSError as error:
            raise BoxLost(f"the sandbox does not start: {error}. Check {command[0]}.") from error
        deadline = time.monotonic() + _START_S
        setup = {
            "filter": (rules or b"").hex(), "group": group, "samples": cache is not None,
            "packages": _PACKAGES if self.packages else "", "preloaded": self.preloaded,
        }  # fmt: skip
        try:
            child.send(_zygote(), deadline)
            child.send(json.dumps(setup).encode(), deadline)
            child.receive(deadline)
        except (ChildLost, TimeoutError) as error:
            child.kill()
            words = child.last_words()
            child.stop()
            raise BoxLost(f"the sandbox does not start: {words or error!r}") from None
        return child


@functools.cache
def isolation(tier: IsolationTier | None = None, *, for_programs: bool = False) -> Mechanism:
    """The asked or best way that works here: tried once by a start, then remembered.

    Whole programs are always run in namespaces. For calls, that the best tier is "process" is
    logged as a warning, once, with the reason.
    """
    if tier == "none":
        raise VerifierError("tier='none' is no isolation. Ask for 'process' or 'namespaces'.")
    reason = "the process tier was asked for"
    if tier != "process":
        reasons = [] if shutil.which("bwrap") else ["bwrap is not installed"]
        for mechanism in _in_namespaces():
            try:
                mechanism.start(Path("/usr") if for_programs else None).stop()
            except VerifierError as error:
                reasons.append(f"{mechanism.name}: {error}")
            else:
                return mechanism
        reason = " ".join(reasons)[:1000]
        if for_programs or tier == "namespaces":
            raise VerifierError(f"isolation 'namespaces' does not work here: {reason}. {REMEDY}.")
        logger.warning(
            "programs run at isolation 'process', which is no wall against attacks: %s. %s.",
            reason, REMEDY,
        )  # fmt: skip
    return Mechanism(
        name="limits", tier="process", interpreter=os.path.realpath(sys.executable), reason=reason
    )


def required_isolation(min_tier: IsolationTier, tier: IsolationTier | None = None) -> Mechanism:
    """The asked or best isolation here; VerifierError where that is below `min_tier`."""
    if min_tier not in TIERS:
        raise VerifierError(f"min_tier={min_tier!r} is no tier. Choose one of {', '.join(TIERS)}.")
    found = isolation(tier)
    if TIERS.index(found.tier) < TIERS.index(min_tier):
        raise VerifierError(
            f"the sandbox reaches isolation {found.tier!r}, below min_tier={min_tier!r}: "
            f"{found.reason}. {REMEDY}, or accept the lower tier."
        )
    return found


def _in_namespaces() -> Iterator[Mechanism]:
    """All mechanisms that there are, the best first; each with every interpreter that may do.

    Interpreters are ours, then the system's, in case ours lies in a private home.
    """
    candidates = [os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"]
    found = dict.fromkeys(os.path.realpath(path) for path in candidates if os.path.exists(path))
    if bwrap := shutil.which("bwrap"):
        for interpreter in found:
            yield Mechanism(
                name="bubblewrap", tier="namespaces", bwrap=bwrap, interpreter=interpreter
            )
    for interpreter in found:
        yield Mechanism(name="own namespaces", tier="namespaces", interpreter=interpreter)


@functools.cache
def _zygote() -> bytes:
    """The modules of what runs inside, as text.

    Compiled ones would start no faster, and each run took 2 ms of CPU more: what a compilation
    frees is what the forks use without a page fault.
    """
    room = resources.files(inside)
    files = [(name, room.joinpath(f"{name}.py").read_text("utf-8")) for name in inside.ORDER]
    return json.dumps([inside.__name__, files]).encode()


def _tree(how: Mechanism, cache: Path | None) -> list[tuple[str, str, str]]:
    """All of the file tree inside, read-only, in order of making: (kind, source, target).

    For calls that is the system's libraries and the interpreter only.
    """
    entries = []
    programs = () if cache is None else ("/bin", "/sbin", "/libx32")
    for path in ("/usr", "/lib", "/lib32", "/lib64", *programs):
        if os.path.islink(path):
            entries.append(("symlink", os.readlink(path), path))
        elif os.path.isdir(path):
            entries.append(("bind", path, path))
    etc = Path("/etc")
    names = [etc / "ld.so.cache"]
    if cache is not None:
        names += [etc / name for name in _ETC]
        names += [Path(path) for path in _VAR]
        names += [path for pattern in _ETC_PATTERNS for path in sorted(etc.glob(pattern))]
    entries += [("bind", os.path.realpath(path), str(path)) for path in names if path.exists()]
    if not how.interpreter.startswith("/usr/"):
        prefix = os.path.dirname(os.path.dirname(how.interpreter))
        entries.append(("bind", prefix, prefix))
        if (libraries := sysconfig.get_config_var("LIBDIR")) and os.path.isdir(libraries):
            entries.append(("bind", libraries, libraries))
    if how.packages:
        entries.append(("bind", how.packages, _PACKAGES))
    if cache is None:
        return [*entries, ("device", "/dev/null", "/dev/null")]
    for name in ("null", "zero", "full", "random", "urandom"):
        entries.append(("device", f"/dev/{name}", f"/dev/{name}"))
    entries += [("symlink", "/proc/self/fd", "/dev/fd"), ("symlink", "/tmp", "/dev/shm")]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        entries.append(("symlink", f"/proc/self/fd/{number}", f"/dev/{name}"))
    entries += [("dir", "", "/tmp"), ("dir", "", "/app")]
    return [*entries, ("bind", os.path.realpath(cache), "/cache"), ("proc", "", "/proc")]


def _bwrap_command(bwrap: str, tree: list[tuple[str, str, str]], *, is_bare: bool) -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--as-pid-1"]
    options += ["--die-with-parent", "--new-session"]
    options += f"--hostname sandbox --clearenv --uid {_NOBODY} --gid {_NOBODY}".split()
    options += ["--cap-drop", "ALL"]
    options += ["--disable-userns"] if is_bare else ["--cap-add", "CAP_SYS_ADMIN"]
    for kind, source, target in tree:
        option = {"bind": "--ro-bind", "device": "--dev-bind"}.get(kind, f"--{kind}")
        options += [option, source, target] if source else [option, target]
    return [bwrap, *options, "--remount-ro", "/", "--chdir", "/", "--"]
