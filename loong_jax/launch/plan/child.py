"""Compiles one program for a TPU topology, in a process of its own without any TPU.

    python -m loong_jax.launch.plan.child REQUEST.json DIRECTORY

Writes DIRECTORY/program.hlo and DIRECTORY/compiled.json. `compiled.py` starts it with the
environment that libtpu needs to load beside no device.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from loong_jax.launch.plan import programs
from loong_jax.launch.plan.request import Request
from loong_jax.sharding import make_mesh

_OUT_OF_MEMORY = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def compile_request(request: Request, directory: Path) -> dict[str, Any]:
    """What `compiled.json` holds; the program's text goes to a file of its own."""
    description = topologies.get_topology_desc(
        request.topology.slice_name, platform="tpu", num_slices=request.topology.num_slices
    )
    mesh = make_mesh(**request.mesh, devices=description.devices)
    rules = programs.sharding_rules(request, mesh)
    result: dict[str, Any] = {
        "coordinates": [
            [getattr(device, "slice_index", 0) or 0, *device.coords[: len(request.topology.shape)]]
            for device in mesh.devices.ravel()
        ],
        "weights": programs.weight_counts(request.config),
    }
    with jax.set_mesh(mesh):
        program = programs.build(request, rules)
        result["arguments"] = programs.bytes_by_kind(program)
        jitted = jax.jit(program.function, donate_argnums=program.donated)
        start = time.perf_counter()
        lowered = jitted.lower(*program.arguments)
        result["lower_s"] = time.perf_counter() - start
        start = time.perf_counter()
        try:
            compiled = lowered.compile(compiler_options=dict(request.compiler_options) or None)
        except jax.errors.JaxRuntimeError as error:
            found = _OUT_OF_MEMORY.search(str(error))
            if found is None:
                raise
            used, limit = (float(found[i]) * _UNITS[found[i + 1]] for i in (1, 3))
            return result | {"out_of_memory": {"used": used, "limit": limit}}
    result["compile_s"] = time.perf_counter() - start
    (directory / "program.hlo").write_text(compiled.as_text(), encoding="utf-8")
    memory = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp", "generated_code")
    result["memory"] = {name: getattr(memory, f"{name}_size_in_bytes") for name in names}
    return result


def main() -> None:
    request_path, directory = map(Path, sys.argv[1:])
    request = Request.from_json(json.loads(request_path.read_text(encoding="utf-8")))
    result = compile_request(request, directory)
    (directory / "compiled.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
