"""Commands with the scripted author, which is started beside them and reached over HTTP.

`python -m tests.synth.scripted.played ARGS` is `loong ARGS` so, with the points of crashes in it.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from loong_jax.synth import authors
from loong_jax.synth.authors import Author
from loong_jax.verifiers.judge.client import Endpoint
from tests.synth.scripted.server import NAME, ScriptedAuthor

URL = "http://scripted/v1"  # what commands are told; the port is drawn when the author starts
AT = ("--endpoint", URL, "--model", NAME)
LEDGER = "scripted_ledger.jsonl"  # in the run's directory: what was planted; no synthesis reads it
# Its silences last as long as it is waited for, and its server is at hand. It says which failures
# are final, so many attempts cost nothing: they are for a busy machine.
TIMEOUT_S, ATTEMPTS, BACKOFF_S = 3.0, 12, 0.02

_open_author = authors.open_author


@contextlib.contextmanager
def _opened(directory: Path, endpoint: Endpoint, **settings: Any) -> Iterator[Author]:
    if endpoint.base_url != URL:
        with _open_author(directory, endpoint, **settings) as author:
            yield author
        return
    with contextlib.closing(ScriptedAuthor(ledger_path=directory / LEDGER)) as server:
        endpoint = dataclasses.replace(
            endpoint, base_url=server.url, timeout_s=TIMEOUT_S, max_attempts=ATTEMPTS,
            backoff_s=BACKOFF_S,
        )  # fmt: skip
        with _open_author(directory, endpoint, **settings) as author:
            yield author


@contextlib.contextmanager
def played() -> Iterator[None]:
    """While it lasts, the scripted author is at `URL`."""
    with mock.patch.object(authors, "open_author", _opened):
        yield


if __name__ == "__main__":
    from loong_jax import cli
    from tests.doubles import crash_point

    with played(), crash_point.watched():
        sys.exit(cli.main(sys.argv[1:]))
