"""Verifiers that run whole programs, one for all tests of a module."""

import os

import pytest

from loong_jax.bench import timing
from loong_jax.errors import VerifierError
from loong_jax.sandbox import isolation
from loong_jax.verifiers import get_verifier


@pytest.fixture(scope="session")
def needs_isolation():
    try:
        isolation(for_programs=True)
    except VerifierError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have isolation: {error}")
        pytest.skip(f"no isolation by namespaces here: {error}")


def zygote_pids(verifier) -> list[int]:
    """Processes of the zygotes: children of the launchers."""
    return [child for pid in verifier.executor.pids() for child in timing.children(pid)]


@pytest.fixture(scope="module")
def code(needs_isolation):
    verifier = get_verifier("code")
    yield verifier
    verifier.close()
