"""Programs of every mode on meshes of every kind, traced for CPU devices."""

import jax
import pytest

from loong_jax.errors import ConfigError
from loong_jax.launch.plan import programs
from loong_jax.sharding import make_mesh
from tests.launch.plan.asking import asked


def trace(mode, mesh):
    topology = f"--topology v5e:2x2 --mesh {mesh}" if mesh else "--topology v5e:1x1"
    request = asked(f"tiny {topology} --mode {mode} --length 64")
    num_devices = request.topology.num_devices
    devices = make_mesh(**request.mesh, devices=jax.devices()[:num_devices])
    with jax.set_mesh(devices):
        program = programs.build(request, programs.sharding_rules(request, devices))
        jax.jit(program.function, donate_argnums=program.donated).trace(*program.arguments)


@pytest.mark.parametrize(
    ("mode", "mesh"),
    [
        ("train", ""),
        ("train", "data=4"),
        ("train", "tensor=2,context=2"),
        ("prefill", ""),
        ("prefill", "tensor=4"),
        ("decode", ""),
    ],
)
def test_no_mesh_axis_is_needed(mode, mesh):
    """Weights rest cut over fsdp and expert, and need not where these have one device."""
    trace(mode, mesh)


@pytest.mark.parametrize(
    ("mode", "mesh", "message"),
    [
        ("prefill", "expert=2,context=2", "context=2 cuts sequences"),
        ("decode", "fsdp=2,tensor=2", "fsdp=2 and tensor=2"),
    ],
)
def test_a_mesh_without_a_program_is_refused(mode, mesh, message):
    with pytest.raises(ConfigError, match=message):
        trace(mode, mesh)
