"""Sandboxes of each isolation tier, one for all tests of a module."""

import os

import pytest

from loong_jax.errors import VerifierError
from loong_jax.sandbox import Sandbox, mechanism
from tests.verifiers.sandbox_checks import LIMITS


def require_namespaces(find=lambda: mechanism.isolation("namespaces")) -> None:
    try:
        find()
    except VerifierError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have namespaces: {error}")
        pytest.skip(f"no isolation by namespaces here: {error}")


@pytest.fixture(scope="module")
def namespaces():
    require_namespaces()
    with Sandbox(LIMITS, tier="namespaces") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def process():
    with Sandbox(LIMITS, tier="process") as sandbox:
        yield sandbox


@pytest.fixture(
    scope="module",
    params=["process", pytest.param("namespaces", marks=pytest.mark.bubblewrap)],
)
def sandbox(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def no_bubblewrap(monkeypatch):
    monkeypatch.setattr(mechanism.shutil, "which", lambda name: None)
    mechanism.isolation.cache_clear()
    yield
    mechanism.isolation.cache_clear()


@pytest.fixture
def no_namespaces(no_bubblewrap, monkeypatch):
    monkeypatch.setattr(mechanism, "_in_namespaces", lambda: iter(()))
