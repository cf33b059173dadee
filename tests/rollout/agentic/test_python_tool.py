"""Programs of the policy in the verifiers' sandbox."""

import threading
import time

import pytest

from loong_jax.errors import VerifierError
from loong_jax.rollout.agentic.agent import PythonTool, Toolbox, ToolError
from loong_jax.sandbox import Limits
from tests.doubles.fake_model import fake_problem

PROBLEM = fake_problem(0)


@pytest.fixture(scope="module")
def python():
    try:
        tool = PythonTool(Limits(cpu_s=1.0, wall_s=3.0), num_sandboxes=1)
    except VerifierError as error:
        pytest.skip(f"no isolation to run programs in: {error}")
    yield tool
    tool.close()


def run(tool, code, timeout_s=20.0):
    return tool.call({"code": code}, problem=PROBLEM, timeout_s=timeout_s)


def test_what_a_program_prints_is_the_answer(python):
    assert Toolbox([python])["python"] is python
    assert run(python, "def g(n):\n    return n * n\nprint(sum(map(g, range(5))))") == "30\n"
    assert run(python, "x = 1") == ""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('so far'); 1 / 0", "so far\nerror: ZeroDivisionError"),
        ("while True: pass", "timeout"),
        ("print(", "SyntaxError"),
        ("open('/etc/passwd').read()", "error"),
        ("import socket; socket.create_connection(('127.0.0.1', 80), 1)", "error"),
    ],
)
def test_a_program_that_fails_is_told_why(python, code, said):
    with pytest.raises(ToolError, match=said):
        run(python, code)


def test_nothing_is_kept_between_calls(python):
    run(python, "kept = 5")
    with pytest.raises(ToolError, match="NameError"):
        run(python, "print(kept)")


def test_a_call_waits_for_a_free_sandbox_no_longer_than_it_may(python):
    def keep_busy():
        with pytest.raises(ToolError):
            run(python, "while True: pass")

    other = threading.Thread(target=keep_busy)
    other.start()
    time.sleep(0.2)
    with pytest.raises(TimeoutError, match="no sandbox was free"):
        run(python, "print(1)", timeout_s=0.1)
    other.join(20)
    assert run(python, "print(1)") == "1\n"
