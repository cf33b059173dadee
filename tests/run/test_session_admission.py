"""A run starts nothing before the environments of its recipe are admitted."""

import pytest

from loong_jax import environments, recipes
from loong_jax.errors import VerifierError
from loong_jax.run import session
from loong_jax.verifiers import admission, verdict


def test_a_run_refuses_an_environment_that_is_not_admitted(monkeypatch):
    gates = type(environments.get_environment("gates"))
    monkeypatch.setattr(gates, "verify", lambda self, problem, answer: verdict.correct())
    admission.require_environment.cache_clear()
    started = []
    monkeypatch.setattr(session, "_start_pool", started.append)
    recipe = recipes.get_recipe("quickstart")()
    with pytest.raises(VerifierError, match=r"environment 'gates' is not admitted.*gates-"):
        session.Session(recipe)
    assert started == []
    admission.require_environment.cache_clear()
