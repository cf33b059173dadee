"""Ctrl-C and SIGTERM: alike for every command, and between two steps of a loop."""

import os
import signal
import subprocess
import sys

import pytest

from loong_jax import interrupts


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def ended_by(body):
    """Which interrupt ended `body` under our handlers."""
    try:
        with interrupts.handled():
            body()
    except KeyboardInterrupt as error:
        return type(error)
    raise AssertionError("nothing ended it")


def test_sigterm_is_an_interrupt_of_its_own_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert ended_by(terminate) is interrupts.Terminated
    assert ended_by(lambda: os.kill(os.getpid(), signal.SIGINT)) is KeyboardInterrupt
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_between_steps_a_signal_waits_for_the_end_of_one():
    done = []

    def loop():
        with interrupts.between_steps():
            interrupts.let_through()
            terminate()
            assert interrupts.is_waiting()
            done.append("the rest of the step")
            interrupts.let_through()
            done.append("the next step")

    assert ended_by(loop) is interrupts.Terminated
    assert done == ["the rest of the step"]
    assert not interrupts.is_waiting()


@pytest.mark.parametrize("signals", [(0, 1), (1, 2)])  # before the first step; a second time
def test_where_nothing_waits(signals):
    steps, count = signals

    def loop():
        with interrupts.between_steps():
            for _ in range(steps):
                interrupts.let_through()
            for _ in range(count):
                terminate()
            raise AssertionError("the last SIGTERM waited")

    assert ended_by(loop) is interrupts.Terminated


def test_a_signal_in_the_last_step_is_not_lost():
    def loop():
        with interrupts.between_steps():
            interrupts.let_through()
            terminate()
        raise AssertionError("it was")

    assert ended_by(loop) is interrupts.Terminated


WITH_RAY = """
import os, signal
from loong_jax import cli
from loong_jax.verifiers.ray_start import start_ray

def run(arguments):
    start_ray(num_cpus=1)
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError

cli.COMMANDS["train"] = cli.Command(usage="", summary="", run=run, resumes=True)
raise SystemExit(cli.main(["train"]))
"""


def test_a_command_with_ray_ends_in_one_line():
    done = subprocess.run(
        [sys.executable, "-c", WITH_RAY], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 143
    assert done.stderr == "loong train: terminated; the same command goes on from what is saved\n"
