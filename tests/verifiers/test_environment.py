"""Verifier "environment" with environments of its own; the real ones are judged in theirs."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from loong_jax import environments, verifiers
from loong_jax.errors import VerifierError
from loong_jax.problems import verdict
from loong_jax.problems.problem import Problem
from loong_jax.problems.response import render_response
from loong_jax.sandbox import Limits, Program, Sandbox, SandboxLost
from tests.doubles.problems import made_problem


@dataclasses.dataclass(frozen=True)
class Same:
    """The answer is the gold."""

    run: Callable[..., Any] | None = None
    is_marked: ClassVar[bool] = True

    def verify(self, problem, answer):
        if answer == problem.gold:
            return verdict.correct("e" * 10**6)
        return verdict.wrong("value", answer)


@dataclasses.dataclass(frozen=True)
class Doubling:
    """The answer is an expression that doubles x."""

    run: Callable[..., Any] | None = None
    is_marked: ClassVar[bool] = True

    def verify(self, problem, answer):
        (values,) = self.run([(answer, [{"x": x} for x in (1, 2, -5)])])
        if isinstance(values, str):
            return verdict.wrong("error", values)
        return verdict.correct() if values == [2, 4, -10] else verdict.wrong("value")


KINDS = {"same": Same, "doubling": Doubling}


@pytest.fixture
def verifier(monkeypatch):
    known = environments.get_environment
    made = lambda name, **s: KINDS[name](**s) if name in KINDS else known(name, **s)  # noqa: E731
    monkeypatch.setattr(environments, "get_environment", made)
    verifier = verifiers.get_verifier("environment", limits={"cpu_s": 0.3})
    yield verifier
    verifier.close()


def problem(name: str) -> Problem:
    arguments = {"environment": name, "state": {}}
    return made_problem(verifier="environment", arguments=arguments, gold="1")


def test_judges_the_answer_inside_its_tags(verifier):
    for response, told in (
        (render_response("t", "1"), ("correct", "", "e" * 500)),  # evidence is short
        (render_response("t", "2"), ("wrong", "value", "2")),
        ("1", ("wrong", "format", None)),
    ):
        judged = verifier.verify(problem("same"), response)
        assert (judged.outcome, judged.reason) == told[:2]
        assert judged.evidence == told[2] or told[2] is None
    judged = verifier.verify(problem("same"), render_response("t", "2"))
    assert judged.isolation == "none"
    assert judged.cost_s > 0


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        ("x+x", "correct", ""),
        ("x*3-x", "correct", ""),
        ("x", "wrong", "value"),
        ("[x]", "wrong", "value"),
        ("x/0", "wrong", "error"),
        ("9**9**9**9", "wrong", "error"),
        ("__import__('os').kill(-1, 9)", "wrong", "error"),
        ("", "wrong", "error"),
        ("x" * 10**6, "wrong", "error"),
    ],
)
def test_answers_that_are_code_run_in_the_sandbox(verifier, answer, outcome, reason):
    judged = verifier.verify(problem("doubling"), render_response("t", answer))
    assert (judged.outcome, judged.reason) == (outcome, reason)
    assert judged.isolation in ("process", "namespaces")


def test_an_unknown_environment_or_verifier_is_our_mistake(verifier):
    with pytest.raises(VerifierError, match="environment 'nowhere' is unknown"):
        verifier.verify(problem("nowhere"), "1")
    with pytest.raises(VerifierError, match="'nothing' is unknown"):
        verifiers.get_verifier("nothing")


def test_a_lost_sandbox_makes_the_answer_ungradable(verifier, monkeypatch):
    def lose(*_):
        raise SandboxLost("gone. Run it again.")

    monkeypatch.setattr(Sandbox, "values", lose)
    judged = verifier.verify(problem("doubling"), render_response("t", "x+x"))
    assert (judged.outcome, judged.reason) == ("ungradable", "sandbox")


def test_a_tier_that_is_not_there_is_refused_before_anything_is_judged(no_namespaces, verifier):
    with pytest.raises(VerifierError, match=r"bwrap is not installed.*apt-get install bubblewrap"):
        verifiers.get_verifier("environment", min_tier="namespaces")
    judged = verifier.verify(problem("doubling"), render_response("t", "x+x"))
    assert (judged.is_correct, judged.isolation) == (True, "process")


def test_a_program_that_sleeps_is_not_judged():
    runner = Sandbox(Limits(cpu_s=2.0, wall_s=0.3))
    source = "def f():\n while input is not None:\n  pass"
    with pytest.raises(SandboxLost, match="slept, or the machine is overloaded"):
        runner.judged([Program(source=source, arguments=[[]])])
    runner.close()


def test_runner_takes_several_names_and_none():
    runner = Sandbox()
    runs = [
        ("a-b", [{"a": 3, "b": 1}, {"a": 1, "b": 3}]),
        ("7", [{}]),
        ("7", []),
        ("y", [{"x": 1}]),
    ]
    *values, why = runner.values(runs)
    assert values == [[2, -2], [7], []]
    assert why.startswith("error: NameError")
    assert runner.num_runs == 4
    runner.close()
