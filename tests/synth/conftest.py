import json

import pytest

from loong_jax.synth.authors import Author, CallStore
from loong_jax.synth.scripted import Plan, Said, ScriptedAuthor
from loong_jax.synth.scripted.defects import COMMON
from loong_jax.verifiers.judge.client import Budget, Endpoint


def echo(ask):
    return Said(json.dumps({"code": f"print({ask.fields['question']!r})"}))


@pytest.fixture
def scripted():
    """Starts scripted authors, and closes them."""
    started = []

    def start(**settings):
        rates = settings.pop("rates", {})
        plan = Plan(defects=COMMON, rates={d.name: 0.0 for d in COMMON} | rates)
        settings = {"plan": plan, "table": {"loongenv/code": echo}} | settings
        started.append(ScriptedAuthor(**settings))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def author(tmp_path):
    """Makes authors of a server, with a store of their own in tmp_path, and closes both."""
    opened = []

    def make(server, *, store="calls.jsonl", budget=None, endpoint=None, **settings):
        where = {
            "base_url": server if isinstance(server, str) else server.url,
            "model": "scripted", "timeout_s": 5.0, "max_attempts": 2, "backoff_s": 0.01,
        }  # fmt: skip
        calls = CallStore(tmp_path / store)
        made = Author(
            Endpoint(**(where | (endpoint or {}))), calls, budget=Budget(**(budget or {})),
            **settings,
        )  # fmt: skip
        opened.append((made, calls))
        return made

    yield make
    for made, calls in opened:
        made.close()
        calls.close()
