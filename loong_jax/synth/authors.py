"""An author: a model behind an endpoint that is asked in batches and paid once per question."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loong_jax.data import json_files
from loong_jax.errors import ConfigError, LoongError
from loong_jax.synth import calls
from loong_jax.synth.calls import CallStore, Reply, Request, Settings, Transcript
from loong_jax.verifiers.judge.client import (
    Budget,
    Client,
    Completion,
    Endpoint,
    JudgeUnavailable,
    content_hash,
)

URL, MODEL, API_KEY = "LOONG_AUTHOR_URL", "LOONG_AUTHOR_MODEL", "LOONG_AUTHOR_API_KEY"
# So many calls that no reply came to, nor to any other while they waited: the endpoint is down.
MAX_FAILED_IN_A_ROW = 8


class AuthorDown(LoongError):
    """The endpoint does not answer. What was paid for is kept; the same command goes on later."""


class Author:
    """Asks one endpoint. Safe to share between threads; to be closed.

    Every reply is in the store before anybody sees it, and a question that is in the store is
    never asked again. A call that failed for good (after its attempts) is stored as well, since it
    shaped what came after it; only where the endpoint was down or the budget spent is it asked
    again. What the store holds counts against the budget, so a run that goes on keeps to it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        store: CallStore,
        *,
        budget: Budget | None = None,
        settings: Mapping[str, Settings] | None = None,
        max_parallel: int = 16,
    ):
        """`settings` are by role. `endpoint` is where, and how long and how often it is tried."""
        if max_parallel < 1:
            raise ConfigError(f"max_parallel={max_parallel} is below 1. Raise it.")
        self.endpoint, self.store = endpoint, store
        self.budget = budget or Budget()
        self._client = Client(endpoint, self.budget)
        self._settings = dict(settings or {})
        self._pool = concurrent.futures.ThreadPoolExecutor(max_parallel, "author")
        self._lock = threading.Lock()
        self._running: dict[str, concurrent.futures.Future[Transcript]] = {}
        self._held: dict[str, Transcript] = {}  # failures since the last reply, by key
        self._num_replies = 0
        self._num_failed = 0  # of those held, calls that began after the last reply
        self._down = ""
        for record in store.records():
            self.budget.num_requests += 1
            self.budget.num_tokens += record["prompt_tokens"] + record["reply_tokens"]

    @property
    def name(self) -> str:
        """The model's, by which its work is labelled."""
        return self.endpoint.model

    def ask(self, requests: Sequence[Request]) -> list[Reply]:
        """Replies in order, many asked at once. Raises for a request that is wrong, never for a
        reply: its `failure` says what became of it."""
        begun = [self._begin(self._call(request)) for request in requests]
        pairs = zip(begun, requests, strict=True)
        return [reply_of(future.result(), request.schema) for future, request in pairs]

    def ask_chat(
        self, role: str, prompt_name: str, messages: Sequence[Mapping[str, str]], seed: int = 0
    ) -> Reply:
        """The reply to a chat that somebody else has put together, such as the judge's."""
        digest = content_hash(list(messages[:-1]))
        call = self._transcript(role, prompt_name, digest, messages, seed, is_json=False)
        return reply_of(self._begin(call).result(), None)

    def require_up(self) -> None:
        """AuthorDown if the endpoint has stopped answering."""
        if self._down:
            raise AuthorDown(
                f"{self.endpoint.base_url} gave no reply to {MAX_FAILED_IN_A_ROW} calls in a row: "
                f"{self._down}. Run the same command again later; nothing paid for is repeated."
            )

    def settle(self) -> None:
        """Stores the failures that no reply has come after, unless the endpoint is down.

        For the end of a run: what it then reads from the store is every call that shaped it, in
        whatever order calls ended.
        """
        if not self._down:
            self._keep_held()

    def close(self) -> None:
        """Waits for the calls under way and keeps what they gave. The store stays open."""
        self._pool.shutdown(cancel_futures=True)
        self.settle()
        self._client.close()

    # ---- one call

    def _begin(self, call: Transcript) -> concurrent.futures.Future[Transcript]:
        with self._lock:
            record = self.store.get(call.key)
            kept = self._held.get(call.key) if record is None else Transcript.from_json(record)
            if kept is not None:
                known: concurrent.futures.Future[Transcript] = concurrent.futures.Future()
                known.set_result(kept)
                return known
            if call.key not in self._running:
                self._running[call.key] = self._pool.submit(self._perform, call)
            return self._running[call.key]

    def _call(self, request: Request) -> Transcript:
        prompt = calls.prompt(request.prompt_name)
        return self._transcript(
            request.role, request.prompt_name, prompt.digest,
            calls.messages(prompt, request.fields), request.seed,
            is_json=request.schema is not None,
        )  # fmt: skip

    def _transcript(
        self, role: str, prompt_name: str, prompt_digest: str,
        messages: Sequence[Mapping[str, str]], seed: int, *, is_json: bool,
    ) -> Transcript:  # fmt: skip
        chosen = self._settings.get(role, Settings())
        model = chosen.model or self.endpoint.model
        temperature, max_tokens = chosen.temperature, chosen.max_reply_tokens
        settings: dict[str, Any] = {
            "temperature": self.endpoint.temperature if temperature is None else temperature,
            "max_tokens": max_tokens or self.endpoint.max_reply_tokens,
        }
        if self.endpoint.json_mode:
            kind = "json_object" if is_json else "text"
            settings["response_format"] = {"type": kind}
        return Transcript(
            key=content_hash(model, settings, seed, list(messages)),
            role=role,
            prompt_name=prompt_name,
            prompt_digest=prompt_digest,
            model=model,
            settings=settings,
            seed=seed,
            messages=tuple(messages),
        )

    def _perform(self, call: Transcript) -> Transcript:
        """The call's transcript, once it is on disk."""
        try:
            if self._down:
                return dataclasses.replace(call, failure="down", detail=self._down)
            num_before = self._num_replies
            sent = {**call.settings, "model": call.model, "seed": call.seed}
            try:
                made = _answered(call, self._client.complete(call.messages, sent))
            except JudgeUnavailable as error:
                known = {"budget": "over_budget", "timeout": "timed_out"}
                failure = known.get(error.reason, "unreachable")
                failure = failure if error.status is None else f"http_{error.status}"
                made = dataclasses.replace(call, failure=failure, detail=str(error)[:300])
            return self._keep(made, num_before)
        finally:
            with self._lock:
                self._running.pop(call.key, None)

    def _keep(self, made: Transcript, num_before: int) -> Transcript:
        """Stores a reply at once; a failure with the next reply, which shows that somebody is
        there. A failure counts against the endpoint where no reply came since the call began,
        `num_before` replies ago: at the end of a batch all calls that run out of time end in a row.
        """
        if made.reply is not None:
            self.store.put(made.key, dataclasses.asdict(made))
            with self._lock:
                self._num_replies += 1
            self._keep_held()
        elif made.failure != "over_budget":
            with self._lock:
                self._held[made.key] = made
                self._num_failed += num_before == self._num_replies
                if self._num_failed >= MAX_FAILED_IN_A_ROW and not self._down:
                    self._down = f"{made.failure}, {made.detail}"
        return made

    def _keep_held(self) -> None:
        with self._lock:  # kept over the writing: a call is in the store or held, never in neither
            for made in self._held.values():
                self.store.put(made.key, dataclasses.asdict(made))
            self._held, self._num_failed = {}, 0


