"""Checks of this machine: software, devices, memory, sandbox; each shortcoming with its remedy.

Knows: options, process, sandbox.
"""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from loong_jax import options, process

Status = Literal["ok", "note", "missing"]  # note: works, with less; missing: required and absent

_GIB = 2**30
_QUICKSTART_MEMORY = 6 * _GIB
_QUICKSTART_DISK = 3 * _GIB
_DEVICE_TIMEOUT_S = 90.0
_INSTALL = ".venv/bin/python -m pip install -c constraints.txt -e '.[{}]'"

# Asked in a child process: a device that is taken, or a driver that hangs, costs us nothing.
_ASK_DEVICES = """
import json, jax
devices = jax.local_devices()
print(json.dumps({"platform": devices[0].platform, "kind": devices[0].device_kind,
                  "num_devices": len(devices)}))
"""


class Check(NamedTuple):
    """One thing looked at: what was found, and what to do where that falls short."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def _seen(name: str, found: str, remedy: str = "") -> Check:
    """A check of what works, if with less where there is a remedy."""
    return Check(name, "note" if remedy else "ok", found, remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Says what this machine can and cannot do, and what to do about it.

    The exit status is 0 unless something required is missing. Example: loong doctor --json
    """

    json: bool = False  # print one JSON object instead of lines for people


def main(arguments: Sequence[str]) -> int:
    chosen = options.parse(DoctorOptions, "loong doctor", arguments)
    checks = examine()
    print(as_json(checks) if chosen.json else as_text(checks))
    return 0 if is_healthy(checks) else 1


def examine() -> list[Check]:
    """All checks, in the order to read them. Takes some seconds, most of them for the devices."""
    return [
        check_python(sys.version_info[:3], sys.executable),
        check_packages(_requirements("")),
        check_devices(ask_devices(), accelerator_hardware()),
        check_cores(process.num_cores()),
        check_memory(available_memory_bytes()),
        check_disk(shutil.disk_usage(".").free),
        check_model_size(available_memory_bytes(), shutil.disk_usage(".").free),
        check_ray(_version("ray")),
        check_isolation(),
        check_compile_cache(process.compile_cache_dir()),
        *(check_extra(extra, _requirements(extra)) for extra in ("tpu", "cuda", "hf", "jetstream")),
    ]


def is_healthy(checks: Sequence[Check]) -> bool:
    """True unless something required is missing."""
    return all(check.status != "missing" for check in checks)


def as_json(checks: Sequence[Check]) -> str:
    found = {"ok": is_healthy(checks), "checks": [check._asdict() for check in checks]}
    return json.dumps(found, indent=1)


def as_text(checks: Sequence[Check]) -> str:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<{width}}  {check.found}")
        if check.remedy:
            lines.append(" " * (width + 11) + check.remedy)
    verdict = "Something required is missing; see above."
    if is_healthy(checks):
        verdict = "This machine can run `loong train quickstart`."
    return "\n".join([*lines, "", verdict])


def check_python(version: tuple[int, int, int], executable: str) -> Check:
    found = "{}.{}.{}".format(*version) + f" ({executable})"
    if version < (3, 11):
        remedy = "loong_jax needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.12"
        return Check("python", "missing", found, remedy)
    return _seen("python", found)


def check_packages(versions: dict[str, str | None]) -> Check:
    """`versions`: what the base install needs, and the version that is there, if any."""
    absent = sorted(name for name, version in versions.items() if version is None)
    if absent or not versions:
        found = f"without {', '.join(absent)}" if absent else "loong_jax itself is not installed"
        return Check("packages", "missing", found, "make setup")
    shown = ", ".join(f"{name} {versions[name]}" for name in ("jax", "flax") if name in versions)
    return _seen("packages", f"all {len(versions)} of the base ({shown})")


def check_devices(devices: dict[str, Any] | str, hardware: Sequence[str]) -> Check:
    """`devices`: what JAX reports, or why it could not; `hardware`: accelerators that are there."""
    if isinstance(devices, str):
        remedy = "Run `JAX_PLATFORMS=cpu loong doctor`; if that works, the accelerator is at fault."
        return Check("devices", "missing", devices, remedy)
    platform, count = devices["platform"], devices["num_devices"]
    found = f"{count} x {devices['kind']} ({platform})"
    if platform != "cpu":
        return _seen("devices", found)
    for kind in hardware:
        extra = {"tpu": "tpu", "gpu": "cuda"}[kind]
        remedy = f"There is a {kind.upper()} that JAX does not use: {_INSTALL.format(extra)}"
        return _seen("devices", found, remedy)
    return _seen("devices", f"{found}; no TPU, no GPU")


def check_cores(count: int) -> Check:
    remedy = "" if count > 1 else "Generation and training overlap from 2 cores on."
    return _seen("cores", str(count), remedy)


