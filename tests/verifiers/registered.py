"""Registered verifiers for tests over the table: built, or skipped by name where they cannot be."""

import pytest

from loong_jax import verifiers
from loong_jax.errors import VerifierError
from loong_jax.verifiers import admission_cases

# They run programs or ask a server for each answer.
_MARKS = {"code": pytest.mark.slow, "coq": pytest.mark.release, "lean": pytest.mark.release}
NAMES = [pytest.param(name, marks=_MARKS.get(name, ())) for name in verifiers.VERIFIERS]
_NOT_HERE = ("server", "endpoint", "toolchain", "sandbox")  # reasons: what it needs is not running


def build(name):
    """The verifier, once it is known to judge its first right answer at all."""
    try:
        one = verifiers.get_verifier(name)
    except VerifierError as error:
        pytest.skip(f"{name} cannot be built here: {error}")
    case = admission_cases.cases_of(name)[0]
    judged = one.verify(case.problem, case.render(case.answer))
    if judged.reason in _NOT_HERE:
        one.close()
        pytest.skip(f"{name} has nothing to judge with here: {judged.reason} {judged.evidence}")
    return one
