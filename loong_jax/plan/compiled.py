"""Ahead-of-time compilation in a child process, and what comes back from it.

libtpu compiles for TPUs that are not there. It must be the one that `jax[tpu]` pairs with this
jaxlib, and a process may load it once only, so each mode gets a process:

    python -m loong_jax.plan.compiled PARENT REQUEST.json DIRECTORY

It writes DIRECTORY/PROGRAM.hlo for each program and DIRECTORY/compiled.json, and ends when the
process PARENT does.
"""

import ctypes
import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from loong_jax import configs
from loong_jax.errors import ConfigError, LoongError
from loong_jax.plan.request import Request
from loong_jax.sharding import make_mesh

# Without a device to claim, without asking a metadata server, beside other loads of libtpu.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class CompilerError(LoongError):
    """The compiler refused the program or took too long."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled program and its account; `text` is None where it does not fit the memory.

    `resident` are bytes by kind that lie on a device beside it; a step calls it `runs` times, not
    at all what is compiled for its memory alone.
    """

    text: str | None
    memory: Mapping[str, float]  # bytes: argument, output, alias, temp, generated_code
    arguments: Mapping[str, float]  # bytes of the arguments by kind
    coordinates: tuple[tuple[int, ...], ...]  # of each device, in the order of the mesh
    shardings: Mapping[str, str]  # mesh axes of each dimension of each argument
    weights: Mapping[str, float]  # numbers of weights: total, experts, embedding, active
    out_of_memory: Mapping[str, float] | None  # bytes: used, limit
    compile_s: float | None
    resident: Mapping[str, float] = dataclasses.field(default_factory=dict)
    runs: float = 1
    name: str = "step"
    host_bytes: float = 0.0  # for each device, of the arguments in host memory


def compile_ahead(
    request: Request, *, timeout_s: float, keep: Path | None = None
) -> list[Compiled]:
    """Compiles the request's programs; the files of the child stay in `keep` if given.

    Raises ConfigError where libtpu is missing or not this jaxlib's, CompilerError where the
    compiler fails or does not end in time.
    """
    check_versions()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) if keep is None else keep
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "request.json"
        path.write_text(json.dumps(request.to_json()), encoding="utf-8")
        child = [sys.executable, "-m", "loong_jax.plan.compiled"]
        command = [*child, str(os.getpid()), str(path), str(directory)]
        hidden = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")  # of the caller's own programs
        environment = {k: v for k, v in os.environ.items() if k not in hidden} | ENVIRONMENT
        try:
            kept: Any = dict(capture_output=True, text=True, timeout=timeout_s, check=False)
            done = subprocess.run(command, env=environment, **kept)
        except subprocess.TimeoutExpired as error:
            raise CompilerError(
                f"compiling took longer than {timeout_s:.0f} s. Raise --timeout-s, or plan fewer "
                "layers first."
            ) from error
        if done.returncode:
            if os.environ.get("LOONG_TRACEBACK"):
                print(done.stderr, file=sys.stderr)
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            said = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
            what = (said or lines or ["it said nothing"])[-1]
            raise CompilerError(
                f"the compiler's process ended with {done.returncode}: {what[:2000]} Run the same "
                "with LOONG_TRACEBACK=1 to see where."
            )
        return load(directory)


def load(directory: Path) -> list[Compiled]:
    """Reads the files that the child wrote to its directory."""
    result = json.loads((directory / "compiled.json").read_text(encoding="utf-8"))
    absent = {"memory": {}, "out_of_memory": None, "compile_s": None}
    kept = {field.name for field in dataclasses.fields(Compiled)}
    return [
        Compiled(
            text=(directory / f"{name}.hlo").read_text("utf-8") if "memory" in found else None,
            coordinates=tuple(map(tuple, result["coordinates"])),
            weights=result["weights"],
            name=name,
            **absent | {key: value for key, value in found.items() if key in kept},
        )
        for name, found in result["programs"].items()
    ]


