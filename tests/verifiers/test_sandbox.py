"""The sandbox against programs that misbehave; each must be bounded and leave nothing behind."""

import dataclasses
import inspect
import math
import os
import time

import pytest

from loong_jax.errors import VerifierError
from loong_jax.sandbox import Limits, Program, Sandbox, box, expression_program, mechanism
from loong_jax.verifiers import get_verifier
from tests.verifiers.sandbox_checks import LIMITS, run


def test_returns_values_of_each_call_in_order(sandbox):
    source = "def g(x, y): return [x // y, x / y, x > y, str(x), [[]]]"
    arguments = [[7, 2], [-7, 2], [1, 3]]
    (result,) = sandbox.run([Program(source=source, arguments=arguments, entry="g")])
    assert result.status == "ok"
    assert list(result.values) == [[x // y, x / y, x > y, str(x), [[]]] for x, y in arguments]
    assert [type(item) for item in result.values[0]] == [int, float, bool, str, list]


def test_runs_each_program_of_a_batch_alone(sandbox):
    sources = ["import math\nmath.pi = 3\ndef f(): return math.pi"] * 2
    sources += [
        "import math\ndef f(): return math.pi",
        "def f(): return 1 / 0",
        "def f(): return 5",
    ]
    results = sandbox.run([Program(source=source, arguments=[[]]) for source in sources])
    assert [r.status for r in results] == ["ok", "ok", "ok", "error", "ok"]
    assert results[2].values == (math.pi,)
    assert results[3].detail.startswith("ZeroDivisionError")
    assert results[4].values == (5,)


@pytest.mark.parametrize("x", [0, -3, 10**30])
def test_expressions_see_their_parameters(sandbox, x):
    def wanted(x):
        return [sum(x * i for i in range(3)), (lambda y: y - x)(1)]

    text = " [sum(x * i for i in range(3)), (lambda y: y - x)(1)] "
    (result,) = sandbox.run([expression_program(text, [[x]])])
    assert result.values == (wanted(x),)
    (result,) = sandbox.run([expression_program("a-b", [[x, 1]], ("a", "b"))])
    assert result.values == (x - 1,)


@pytest.mark.parametrize(
    "text", ["", "x = 1", "1)\nimport os\n(1", "import os", "(", "x\nx", "\0", "\ud800", "'''"]
)
def test_what_is_no_expression_is_an_error(sandbox, text):
    (result,) = sandbox.run([expression_program(text, [[1]])])
    assert result.status == "error"


@pytest.mark.parametrize(
    "value",
    [
        "None",
        "(1,)",
        "{}",
        "{1}",
        "1j",
        "b'a'",
        "object()",
        "type('I', (int,), {})(1)",
        "type('Equal', (int,), {'__eq__': lambda a, b: True})(3)",
        "[None]",
        "10**4000",
        "[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]",
        "f",
    ],
)
def test_only_plain_values_leave(sandbox, value):
    result = run(sandbox, f"def f(): return {value}")
    assert result.status == "error"
    assert result.values == ()


def test_missing_entry_and_broken_source_are_errors(sandbox):
    assert "'f'" in run(sandbox, "g = 1").detail
    assert run(sandbox, "def f(:").detail.startswith("SyntaxError")
    assert run(sandbox, "-" * 50000 + "1").status in ("error", "crash")  # parser bomb


def test_source_is_bounded(sandbox):
    assert run(sandbox, "#" * (LIMITS.source_bytes + 1)).status == "limit"


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n while True: pass",
        "while True: pass",
        "def f(): return 9**9**9**9",
        "class E(Exception):\n def __str__(self):\n  while True: pass\ndef f(): raise E",
        "def f():\n while True:\n  try:\n   while True: pass\n  except BaseException: pass",
    ],
)
def test_busy_programs_run_out_of_cpu_time(sandbox, source):
    start = time.monotonic()
    result = run(sandbox, source)
    assert result.status in ("timeout", "error")  # the power may run out of memory first
    assert result.cpu_s < 3 * LIMITS.cpu_s
    assert time.monotonic() - start < LIMITS.wall_s


@pytest.mark.bubblewrap
def test_a_sleeping_program_runs_out_of_wall_time(namespaces):
    limits = Limits(cpu_s=5.0, wall_s=0.3)
    with Sandbox(limits, tier="namespaces") as short:
        result = run(short, "import time\ndef f(): time.sleep(60)")
        assert result.status == "stalled"
        assert result.wall_s < 5
        result = run(short, "import os, time\nos.closerange(0, 64)\ndef f(): time.sleep(60)")
        assert result.status == "stalled"
        assert run(short, "def f(): return 1").values == (1,)


@pytest.fixture(scope="module")
def patient(sandbox):
    """With CPU time for all of its memory, which a busy machine clears slowly."""
    with Sandbox(dataclasses.replace(LIMITS, cpu_s=10.0), tier=sandbox.tier) as one:
        yield one


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return len(bytearray(10**9))",
        "def f(): return len([0] * 10**9)",
        "def f():\n a = []\n while True: a.append(bytearray(2**20))",
        "def f(): return 'a' * 10**10",
        "def f(): return 1 << 10**10",
    ],
)
def test_memory_is_bounded(patient, source):
    assert run(patient, source).detail.startswith(("MemoryError", "OverflowError"))


