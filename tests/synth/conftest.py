import json
from pathlib import Path

import pytest

from loong_jax.synth.authors import Author
from loong_jax.synth.calls import CallStore
from loong_jax.verifiers.judge.client import Budget, Endpoint
from tests.synth.scripted import Said, ScriptedAuthor
from tests.synth.scripted.played import played

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "loongbench"


def echo(ask):
    return Said(json.dumps({"code": f"print({ask.fields['question']!r})"}))


@pytest.fixture
def scripted():
    """Starts scripted authors, and closes them."""
    started = []

    def start(**settings):
        started.append(ScriptedAuthor(**{"rates": {}, "table": {"loongenv/code": echo}} | settings))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def played_author():
    """Commands reach the scripted author at `played.URL`."""
    with played():
        yield


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


@pytest.fixture
def shared_seeds():
    """Rows of a domain of LoongBench, where the corpus is at hand."""

    def rows(domain):
        path = SHARED / f"{domain}.jsonl"
        if not path.exists():
            pytest.skip("the corpus of LoongBench is not on this machine")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return rows
