"""Verifier "resyn" judges whole responses by the module in the problem, and survives bad ones."""

import dataclasses

import pytest

from loong_jax.environments.modules import Module, ModuleEnvironment
from loong_jax.problems.response import render_response
from loong_jax.verifiers import get_verifier
from loong_jax.verifiers.pool import LocalVerifierPool, VerifierRequest
from tests.environments.module_texts import SUM

pytestmark = pytest.mark.bubblewrap


@pytest.fixture(scope="module")
def problem():
    return ModuleEnvironment(module=Module(SUM), name="sum").problem(2, 5)


def test_responses(problem):
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
        assert verifier.verify(odd, render_response("so", gold)).reason == "module"
    finally:
        verifier.close()


def test_the_pool_judges_with_it(problem):
    gold = str(sum(problem.arguments["state"]["numbers"]))
    pool = LocalVerifierPool(1)
    try:
        requests = [
            VerifierRequest(key=str(i), problem=problem, deadline_s=60.0,
                            response_text=render_response("so", answer))
            for i, answer in enumerate([gold, "0", gold])
        ]  # fmt: skip
        outcomes = [future.result(60).outcome for future in pool.submit(requests)]
    finally:
        pool.close()
    assert outcomes == ["correct", "wrong", "correct"]
