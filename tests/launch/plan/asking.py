"""What `loong plan` would ask of the compiler for a command line, for tests of its answer."""

from loong_jax import options
from loong_jax.launch.plan import command
from loong_jax.launch.plan.request import Request
from loong_jax.launch.plan.topology import Topology


def asked(line: str) -> Request:
    chosen = options.parse(command.PlanOptions, "loong plan", line.split())
    topology = Topology.parse(chosen.topology)
    config = command.make_config(chosen)
    mesh = command.choose_mesh(chosen, config, topology)
    return command.make_request(chosen, config, topology, mesh)
