"""How processes meet, and what one process alone does without."""

import os
import signal

import pytest

from loong_jax.errors import ConfigError
from loong_jax.run import distributed
from loong_jax.run.distributed import Preemption, Processes, initialize_arguments

ENVIRONMENT = {
    "JAX_COORDINATOR_ADDRESS": "10.0.0.1:99",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "2",
}
MET = {"coordinator_address": "10.0.0.1:99", "num_processes": 4, "process_id": 2}


def arguments(environment=None, *, has_tpu=False, **processes):
    return initialize_arguments(Processes(**processes), environment or {}, has_tpu=has_tpu)


def test_a_tpu_finds_out_by_itself_and_nothing_else_does():
    assert arguments(has_tpu=True) == {}
    assert arguments({"JAX_PLATFORMS": "tpu,cpu"}, has_tpu=True) == {}
    assert arguments({"JAX_PLATFORMS": "cpu"}, has_tpu=True) is None  # compiling ahead of time
    assert arguments({"JAX_PLATFORMS": "proxy"}, has_tpu=True) is None  # one controller
    assert arguments() is None


def test_elsewhere_environment_or_flags_say_who_this_is():
    assert arguments(ENVIRONMENT) == MET
    assert arguments(ENVIRONMENT, has_tpu=True) == MET
    assert arguments(ENVIRONMENT, index=3) == MET | {"process_id": 3}
    assert arguments(coordinator="10.0.0.1:99", count=4, index=2) == MET
    assert arguments(count=1) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"JAX_PROCESS_ID": ""}, "JAX_PROCESS_ID is missing"),
        ({"JAX_COORDINATOR_ADDRESS": "", "JAX_PROCESS_ID": ""}, "JAX_COORDINATOR_ADDRESS, JAX_"),
        ({"JAX_PROCESS_ID": "4"}, "process 4 is not one of 0..3"),
        ({"JAX_NUM_PROCESSES": "four"}, "JAX_NUM_PROCESSES='four' is no whole number"),
    ],
)
def test_half_of_it_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        arguments(ENVIRONMENT | changes)


def test_one_process_needs_nothing(monkeypatch, capsys):
    for variable in ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    distributed.initialize()
    assert distributed.is_first()
    assert distributed.all_agree(True)
    assert not distributed.all_agree(False)
    done = []
    distributed.first_does(lambda: done.append(1))
    assert done == [1]

    def refuse():
        raise ConfigError("x=1 is not 2. Use 2.")

    with pytest.raises(ConfigError, match="Use 2"):
        distributed.first_does(refuse)
    distributed.say("alone")
    assert capsys.readouterr().out == "alone\n"
    distributed.shutdown()


def test_sigterm_to_a_process_alone_is_seen_after_the_step_and_only_within():
    before = signal.getsignal(signal.SIGTERM)
    with Preemption() as preemption:
        assert not preemption.reached(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.reached(2)
    assert signal.getsignal(signal.SIGTERM) is before
