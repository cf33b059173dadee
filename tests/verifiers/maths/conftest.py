import pytest

from loong_jax.verifiers import get_verifier


@pytest.fixture(scope="module")
def verifier():
    verifier = get_verifier("math")
    yield verifier
    verifier.close()
