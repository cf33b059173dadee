"""Modules as environments: run in the sandbox, judged from the state, named by their text."""

import dataclasses
import re

import numpy as np
import pytest

from loong_jax.environments import Environment, modules
from loong_jax.environments.modules import Module, ModuleEnvironment, ModuleRunner
from loong_jax.errors import VerifierError
from loong_jax.problems.response import render_response
from loong_jax.sandbox import Limits
from loong_jax.verifiers import get_verifier, raised
from tests.environments.module_texts import SUM

pytestmark = pytest.mark.bubblewrap


@pytest.fixture(scope="module")
def runner():
    with ModuleRunner(Limits(cpu_s=1.0, wall_s=60.0, result_bytes=2**20)) as one:
        yield one


@pytest.fixture(scope="module")
def environment(runner):
    return ModuleEnvironment(module=Module(SUM), name="sum", runner=runner)


def test_a_module_is_an_environment(environment):
    assert isinstance(environment, Environment)
    assert environment.levels == (1, 2, 3, 4, 5)
    problem = environment.problem(3, 2**50)
    assert problem == environment.problem(3, 2**50)
    assert problem.uid == f"sum-{Module(SUM).hash}/3/{2**50}"
    numbers = [int(word) for word in problem.prompt[4:-1].split()]  # worked out by hand below
    assert len(numbers) == 4
    assert environment.solve(problem).answer == str(sum(numbers))
    assert environment.verify(problem, f" {sum(numbers)}\n").is_correct
    assert environment.verify(problem, str(sum(numbers) + 1)).outcome == "wrong"
    assert environment.verify(problem, "").reason == "no answer"
    assert environment.verify(problem, "9" * 3000).reason == "format"
    assert environment.verify(problem, None).reason == "format"


def test_a_solution_has_the_modules_steps_and_its_reference(environment, runner):
    problem = environment.problem(5, 7)
    numbers = problem.arguments["state"]["numbers"]
    steps, answer = environment.solve(problem)
    assert steps == [str(value) for value in np.cumsum(numbers)]
    assert answer == str(sum(numbers))
    bare = Module(SUM.replace("def steps(", "def other("))
    bare = ModuleEnvironment(module=bare, name="sum", runner=runner)
    assert bare.solve(bare.problem(5, 7)) == ([], answer)


def test_a_problem_of_another_module_is_refused(environment, runner):
    other = ModuleEnvironment(module=Module(SUM + "\n"), name="sum", runner=runner)
    with pytest.raises(ValueError, match="another module"):
        other.solve(environment.problem(1, 0))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("    while True: pass", "timeout"),
        ("    return answer.nothing", "raised"),
        ("    return 'yes'", "raised"),
        ("    return None", "raised"),
        ("    return 0.5", "raised"),
        ("    return [0] * 10**10", "raised"),
    ],
)
def test_a_module_that_does_not_judge_makes_no_verdict(environment, runner, body, status):
    source = SUM.replace("    return answer.strip() == reference(state)", body)
    broken = ModuleEnvironment(module=Module(source), name="sum", runner=runner)
    judged = broken.verify(broken.problem(1, 0), "5")
    assert judged.outcome == "ungradable"
    assert f" {status}: " in judged.evidence


def test_an_answer_is_data_to_every_call(runner):
    """Quotes, braces, surrogates and JSON of our own protocol arrive as they were written."""
    source = SUM.replace("answer.strip() == reference(state)", "answer == state")
    for text in ('"]', '["ok", true]', "\ud800", "{x}", "\\", "\x00a", "'''", '""" + 1'):
        judged = runner.run(Module(source), [("reward", (text, text)), ("reward", (text, "no"))])
        assert [one.value for one in judged] == [True, False], text


def test_states_travel_as_json(runner):
    source = SUM.replace('return {"numbers"', 'return {"pair": (1, 2), 3: "x", "numbers"')
    (posed,) = runner.run(Module(source), [("pose", (1, 0))])
    assert posed.value[0]["pair"] == [1, 2]
    assert posed.value[0]["3"] == "x"
    source = SUM.replace('return {"numbers"', 'return {"set": {1, 2}, "numbers"')
    (posed,) = runner.run(Module(source), [("pose", (1, 0))])
    assert posed.status == "raised"


def test_a_runner_without_namespaces_is_not_made(monkeypatch):
    from loong_jax.sandbox import mechanism

    weak = mechanism.isolation("process")
    monkeypatch.setattr(mechanism, "isolation", lambda tier=None: weak)
    with pytest.raises(VerifierError, match="below min_tier"):
        modules.ModuleRunner()


def test_no_call_is_blamed_for_the_others():
    """Together they are too much for one process; the slow and the large ones alone are named."""
    body = """    if answer == "slow":
        while True: pass
    return sum(i * i for i in range(10**6 if answer == "work" else 9)) > 0"""
    slow = SUM.replace("    return answer.strip() == reference(state)", body)
    asked = """    return "so " * (10**6 if state is None else 10**4)"""
    large = SUM.replace('    return "Add " + " ".join(map(str, state["numbers"])) + "."', asked)
    with ModuleRunner(Limits(cpu_s=0.5, wall_s=60.0, result_bytes=2**20)) as runner:
        answers = ["work"] * 12 + ["slow", "x"]
        found = runner.run(Module(slow), [("reward", ({}, answer)) for answer in answers])
        assert [one.status for one in found] == ["ok"] * 12 + ["timeout", "ok"]
        found = runner.run(Module(large), [("question", (state,)) for state in [*range(60), None]])
        assert [one.status == "ok" for one in found] == [True] * 60 + [False]


def test_a_module_that_never_ends_is_soon_given_up(runner):
    source = SUM.replace("    rng =", "    while True: pass\n    rng =")
    found = runner.run(Module(source), [("pose", (1, seed)) for seed in range(60)])
    assert {one.status for one in found} == {"timeout"}


def test_what_calls_fail_by_depends_on_none_beside_them(runner):
    """Alone each gives too much; many together take too long before they do."""
    spends = """    sum(range(10**7))
    return {"numbers": [level, seed], "pad": "x" * 2**21}
"""
    source = SUM.replace("    rng =", spends + "    rng =")
    alone = runner.run(Module(source), [("pose", (1, 0))])
    assert [one.status for one in alone] == ["limit"]
    assert runner.run(Module(source), [("pose", (1, seed)) for seed in range(12)]) == alone * 12


def test_a_whole_response_is_judged_by_the_module_in_the_problem(environment):
    problem = environment.problem(2, 5)
    gold = str(sum(problem.arguments["state"]["numbers"]))
    verifier = get_verifier("resyn")
    try:
        right = verifier.verify(problem, render_response("so", gold))
        assert right.is_correct
        assert right.isolation == "namespaces"
        assert verifier.verify(problem, render_response("so", gold + "0")).reason == "value"
        assert verifier.verify(problem, gold).reason == "format"  # without tags
        bare = dataclasses.replace(problem, arguments={})
        assert verifier.verify(bare, render_response("so", gold)).reason == "problem"
        odd = dataclasses.replace(problem, arguments={"module": "def (", "state": 1})
        judged = verifier.verify(odd, render_response("so", gold))
        assert judged.reason == "module"
        told: list[str] = []
        raised.RaisedWatch(told.append).seen([judged, judged])
        assert len(told) == 1
        assert re.match(r"`reward` of sum-\w+ raised: SyntaxError.* So far 2 of 2 answers", told[0])
    finally:
        verifier.close()