def test_recursion_is_bounded(sandbox):
    assert run(sandbox, "def f(): return f()").detail == "RecursionError"


@pytest.mark.bubblewrap
def test_recursion_without_python_limit_ends_the_program_alone(namespaces):
    source = "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()"
    assert run(namespaces, source).status in ("crash", "error", "timeout")
    assert run(namespaces, "def f(): return 1").values == (1,)


def test_large_results_and_output_are_bounded(sandbox):
    assert run(sandbox, "def f(): return 'a' * 10**6").status == "limit"
    result = run(sandbox, "def f():\n for i in range(10**4): print('a' * 100)\n return 1")
    assert result.values == (1,)
    assert result.output == ("a" * 100 + "\n") * (LIMITS.output_bytes // 101) + "a" * (
        LIMITS.output_bytes % 101
    )


@pytest.mark.parametrize(
    "what", ["raise SystemExit", "raise KeyboardInterrupt", "exit()", "return input()"]
)
def test_leaving_early_and_asking_are_errors(sandbox, what):
    assert run(sandbox, f"def f(): {what}").status == "error"


# ---- The sandbox itself. ----


def test_a_zygote_that_died_is_restarted(sandbox):
    run(sandbox, "def f(): return 1")
    os.kill(sandbox.pid(), 9)
    assert run(sandbox, "def f(): return 2").values == (2,)


@pytest.mark.parametrize(("num_losses", "status"), [(1, "ok"), (2, "lost")])
def test_a_program_is_retried_once(monkeypatch, num_losses, status):
    losses = iter(range(num_losses))
    receive, started = box.Child.receive, set()

    def lose(child, deadline):
        """Leaves the first frame of a new zygote alone: it says that it is ready."""
        is_first = child.pid not in started and bool(started)
        started.add(child.pid)
        if not is_first and next(losses, None) is not None:
            os.kill(child.pid, 9)
        return receive(child, deadline)

    with Sandbox(LIMITS, tier="process") as sandbox:
        run(sandbox, "def f(): return 1")
        monkeypatch.setattr(box.Child, "receive", lose)
        source = "def f():\n for i in range(10**6): i += 1\n return i"
        assert run(sandbox, source).status == status
        assert run(sandbox, "def f(): return 1").values == (1,)


def test_refuses_to_run_below_the_least_tier():
    with pytest.raises(VerifierError, match="below min_tier='namespaces'"):
        Sandbox(tier="process", min_tier="namespaces")
    with pytest.raises(VerifierError, match="no isolation"):
        Sandbox(tier="none")
    unchecked = inspect.unwrap(mechanism.required_isolation)  # options come from JSON too
    with pytest.raises(VerifierError, match="min_tier='vm' is no tier"):
        unchecked("vm")


@pytest.mark.bubblewrap
def test_without_bubblewrap_there_are_namespaces_of_our_own(namespaces, no_bubblewrap):
    found = mechanism.isolation()
    assert (found.name, found.tier) == ("own namespaces", "namespaces")
    with Sandbox(LIMITS, tier="namespaces") as sandbox:
        source = "import os\ndef f(): return [os.getppid(), os.listdir('/dev')]"
        assert run(sandbox, source).values == ([1, ["null"]],)


def test_without_namespaces_the_tier_is_process(no_namespaces, caplog):
    for _ in range(2):
        found = mechanism.isolation()
        assert (found.tier, found.reason) == ("process", "bwrap is not installed")
    (said,) = caplog.records  # once
    assert (said.levelname, "apt-get install bubblewrap" in said.message) == ("WARNING", True)
    with pytest.raises(VerifierError, match="does not work here: bwrap is not installed"):
        mechanism.isolation("namespaces")
    with pytest.raises(VerifierError, match="Install bubblewrap"):
        get_verifier("code")


def test_limits_are_checked():
    with pytest.raises(VerifierError, match=r"cpu_s=0\.0 is not above 0"):
        Limits(cpu_s=0.0)
    with pytest.raises(VerifierError, match="result_bytes"):
        Limits(result_bytes=2**30)


def test_many_runs_leave_no_process_and_cost_little(sandbox):
    results = sandbox.run([expression_program(f"x+{i}", [[1]]) for i in range(200)])
    assert [r.values for r in results] == [(1 + i,) for i in range(200)]
    assert sum(r.cpu_s for r in results) / len(results) < 0.01
    with open(f"/proc/{sandbox.pid()}/task/{sandbox.pid()}/children") as children:
        assert len(children.read().split()) <= 1  # of bubblewrap: the zygote; of the zygote: none


def test_closing_ends_the_zygote():
    with Sandbox(LIMITS, tier="process") as sandbox:
        run(sandbox, "def f(): return 1")
        pid = sandbox.pid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
