"""Verifiers that run whole programs, one for all tests of a module."""

import pytest

from loong_jax.bench import timing
from loong_jax.sandbox import isolation
from loong_jax.verifiers import get_verifier
from tests.verifiers.conftest import require_namespaces


@pytest.fixture(scope="session")
def needs_isolation():
    require_namespaces(lambda: isolation(for_programs=True))


def zygote_pids(verifier) -> list[int]:
    """Processes of the zygotes: children of the launchers."""
    return [child for pid in verifier.executor.pids() for child in timing.children(pid)]


@pytest.fixture(scope="module")
def code(needs_isolation):
    verifier = get_verifier("code")
    yield verifier
    verifier.close()


def judged_or_skipped(code, language, answer, *tests):
    """The verdict on a program; where its toolchain is missing, the test is skipped."""
    judged = code.verify_record({"language": language, "answer": answer, "tests": list(tests)})
    if judged.reason == "toolchain":
        pytest.skip(judged.evidence)
    return judged
