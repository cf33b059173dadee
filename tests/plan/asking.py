"""What `loong plan` would ask of the compiler, for a command line or in short; and asking it."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from loong_jax import options
from loong_jax.errors import ConfigError
from loong_jax.models.moe.config import MoEConfig
from loong_jax.plan import command, compiled, request
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


def skip_without_pair() -> None:
    """Of jax and the libtpu that it asks for."""
    try:
        compiled.check_versions()
    except ConfigError as error:
        pytest.skip(str(error))


def printed_for_tpu(module: str, *words: str) -> list[Any]:
    """The lines of JSON that a module prints which compiles for TPUs, in a process of its own."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu to compile")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    child = [sys.executable, "-m", module, *words]
    done = subprocess.run(
        child, env=environment | compiled.ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


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