def reply_of(made: Transcript, schema: Mapping[str, Any] | None) -> Reply:
    """Judges the form of what came back: refused, cut off, or not the agreed object."""
    text, parsed, failure, detail = made.reply, None, made.failure, made.detail
    if failure is None and text is not None:
        if made.finish_reason == "length":
            failure = "truncated"
        elif schema is not None:
            try:
                parsed = calls.parse(text, schema)
            except calls.Malformed as error:
                is_refusal = calls.is_refusal(calls.without_thinking(text))
                failure, detail = ("refused" if is_refusal else "malformed"), str(error)
        elif calls.is_refusal(text):
            failure = "refused"
        elif not text.strip():
            failure = "malformed"
    text = text if failure is None else None
    made = dataclasses.replace(made, failure=failure, detail=detail)
    return Reply(text=text, parsed=parsed, failure=failure, transcript=made)


def _answered(call: Transcript, completion: Completion) -> Transcript:
    is_refused = completion.text is None or completion.finish_reason == "content_filter"
    return dataclasses.replace(
        call,
        reply=completion.refusal if completion.text is None else completion.text,
        finish_reason=completion.finish_reason,
        failure="refused" if is_refused else None,
        prompt_tokens=completion.prompt_tokens,
        reply_tokens=completion.reply_tokens,
        is_estimate=completion.is_estimate,
    )


# ---- an author for a run directory, which holds one run


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
