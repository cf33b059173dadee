"""A run starts nothing before the environments of its recipe are admitted."""

import pytest

from loong_jax import environments, recipes
from loong_jax.errors import VerifierError
from loong_jax.run import session
from loong_jax.verifiers import admission, verdict


def test_a_run_refuses_an_environment_that_is_not_admitted(monkeypatch):
    class Lenient(environments.ENVIRONMENTS["gates"]):
        def verify(self, problem, answer):
            return verdict.correct()

    monkeypatch.setitem(environments.ENVIRONMENTS, "gates", Lenient)
    admission.require_environment.cache_clear()
    started = []
    monkeypatch.setattr(session, "_start_pool", started.append)
    recipe = recipes.get_recipe("quickstart")()
    with pytest.raises(VerifierError, match=r"environment 'gates' is not admitted.*gates-"):
        session.Session(recipe)
    assert started == []
    admission.require_environment.cache_clear()
