"""Programs of every mode on meshes of every kind, traced for CPU devices."""

import jax
import pytest

from loong_jax.launch.plan import programs
from loong_jax.sharding import make_mesh
from tests.launch.plan.asking import asked


@pytest.mark.parametrize(
    "line",
    [
        "--topology v5e:1x1 --mode train",
        "--topology v5e:2x2 --mode train --mesh data=4",
        "--topology v5e:2x2 --mode train --mesh tensor=2,context=2",
        "--topology v5e:1x1 --mode prefill",
        "--topology v5e:2x2 --mode prefill --mesh tensor=4",
        "--topology v5e:2x2 --mode prefill --mesh expert=2,context=2",
        "--topology v5e:1x1 --mode decode",
        "--topology v5e:2x2 --mode decode --mesh fsdp=2,tensor=2 --tensor-cuts heads",
    ],
)
def test_no_mesh_axis_is_needed(line):
    """Weights rest cut over fsdp and expert, and need not where these have one device."""
    trace(f"tiny {line} --length 64")


@pytest.mark.parametrize(
    "line",
    [
        "--mode train --mesh fsdp=2,expert=4",
        "--mode decode --mesh expert=4,tensor=2 --num-drafts 1 --num-steps 2",
    ],
)
def test_a_model_of_n_grams_has_every_program(line):
    trace(f"longcat-flash-lite --num-layers 1 --topology v5e:2x4 {line} --length 512")


def trace(line):
    request = asked(line)
    devices = jax.devices()[: request.topology.num_devices]
    mesh = make_mesh(**request.mesh, devices=devices)
    with jax.set_mesh(mesh):
        program = programs.build(request, programs.sharding_rules(request, mesh))
        jax.jit(program.function, donate_argnums=program.donated).trace(*program.arguments)
