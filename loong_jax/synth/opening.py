"""Opens an author for a run directory: the endpoint's, or the scripted one, started on loopback."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loong_jax.errors import ConfigError
from loong_jax.synth.authors import Author, CallStore, Settings
from loong_jax.synth.authors.author import API_KEY, MODEL, SCRIPTED, URL
from loong_jax.synth.scripted import Plan, ScriptedAuthor, roles
from loong_jax.verifiers.judge.client import Budget, Endpoint

LEDGER = "scripted_ledger.jsonl"  # what the scripted author planted; no synthesis reads it
# What it is asked with: its silences last as long as it is waited for, and its server is at hand.
# It says which failures are final, so many attempts cost nothing: they are for a busy machine.
_SCRIPTED_TIMEOUT_S, _SCRIPTED_ATTEMPTS, _SCRIPTED_BACKOFF_S = 3.0, 12, 0.02


def endpoint_of(url: str, model: str, **settings: Any) -> Endpoint | None:
    """Where the author is, as given or as the environment says; None for the scripted one.

    `settings` are those of `Endpoint`. ConfigError where address or model is missing.
    """
    url, model = url or os.environ.get(URL, ""), model or os.environ.get(MODEL, "")
    if url == SCRIPTED:
        return None
    if not url or not model:
        raise ConfigError(
            f"no author: give --endpoint and --model, or set {URL} and {MODEL}. The endpoint "
            "'scripted' needs no model."
        )
    return Endpoint(base_url=url, model=model, api_key_env=API_KEY, **settings)


@contextlib.contextmanager
def open_author(
    directory: Path, endpoint: Endpoint | None, *, settings: Mapping[str, Settings],
    budget: Budget, max_parallel: int, script_seed: int = 0, defect_scale: float = 1.0,
) -> Iterator[Author]:  # fmt: skip
    """The author of a run, with its calls in DIR/calls.jsonl; scripted where there is no endpoint.

    ConfigError where another process works in the directory.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(CallStore(directory / "calls.jsonl"))
        if endpoint is None:
            server = stack.enter_context(
                ScriptedAuthor(
                    seed=script_seed,
                    plan=Plan(defects=roles.DEFECTS, scale=defect_scale),
                    ledger_path=directory / LEDGER,
                )
            )
            endpoint = Endpoint(
                base_url=server.url, model=SCRIPTED, timeout_s=_SCRIPTED_TIMEOUT_S,
                max_attempts=_SCRIPTED_ATTEMPTS, backoff_s=_SCRIPTED_BACKOFF_S,
            )  # fmt: skip
        elif endpoint.model == SCRIPTED:
            raise ConfigError("model='scripted' is our scripted author's name. Name the real one.")
        author = Author(
            endpoint, store, budget=budget, settings=settings, max_parallel=max_parallel
        )
        yield stack.enter_context(author)
