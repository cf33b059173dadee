"""What `loong plan` would ask of the compiler, for a command line or in short."""

from loong_jax import options
from loong_jax.models.moe.config import MoEConfig
from loong_jax.plan import command, request
from loong_jax.plan.analytic import Estimate
from loong_jax.plan.request import Request
from loong_jax.plan.topology import Topology

V5P = Topology.parse("v5p:2x2x1")


def asked(line: str) -> Request:
    chosen = options.parse(command.PlanOptions, "loong plan", line.split())
    topology = Topology.parse(chosen.topology)
    config = command.make_config(chosen)
    mesh = command.choose_mesh(chosen, config, topology)
    return command.make_request(chosen, config, topology, mesh)


def ranked(line: str) -> list[Estimate]:
    chosen = options.parse(command.PlanOptions, "loong plan", line.split())
    config = command.make_config(chosen)
    return command.ranked(chosen, config, Topology.parse(chosen.topology))


def make_request(**changes) -> Request:
    fields = dict(
        model="tiny",
        config=MoEConfig.tiny(),
        topology=V5P,
        mode="train",
        mesh=request.parse_mesh("expert=4", V5P),
        batch=8,
        length=64,
    )
    return Request(**(fields | changes))
