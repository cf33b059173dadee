"""Compiles the programs of a mode for a TPU topology, in a process of its own without any TPU.

    python -m loong_jax.plan.child PARENT REQUEST.json DIRECTORY

Writes DIRECTORY/PROGRAM.hlo for each and DIRECTORY/compiled.json. `compiled.py` starts it with the
environment that libtpu needs to load beside no device. It ends when the process PARENT does.
"""

import ctypes
import json
import math
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from loong_jax.plan import counts, programs
from loong_jax.plan.programs import Program
from loong_jax.plan.request import Request
from loong_jax.sharding import make_mesh

_OUT_OF_MEMORY = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm")
_TOO_MANY_TEMPORARIES = re.compile(
    r"HLO temporaries \(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)"
)
_PR_SET_PDEATHSIG = 1  # of Linux' prctl
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def compile_request(request: Request, directory: Path) -> dict[str, Any]:
    """The content of `compiled.json`; the text of a program goes to a file of its own."""
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


def _compile(program: Program, request: Request, text: Path) -> dict[str, Any]:
    result: dict[str, Any] = {
        "runs": program.runs,
        "resident": dict(program.resident),
        "arguments": programs.bytes_by_kind(program),
        "host_bytes": programs.host_bytes(program),
        "shardings": programs.shardings(program),
    }
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
