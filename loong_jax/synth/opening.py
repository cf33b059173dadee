"""Opens an author for a run directory, which holds one run."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.errors import ConfigError
from loong_jax.synth.authors import Author, CallStore
from loong_jax.synth.authors.author import API_KEY, MODEL, URL
from loong_jax.verifiers.judge.client import Endpoint


def endpoint_of(url: str, model: str, **settings: Any) -> Endpoint:
    """The author's endpoint, as given or as the environment says.

    `settings` are those of `Endpoint`. ConfigError where address or model is missing.
    """
    url, model = url or os.environ.get(URL, ""), model or os.environ.get(MODEL, "")
    if not url or not model:
        raise ConfigError(
            f"no author: give --endpoint and --model, or set {URL} and {MODEL}. Any server with "
            "OpenAI's chat completions will do; `loong serve RUN_DIR` makes one of a model of "
            "yours, at http://127.0.0.1:8000/v1."
        )
    return Endpoint(base_url=url, model=model, api_key_env=API_KEY, **settings)


@contextlib.contextmanager
def open_author(directory: Path, endpoint: Endpoint, **settings: Any) -> Iterator[Author]:
    """The author of a run, with its calls in DIR/calls.jsonl; `settings` are those of `Author`.

    ConfigError where another process works in the directory.
    """
    with (
        CallStore(directory / "calls.jsonl") as store,
        contextlib.closing(Author(endpoint, store, **settings)) as author,
    ):
        yield author


def claim(path: Path, settings: Mapping[str, Any], free: Iterable[str] = ()) -> None:
    """Writes down what a run is of, or refuses what the directory was not begun with.

    `free` settings may change from one start to the next: they decide how long, not what.
    """
    now = json.loads(json.dumps(json_files.without_nan(dict(settings)), default=str))
    before = json_files.read_json(path)
    if before is not None:
        differing = [
            f"{name}: {before.get(name)!r:.100} before, {now.get(name)!r:.100} now"
            for name in sorted(set(before) | set(now))
            if name not in set(free) and before.get(name) != now.get(name)
        ]
        if differing:
            raise ConfigError(
                f"{path.parent} holds a run with other {'; '.join(differing)} ({path.name}). "
                "Name another directory, or give what it was begun with."
            )
    json_files.write_json(path, now)
