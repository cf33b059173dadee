"""Executes rationales, which are third-party Python programs, with the packages they declare.

They run in the sandbox (tier "namespaces" only: in the weaker one nothing may be
imported), where one directory of packages is mounted read-only besides. Common packages are
imported once, before the forks, so a run does not pay for them.
"""

import dataclasses
import functools
import importlib.metadata
import re
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path

from loong_jax.errors import VerifierError
from loong_jax.sandbox import Limits, Program, ProgramResult, Sandbox

# Not what is slow to import and rare. Each is tried; where one is missing the others still load.
PRELOADED = ("numpy", "sympy", "networkx", "scipy.stats", "scipy.optimize")
LIMITS = Limits(
    cpu_s=20.0,
    wall_s=90.0,
    memory_bytes=4 * 2**30,
    source_bytes=64 * 2**10,
    result_bytes=2**19,
    output_bytes=64 * 2**10,
)
# The text travels as an argument, so that it runs as `__main__` with names of its own.
_DRIVER = """
import sys
def f(source):
    try:
        exec(compile(source, '<rationale>', 'exec'), {'__name__': '__main__'})
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return True
"""
_MISSING = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_MAX_CHARS = 300_000  # some rationales hold their table of data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """The output of a rationale, or the reason why it did not run to its end."""

    output: str = ""
    missing: str = ""  # a package that is not installed: no fault of the rationale
    failure: str = ""  # "error: ValueError: ...", "timeout: CPU time", ...
    is_ours: bool = False  # the sandbox failed, so nothing is known
    cpu_s: float = 0.0

    @property
    def is_done(self) -> bool:
        return not (self.missing or self.failure)


class RationaleRunner:
    """One sandbox with packages. `packages` is a directory as `pip install --target` fills it.

    It must be readable by everybody, since the sandbox runs as an unprivileged user. Left out, it
    is where this interpreter keeps its own packages. The sandbox starts with the first run.
    """

    def __init__(self, packages: Path | str | None = None, limits: Limits = LIMITS):
        self._packages = directory(packages)
        self._limits = limits
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None

    def run(self, source: str, packages: Sequence[str] = ()) -> Execution:
        """Executes a rationale. VerifierError where the sandbox cannot be had at its tier."""
        for requirement in packages:
            name = package_name(requirement)
            if name and name not in installed(self._packages):
                return Execution(missing=name)
        if len(source) > _MAX_CHARS:
            return Execution(failure=f"limit: {len(source)} characters")
        program = Program(source=_DRIVER, arguments=[[source]])
        return _execution(self._open().run([program])[0])

    def close(self) -> None:
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
                self._sandbox = None

    def _open(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                if not self._packages.is_dir():
                    raise VerifierError(
                        f"packages={self._packages} is no directory. Fill one: pip install "
                        f"--target {self._packages} NAMES"
                    )
                self._sandbox = Sandbox(
                    self._limits, min_tier="namespaces", packages=str(self._packages),
                    preloaded=PRELOADED,
                )  # fmt: skip
            return self._sandbox


def directory(packages: Path | str | None) -> Path:
    """The directory of packages: as given, or this interpreter's own."""
    return Path(packages or sysconfig.get_path("purelib")).resolve()


def package_name(requirement: str) -> str:
    """`QuantLib==1.37` as `quantlib`: what is installed is compared by name alone."""
    match = _REQUIREMENT.match(requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


@functools.cache
def installed(packages: Path) -> dict[str, str]:
    """Names and versions of what a directory holds, and of the standard library's modules."""
    found = {
        package_name(d.metadata["Name"]): d.version
        for d in importlib.metadata.distributions(path=[str(packages)])
        if d.metadata["Name"]
    }
    return {package_name(name): "standard library" for name in sys.stdlib_module_names} | found


def _execution(result: ProgramResult) -> Execution:
    if result.status == "ok":
        return Execution(output=result.output, cpu_s=result.cpu_s)
    if match := _MISSING.search(result.detail):
        return Execution(missing=match[1].partition(".")[0], cpu_s=result.cpu_s)
    return Execution(
        output=result.output,
        failure=f"{result.status}: {result.detail}",
        is_ours=result.status in ("lost", "stalled"),
        cpu_s=result.cpu_s,
    )
