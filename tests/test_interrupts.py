"""Ctrl-C and SIGTERM: alike for every command, and between two steps of a loop."""

import os
import signal
import textwrap

import pytest

from loong_jax import interrupts
from tests.processes import run_python


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


@pytest.mark.parametrize(
    ("steps", "signals", "is_last"),
    [(0, 1, False), (1, 2, False), (1, 1, True)],  # before the first step; a second time; no more
)
def test_where_nothing_waits(steps, signals, is_last):
    def loop():
        with interrupts.between_steps():
            for _ in range(steps):
                interrupts.let_through()
            for _ in range(signals):
                terminate()
            assert is_last, "the last SIGTERM waited"
        raise AssertionError("it was lost")

    assert ended_by(loop) is interrupts.Terminated


COMMAND = """
import atexit, dataclasses, os, signal, sys, threading, time, types
from pathlib import Path
from loong_jax import cli

def terminate():
    os.kill(os.getpid(), signal.SIGTERM)

def run(arguments):
{body}
    raise AssertionError

sys.modules["loong_jax.made"] = types.SimpleNamespace(run=run)
cli.COMMANDS["train"] = dataclasses.replace(cli.COMMANDS["train"], run="made:run")
sys.argv = ["loong", "train", *sys.argv[1:]]
cli.command()
"""
GOES_ON = "loong train: terminated; the same command goes on from what is saved\n"
NOTHING_YET = (
    "loong train: terminated; nothing was saved yet, and the same command starts it anew\n"
)


def ended(body, *words, cwd=None):
    """Exit status and standard error of a command of that body."""
    text = COMMAND.replace("{body}", textwrap.indent(body, "    "))
    done = run_python("-c", text, *words, cwd=cwd)
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [("rl",), ("own.py:rl",), ("--run-dir", "runs/rl")])
def test_what_is_said_of_going_on_is_true(tmp_path, words):
    assert ended("terminate()", *words, cwd=tmp_path) == (143, NOTHING_YET)
    place = tmp_path / "runs/rl/stages/rl/checkpoints"
    (place / "2.orbax-checkpoint-tmp").mkdir(parents=True)  # of a save that was cut off
    (tmp_path / "runs/rl/config.json").write_text("{}")
    assert ended("terminate()", *words, cwd=tmp_path) == (143, NOTHING_YET)
    (place / "2").mkdir()
    assert ended("terminate()", *words, cwd=tmp_path) == (143, GOES_ON)


def test_no_thread_meets_an_interpreter_that_is_taken_down(tmp_path):
    """A thread that only ends with the process, and a crash where JAX ends its programs."""
    body = """
threading.Thread(target=time.sleep, args=(3600,)).start()
atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
terminate()
"""
    assert ended(body, "rl", cwd=tmp_path) == (143, NOTHING_YET)


@pytest.mark.parametrize(
    "body",
    [
        "from loong_jax.verifiers import ray_pool\nray_pool.start_ray(num_cpus=1)\nterminate()",
        # while it starts: its own handler is there, and so are processes
        """
from ray._private import node
from loong_jax.verifiers import ray_pool
start = node.Node.start_ray_processes
def started(self):
    start(self)
    terminate()
node.Node.start_ray_processes = started
ray_pool.start_ray(num_cpus=1)
""",
    ],
)
def test_a_command_with_ray_ends_in_one_line(body, tmp_path):
    assert ended(body, "rl", cwd=tmp_path) == (143, NOTHING_YET)