def check_versions() -> None:
    """Refuses a missing libtpu and one that jax[tpu] does not pair with this jax."""
    pairs = (re.match(r"libtpu\s*==\s*([\d.*]+)", one) for one in metadata.requires("jax") or ())
    wanted = next((pair[1] for pair in pairs if pair), None)  # `0.0.42.*`; jax may name none
    try:
        found = metadata.version("libtpu")
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            "libtpu is not installed, and it is what compiles for TPUs. Install the extra: "
            "pip install -c constraints.txt -e '.[tpu]' (no TPU is needed)."
        ) from error
    if wanted and not re.fullmatch(wanted.replace(".", r"\.").replace(r"\.*", r"(\..*)?"), found):
        raise ConfigError(
            f"libtpu {found} is not the one that jax {metadata.version('jax')} pairs, {wanted}. "
            f"Install it: pip install 'libtpu=={wanted}'."
        )


def versions() -> dict[str, str]:
    """The versions of packages that decide a plan."""
    known = configs.versions()
    kept = {name: known[name] for name in ("loong_jax", "jax", "jaxlib") if name in known}
    return kept | {"libtpu": metadata.version("libtpu")}


# ---- in the child

_OUT_OF_MEMORY = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm")
_TOO_MANY_TEMPORARIES = re.compile(
    r"HLO temporaries \(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)"
)
_PR_SET_PDEATHSIG = 1  # of Linux' prctl
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def compile_request(request: Request, directory: Path) -> dict[str, Any]:
    """The content of `compiled.json`; the text of a program goes to a file of its own."""
    from jax.experimental import topologies

    from loong_jax.plan import counts, programs

    topology = request.topology
    of_one_chip = {"chips_per_host_bounds": (1, 1, 1)} if math.prod(topology.shape) == 1 else {}
    description = topologies.get_topology_desc(
        topology.slice_name, platform="tpu", num_slices=topology.num_slices, **of_one_chip
    )
    mesh = make_mesh(**request.mesh, devices=description.devices)
    rules = programs.sharding_rules(request, mesh)
    result: dict[str, Any] = {
        "coordinates": [
            [getattr(device, "slice_index", 0) or 0, *device.coords[: len(topology.shape)]]
            for device in mesh.devices.ravel()
        ],
        "weights": counts.of(programs.config_of(request), drafts=request.num_drafts > 0).named(),
    }
    with jax.set_mesh(mesh):
        result["programs"] = {
            name: _compile(program, request, directory / f"{name}.hlo")
            for name, program in programs.build(request, rules).items()
        }
    return result


def _compile(program: Any, request: Request, text: Path) -> dict[str, Any]:
    result: dict[str, Any] = program.account()
    start = time.perf_counter()
    lowered = program.lower()
    result["lower_s"] = time.perf_counter() - start
    start = time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options=dict(request.compiler_options) or None)
    except jax.errors.JaxRuntimeError as error:
        needed = out_of_memory(str(error))
        if needed is None:
            raise
        return result | {"out_of_memory": needed}
    result["compile_s"] = time.perf_counter() - start
    text.write_text(compiled.as_text() or "", encoding="utf-8")
    memory = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp", "generated_code")
    result["memory"] = {name: getattr(memory, f"{name}_size_in_bytes") for name in names}
    return result


def out_of_memory(message: str) -> dict[str, float] | None:
    """Bytes used and their limit out of the compiler's refusal, None where it is another one.

    The form that speaks of temporary arrays counts arguments as well: over different caches it
    exceeds the arguments by the same amount.
    """
    for form in (_OUT_OF_MEMORY, _TOO_MANY_TEMPORARIES):
        found = form.search(message)
        if found:
            used, limit = (float(found[i]) * _UNITS[found[i + 1]] for i in (1, 3))
            return {"used": used, "limit": limit}
    return None


def end_with(parent: int) -> None:
    """Has Linux kill this process when its parent ends, however that ends."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which asked for this program, has ended.")


def main() -> None:
    end_with(int(sys.argv[1]))
    request_path, directory = map(Path, sys.argv[2:])
    request = Request.from_json(json.loads(request_path.read_text(encoding="utf-8")))
    result = compile_request(request, directory)
    (directory / "compiled.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
