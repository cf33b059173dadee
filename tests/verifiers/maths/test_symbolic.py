"""The processes of sympy: right, ready ahead, bounded, and replaced when they are lost."""

import os
import time

import mpmath
import pytest

from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.maths import symbolic

# An integral, its value by quadrature, and a closed form that has this value.
INTEGRALS = [
    ("\\int_0^2 x^3 dx", lambda x: x**3, 0, 2, "4"),
    ("\\int_0^{\\pi} \\sin^2 x dx", lambda x: mpmath.sin(x) ** 2, 0, mpmath.pi, "\\frac{\\pi}{2}"),
    ("\\int_0^1 x e^x dx", lambda x: x * mpmath.exp(x), 0, 1, "1"),
    ("\\int_1^3 \\frac{dx}{x}", lambda x: 1 / x, 1, 3, "\\ln 3"),
    ("\\int_0^1 \\frac{2t\\,dt}{t^2+1}", lambda t: 2 * t / (t * t + 1), 0, 1, "\\ln 2"),
    ("\\int_0^{\\pi/2} \\cos\\theta\\,\\mathrm{d}\\theta", mpmath.cos, 0, mpmath.pi / 2, "1"),
    ("\\int_0^1 x+1 dx + 2", lambda x: x + 3, 0, 1, "\\frac72"),
    ("\\int_0^1\\int_0^2 xy dx dy", lambda y: 2 * y, 0, 1, "1"),
]
HARD = "\\int_0^1 \\sin(x^{x+%d}) \\cos(e^{x}) \\ln(1+x^7) dx"


@pytest.mark.parametrize(("text", "function", "low", "high", "closed"), INTEGRALS)
def test_an_integral_is_its_value(verifier, text, function, low, high, closed):
    value = mpmath.quad(function, [low, high])
    assert verifier.judge(mpmath.nstr(value, 15), f"\\boxed{{{closed}}}").is_correct
    assert verifier.judge(closed, f"\\boxed{{{text}}}").is_correct
    assert verifier.judge(text, f"\\boxed{{{closed}}}").is_correct
    assert not verifier.judge(text, f"\\boxed{{{closed} + 10^{{-9}}}}").is_correct


def test_a_sum_with_a_symbolic_end(verifier):
    gold = "\\frac{n(n+1)}{2}"
    assert verifier.judge(gold, "\\boxed{\\sum_{k=1}^{n} k}").is_correct
    assert not verifier.judge(gold, "\\boxed{\\sum_{k=1}^{n} k^2}").is_correct


def test_all_questions_of_one_verdict_share_their_time(verifier):
    """Each of three golds with each of three answers would be nine times the limit."""
    verifier.judge("1", "\\boxed{\\int_0^1 2x dx}")
    gold = ", ".join(HARD % n for n in range(3))
    answer = ", ".join(HARD % n for n in range(3, 6))
    before = verifier._symbolic._child.pid
    start, cpu_start_s = time.monotonic(), children_cpu_s(before)
    judged = verifier.judge(gold, f"\\boxed{{{answer}}}")
    took_s = time.monotonic() - start
    assert judged.outcome == "ungradable"
    assert 0.3 < children_cpu_s(before) - cpu_start_s < 1.0
    assert took_s < 20
    assert verifier.judge("1", "\\boxed{\\int_0^1 2x dx}").is_correct
    assert verifier._symbolic._child.pid == before  # none was started anew


def children_cpu_s(pid: int) -> float:
    """CPU seconds of the processes that `pid` has forked and reaped."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


def test_a_server_that_died_is_replaced(verifier):
    for _ in range(2):
        verifier.judge("1", "\\boxed{\\int_0^1 2x dx}")
        os.kill(verifier._symbolic._child.pid, 9)
        assert verifier.judge("1", "\\boxed{\\int_0^1 2x dx}").is_correct


def test_what_is_not_ready_in_time_is_named_and_comes_later(monkeypatch):
    monkeypatch.setattr(symbolic, "_WAIT_S", 0.01)
    fresh = get_verifier("math")
    judged = fresh.judge("1", "\\boxed{\\int_0^1 2x dx}")
    assert (judged.outcome, judged.reason) == ("ungradable", "symbolic")
    assert "not ready in 0.01 s" in judged.evidence
    assert fresh.judge("1", "\\boxed{1}").is_correct  # which asks nobody
    pid = fresh._symbolic._child.pid
    monkeypatch.setattr(symbolic, "_WAIT_S", 60.0)
    assert fresh.judge("1", "\\boxed{\\int_0^1 2x dx}").is_correct
    assert fresh._symbolic._child.pid == pid
    fresh.close()