def check_memory(available_bytes: int | None) -> Check:
    if available_bytes is None:
        return Check("memory", "note", "unknown on this system")
    remedy = f"The quickstart may take {_QUICKSTART_MEMORY // _GIB} GiB. Close other programs."
    is_enough = available_bytes >= _QUICKSTART_MEMORY
    found = f"{available_bytes / _GIB:.1f} GiB available"
    return _seen("memory", found, "" if is_enough else remedy)


def check_disk(free_bytes: int) -> Check:
    remedy = f"A run wants {_QUICKSTART_DISK // _GIB} GiB. Free some, or work on another disk."
    is_enough = free_bytes >= _QUICKSTART_DISK
    return _seen("disk", f"{free_bytes / _GIB:.1f} GiB free here", "" if is_enough else remedy)


def check_model_size(memory_bytes: int | None, disk_bytes: int) -> Check:
    """The largest models of one's own that this machine can train, by memory and by disk.

    Counted in bytes, for reinforcement learning with a staleness of two in bfloat16: a weight that
    is trained has 16 (itself, gradient and two moments in float32), and 2 in each of three policy
    versions; under LoRA it has 2, and the same versions. Activations and caches come on top. Two
    checkpoints of 12 and the weights at the end are on disk.
    """
    if memory_bytes is None:
        return Check("own model", "note", "unknown: the memory is")
    whole, adapters = memory_bytes / (16 + 3 * 2), memory_bytes / (2 + 3 * 2)
    stored = disk_bytes / (2 * 12 + 4)
    found = (
        f"up to about {min(whole, stored) / 1e9:.1f} billion weights trained whole, "
        f"{adapters / 1e9:.1f} by LoRA in bfloat16 (by bytes of weights alone)"
    )
    remedy = f"The disk is what bounds it: 28 bytes a weight, {disk_bytes / _GIB:.0f} GiB free."
    return _seen("own model", found, remedy if stored < whole else "")


def check_ray(version: str | None) -> Check:
    remedy = "Verifiers then run in local processes. For actors: make setup"
    return _seen("ray", version or "not installed", "" if version else remedy)


def check_isolation() -> Check:
    """The isolation of programs that a policy writes."""
    from loong_jax import sandbox

    isolation = sandbox.isolation(None)
    if isolation.tier == "namespaces":
        return _seen("isolation", f"namespaces ({isolation.name})")
    remedy = (
        "Programs run with limits only. Install bubblewrap (apt-get install bubblewrap) and allow "
        "user namespaces for the wall that holds against attacks."
    )
    return _seen("isolation", f"{isolation.tier}: {isolation.reason}", remedy)


def check_compile_cache(directory: Path) -> Check:
    remedy = "Every start compiles anew. Set JAX_COMPILATION_CACHE_DIR to a writable directory."
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(directory, os.W_OK)
    except OSError:
        is_writable = False
    if not is_writable:
        return _seen("compile cache", f"{directory} not writable", remedy)
    size = sum(path.stat().st_size for path in directory.glob("*") if path.is_file())
    return _seen("compile cache", f"{directory}, {size / 2**20:.0f} MiB")


def check_extra(extra: str, versions: dict[str, str | None]) -> Check:
    """An extra's packages beyond the base; absence is no fault."""
    if not versions or None in versions.values():
        return _seen(f"extra {extra}", "not installed (optional)", _INSTALL.format(extra))
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return _seen(f"extra {extra}", found)


# ---- looking


def ask_devices() -> dict[str, Any] | str:
    """The devices that JAX finds in a child process, or one line on why there was no answer."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _ASK_DEVICES],
            capture_output=True,
            text=True,
            timeout=_DEVICE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"JAX did not answer within {_DEVICE_TIMEOUT_S:.0f} s"
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines()
        return lines[-1] if lines else f"JAX ended with status {answer.returncode}"
    return json.loads(answer.stdout.strip().splitlines()[-1])


def accelerator_hardware() -> list[str]:
    """The accelerators whose device files exist, whether or not JAX can use them."""
    found = []
    if any(Path("/dev").glob("accel*")) or any(Path("/dev/vfio").glob("[0-9]*")):
        found.append("tpu")
    if any(Path("/dev").glob("nvidia[0-9]*")):
        found.append("gpu")
    return found


def available_memory_bytes() -> int | None:
    """Memory that is free to use, by the kernel's estimate and the cgroup's limit."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    available = int(match[1]) * 1024 if match else None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return available
    if limit == "max" or available is None:
        return available
    return min(available, int(limit) - used)


def _requirements(extra: str) -> dict[str, str | None]:
    """Packages that the base (or an extra beyond it) asks for -> the version that is installed."""
    try:
        lines = metadata.requires("loong_jax") or []
    except metadata.PackageNotFoundError:
        return {}
    found = {}
    for line in lines:
        match = re.match(r"([A-Za-z0-9_.-]+)(\[\w+\])?", line)
        of_extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        if match is None or (of_extra[1] if of_extra else "") != extra:
            continue
        name = {"jax[tpu]": "libtpu", "jax[cuda12]": "jax-cuda12-plugin"}.get(match[0], match[1])
        found[name] = _version(name)
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
